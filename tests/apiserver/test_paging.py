"""Lists in pages, and lists at a version."""

from __future__ import annotations

import base64
import json

from tests.apiserver.paging import as_it_was
from tests.apiserver.support import ApiTestCase
from yurtlab.api.resources import CONFIG_MAPS
from yurtlab.api.store import Store

MAPS = "/api/v1/namespaces/default/configmaps"
ALL = "/api/v1/configmaps"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class PageTestCase(ApiTestCase):
    """A test case with five objects in two namespaces."""

    def setUp(self):
        """Create the objects."""
        super().setUp()
        for name in "abc":
            self.add(name)
        for name in "ab":
            self.add(name, "kube-system")

    def add(self, name, namespace="default", **labels):
        """Create an object."""
        body = {"metadata": {"name": name, "labels": labels}}
        return self.store.create(CONFIG_MAPS, namespace, body)

    def page(self, path=ALL, **query):
        """Request a page; return names, and the metadata of the list."""
        text = "&".join(f"{key.rstrip('_')}={value}" for key, value in query.items())
        status, answer = self.call("GET", f"{path}?{text}")
        self.assertEqual(200, status, answer)
        names = [one["metadata"]["name"] for one in answer["items"]]
        return "".join(names), answer["metadata"]


class PageTests(PageTestCase):
    """Pages."""

    def test_pages(self):
        """Each page has a token for the next one, and the number of remaining objects."""
        version = str(self.store.version)
        names, metadata = self.page(limit=2)
        self.assertEqual(
            ("ab", 3, version), (names, metadata["remainingItemCount"], metadata["resourceVersion"])
        )
        names, metadata = self.page(limit=2, continue_=metadata["continue"])
        self.assertEqual(("ca", 1), (names, metadata["remainingItemCount"]))
        names, metadata = self.page(limit=2, continue_=metadata["continue"])
        self.assertEqual(("b", {"resourceVersion": version}), (names, metadata))

    def test_exact_end(self):
        """A page with all remaining objects is the last."""
        self.assertNotIn("continue", self.page(limit=5)[1])
        self.assertNotIn("continue", self.page(MAPS, limit=3)[1])

    def test_consistent(self):
        """All pages show the same version, despite changes between them."""
        version = str(self.store.version)
        _, metadata = self.page(MAPS, limit=1)
        self.add("bb")
        self.store.remove(CONFIG_MAPS, "default", "c")
        changed = {"metadata": {"name": "b"}, "data": {"k": "v"}}
        self.store.replace(CONFIG_MAPS, "default", "b", changed)
        _, answer = self.call("GET", f"{MAPS}?continue={metadata['continue']}")
        self.assertEqual(["b", "c"], [one["metadata"]["name"] for one in answer["items"]])
        self.assertNotIn("data", answer["items"][0])
        self.assertEqual(version, answer["metadata"]["resourceVersion"])
        self.assertEqual("abbb", self.page(MAPS)[0])

    def test_selected(self):
        """With a selector the number of remaining objects is not set."""
        self.add("d", x="1")
        self.add("e", x="1")
        names, metadata = self.page(limit=1, labelSelector="x%3D1")
        self.assertEqual("d", names)
        self.assertNotIn("remainingItemCount", metadata)
        token = metadata["continue"]
        self.assertEqual("e", self.page(labelSelector="x%3D1", continue_=token)[0])

    def test_tables(self):
        """Tables have pages, too."""
        _, answer = self.call("GET", f"{MAPS}?limit=2", accept=TABLE)
        self.assertEqual(2, len(answer["rows"]))
        self.assertEqual(1, answer["metadata"]["remainingItemCount"])
        self.assertIn("continue", answer["metadata"])

    def test_bad_tokens(self):
        """An invalid continue token is a BadRequest."""

        def written(**token):
            return base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")

        for token in (
            "x",
            "*",
            written(),
            written(v="v1", rv=1, start="a"),
            written(v="meta.k8s.io/v1", rv="1", start="a"),
            written(v="meta.k8s.io/v1", rv=-2, start="a"),
            written(v="meta.k8s.io/v1", rv=1, start=3),
        ):
            status, answer = self.call("GET", f"{MAPS}?continue={token}")
            self.assertEqual((400, "BadRequest"), (status, answer["reason"]), token)
        self.assertEqual(400, self.call("GET", f"{MAPS}?limit=-1")[0])


class ExpiryTests(PageTestCase):
    """Pages after a long time."""

    def setUp(self):
        """Request a page, and remove its version from the history."""
        super().setUp()
        _, self.first = self.page(MAPS, limit=2)
        for number in range(1001):
            self.store.replace(CONFIG_MAPS, "default", "c", {"data": {"n": str(number)}})

    def test_expired(self):
        """A page of a removed version is Expired, with a token for the current version."""
        status, answer = self.call("GET", f"{MAPS}?limit=2&continue={self.first['continue']}")
        self.assertEqual((410, "Expired", "Failure"), (status, answer["reason"], answer["status"]))
        self.assertIn(
            "The provided continue parameter is too old to display a consistent list result.",
            answer["message"],
        )
        names, metadata = self.page(MAPS, continue_=answer["metadata"]["continue"])
        self.assertEqual(("c", str(self.store.version)), (names, metadata["resourceVersion"]))

    def test_version(self):
        """A list of a removed version is Expired."""
        version = self.first["resourceVersion"]
        answer = self.call("GET", f"{MAPS}?resourceVersionMatch=Exact&resourceVersion={version}")
        message = "The resourceVersion for the provided list is too old."
        self.assert_error(answer, 410, "Expired", message)


class VersionTests(PageTestCase):
    """Lists at a version."""

    def test_any(self):
        """With version 0 a list is current and complete."""
        self.assertEqual("abcab", self.page(limit=1, resourceVersion=0)[0])

    def test_exact(self):
        """A list may have an exact version: if requested, or in pages."""
        version = self.store.version
        self.add("d")
        query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
        names, metadata = self.page(MAPS, **query)
        self.assertEqual(("abc", str(version)), (names, metadata["resourceVersion"]))
        self.assertEqual("abc", self.page(MAPS, limit=9, resourceVersion=version)[0])
        query["resourceVersionMatch"] = "NotOlderThan"
        self.assertEqual("abcd", self.page(MAPS, **query)[0])
        self.assertEqual("abcd", self.page(MAPS, resourceVersion=version)[0])

    def test_future(self):
        """A future version is a Timeout."""
        version = self.store.version
        answer = self.call("GET", f"{MAPS}?resourceVersion={version + 1}")
        message = f"Timeout: Too large resource version: {version + 1}, current: {version}"
        self.assert_error(answer, 504, "Timeout", message)

    def test_mistakes(self):
        """Invalid or contradictory options are rejected."""
        _, metadata = self.page(limit=1)
        token = metadata["continue"]
        for query, status, text in (
            (f"continue={token}&resourceVersion=5", 400, "is not allowed when using continue"),
            (f"continue={token}&resourceVersionMatch=Exact", 422, "is forbidden for continue"),
            ("resourceVersionMatch=Exact", 422, "forbidden unless resourceVersion is provided"),
            ("resourceVersionMatch=Exact&resourceVersion=0", 422, "is forbidden for"),
            ("resourceVersionMatch=x&resourceVersion=5", 422, "Unsupported value"),
        ):
            found, answer = self.call("GET", f"{MAPS}?{query}")
            self.assertEqual(status, found, query)
            self.assertIn(text, answer["message"])

    def test_long_history(self):
        """Changes of many kinds are undone in the right order."""
        store = Store(self.clock)
        body = {"metadata": {"name": "a"}, "data": {"n": "1"}}
        before = store.version
        store.create(CONFIG_MAPS, "default", body)
        first = store.version
        store.replace(CONFIG_MAPS, "default", "a", {"data": {"n": "2"}})
        store.remove(CONFIG_MAPS, "default", "a")
        store.create(CONFIG_MAPS, "default", {**body, "data": {"n": "3"}})
        data = [one["data"]["n"] for one in as_it_was(store, CONFIG_MAPS, None, first)]
        self.assertEqual((["1"], []), (data, as_it_was(store, CONFIG_MAPS, None, before)))
