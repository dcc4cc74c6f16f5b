"""Parsing of requests."""

from __future__ import annotations

import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.parsing import (
    MAX_PARAMETERS,
    MAX_SEGMENT_LENGTH,
    MAX_SEGMENTS,
    parse_request,
)
from yurttunnel.hub.request.requests import (
    MAX_SELECTORS,
    ApiRequest,
    ListOptions,
    ResourceType,
)

PODS = ResourceType("", "v1", "pods")
DEPLOYMENTS = ResourceType("apps", "v1", "deployments")
NAMESPACES = ResourceType("", "v1", "namespaces")


def parse(target, method="GET"):
    """Parse a request."""
    return parse_request(RequestHead(method.encode(), target.encode("latin-1"), "1.1", []))


def read(target, method="GET"):
    """Return the verb, resource, namespace, name and subresource of a request."""
    found = parse(target, method)
    return found.verb, found.resource, found.namespace, found.name, found.subresource


class PathTests(SynchronousTestCase):
    """Paths and methods."""

    def test_objects_and_collections(self):
        """A path with a name refers to an object, one without to a collection."""
        for target, expected in {
            "/api/v1/pods": ("list", PODS, "", "", ""),
            "/api/v1/pods/": ("list", PODS, "", "", ""),
            "/api/v1/namespaces/n/pods": ("list", PODS, "n", "", ""),
            "/api/v1/namespaces/n/pods/p": ("get", PODS, "n", "p", ""),
            "/api/v1/namespaces/n/pods/p/status": ("get", PODS, "n", "p", "status"),
            "/api/v1/namespaces/n/pods/proxy/log": ("get", PODS, "n", "proxy", "log"),
            "/apis/apps/v1/deployments": ("list", DEPLOYMENTS, "", "", ""),
            "/apis/apps/v1/namespaces/n/deployments/d": ("get", DEPLOYMENTS, "n", "d", ""),
            "/api/v1/nodes/edge-1": ("get", ResourceType("", "v1", "nodes"), "", "edge-1", ""),
        }.items():
            self.assertEqual(expected, read(target), target)

    def test_namespaces_themselves(self):
        """A Namespace is a cluster-scoped object."""
        for target, expected in {
            "/api/v1/namespaces": ("list", NAMESPACES, "", "", ""),
            "/api/v1/namespaces/n": ("get", NAMESPACES, "", "n", ""),
            "/api/v1/namespaces/n/status": ("get", NAMESPACES, "", "n", "status"),
            "/api/v1/namespaces/n/finalize": ("get", NAMESPACES, "", "n", "finalize"),
        }.items():
            self.assertEqual(expected, read(target), target)

    def test_verbs(self):
        """The method determines the verb; a deletion without a name is of a collection."""
        one, all_of_them = "/api/v1/namespaces/n/pods/p", "/api/v1/namespaces/n/pods"
        for method, target, verb in (
            ("GET", one, "get"),
            ("HEAD", one, "get"),
            ("HEAD", all_of_them, "list"),
            ("POST", all_of_them, "create"),
            ("PUT", one, "update"),
            ("PATCH", one, "patch"),
            ("DELETE", one, "delete"),
            ("DELETE", all_of_them, "deletecollection"),
        ):
            self.assertEqual(verb, read(target, method)[0], (method, target))

    def test_watches(self):
        """A watch is a list with a parameter, or has the deprecated prefix."""
        for target, expected in {
            "/api/v1/pods?watch=true": ("watch", PODS, "", "", ""),
            "/api/v1/pods?watch=1": ("watch", PODS, "", "", ""),
            "/api/v1/pods?watch": ("watch", PODS, "", "", ""),
            "/api/v1/pods?watch=false": ("list", PODS, "", "", ""),
            "/api/v1/pods?watch=FALSE": ("list", PODS, "", "", ""),
            "/api/v1/pods?watch=0": ("list", PODS, "", "", ""),
            "/api/v1/pods?watch=false&watch=true": ("list", PODS, "", "", ""),
            "/api/v1/watch/namespaces/n/pods": ("watch", PODS, "n", "", ""),
            "/api/v1/watch/namespaces/n/pods/p": ("watch", PODS, "n", "p", ""),
            "/apis/apps/v1/watch/deployments": ("watch", DEPLOYMENTS, "", "", ""),
            "/api/v1/namespaces/n/pods/p?watch=true": ("get", PODS, "n", "p", ""),
        }.items():
            self.assertEqual(expected, read(target), target)

    def test_a_watch_of_one_object(self):
        """With the deprecated prefix a name is added to the field selector."""
        watched = "/api/v1/watch/namespaces/n/pods/p"
        for query, selected in {
            "": "metadata.name=p",
            "?fieldSelector=metadata.name%3Dp": "metadata.name=p",
            "?fieldSelector=status.phase%3DRunning": "metadata.name=p,status.phase=Running",
        }.items():
            self.assertEqual(selected, parse(watched + query).options.field_selector, query)

    def test_a_selected_name(self):
        """A list or a watch with a selector for one name refers to that object."""
        for query in (
            "metadata.name=p",
            "metadata.name%3D%3Dp",
            "spec.nodeName%3De,metadata.name=p",
        ):
            self.assertEqual(
                ("list", PODS, "n", "p", ""),
                read(f"/api/v1/namespaces/n/pods?fieldSelector={query}"),
            )
        for query in ("metadata.name!=p", "metadata.name=", "metadata.name=a%2Fb", "metadata.name"):
            self.assertEqual("", read(f"/api/v1/pods?fieldSelector={query}")[3], query)
        watched = read("/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dp")
        self.assertEqual(("watch", PODS, "", "p", ""), watched)

    def test_no_resource(self):
        """Discovery, versions and health are not resources."""
        for target, path in {
            "/": "/",
            "/version": "/version",
            "/version?timeout=32s": "/version",
            "/api": "/api",
            "/api/v1": "/api/v1",
            "/apis/": "/apis",
            "/apis/apps/v1": "/apis/apps/v1",
            "/openapi/v3/apis/apps/v1?hash=1": "/openapi/v3/apis/apps/v1",
            "/.well-known/openid-configuration": "/.well-known/openid-configuration",
        }.items():
            self.assertEqual(ApiRequest("get", path), parse(target), target)
        self.assertEqual(ApiRequest("get", "/version"), parse("/version", "HEAD"))
        self.assertEqual(ApiRequest("post", "/version"), parse("/version", "POST"))

    def test_decoded(self):
        """Names are decoded."""
        found = parse("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode")
        self.assertEqual("system:node", found.name)
        self.assertTrue(found.path.endswith("/clusterroles/system:node"))

    def test_what_is_proxied_may_be_anything(self):
        """The path after proxy belongs to a pod or a Service, and may be anything."""
        for target in (
            "/api/v1/namespaces/n/services/s/proxy/a//b/%2e%2e/%2f",
            "/api/v1/nodes/edge-1/proxy//logs/..",
        ):
            found = parse(target)
            self.assertEqual("proxy", found.subresource)
            self.assertTrue(found.path.endswith("/proxy"))

    def test_ambiguous_paths(self):
        """Paths that a file system or another parser could interpret differently are rejected."""
        for target in (
            "/api/v1/namespaces/../pods",
            "/api/v1/namespaces/n/pods/.",
            "/api/v1/namespaces/n/pods/%2e%2E",
            "/api/v1//pods",
            "//api/v1/pods",
            "/api/v1/pods//",
            "/api/v1/namespaces/n/pods/a%2fb",
            "/api/v1/namespaces/n/pods/a%252fb",
            "/api/v1/namespaces/n/secrets/a%00",
            "/api/v1/namespaces/n/secrets/a%0ab",
            "/api/v1/namespaces/n/secrets/a%7f",
            "/api/v1/namespaces/n/secrets/a%",
            "/api/v1/namespaces/n/secrets/a%4",
            "/api/v1/namespaces/n/secrets/a%zz",
            "/api/v1/namespaces/n/secrets/a%ff",
            "/version/..",
            "/api/v1/watch",
            "/api/v1/namespaces/proxy/pods/x/..",
            "*",
        ):
            error = self.assertRaises(RequestFailed, parse, target)
            self.assertEqual(400, error.status, target)

    def test_long_names(self):
        """A name has at most 253 bytes, in any encoding."""
        longest = "n" * MAX_SEGMENT_LENGTH
        self.assertEqual(longest, parse(f"/api/v1/nodes/{longest}").name)
        for longer in (longest + "n", "%c3%a4" * 127):
            error = self.assertRaises(RequestFailed, parse, f"/api/v1/nodes/{longer}")
            self.assertIn("253 bytes", str(error))

    def test_many_names(self):
        """A path has at most 64 segments, except after ``/proxy``."""
        names = "/a" * MAX_SEGMENTS
        self.assertEqual(names, parse(names).path)
        self.assertEqual(names, parse(f"{names}/").path)
        for more in (f"{names}/a", f"/api/v1/nodes{names}", "/a" * 200_000):
            error = self.assertRaises(RequestFailed, parse, more)
            self.assertIn("64 names", str(error))
        self.assertEqual("proxy", parse(f"/api/v1/nodes/n/proxy{names}").subresource)


class QueryTests(SynchronousTestCase):
    """The query of lists and watches."""

    def options(self, query):
        """Return the options of a list."""
        return parse(f"/api/v1/pods?{query}").options

    def test_all(self):
        """Each parameter of a list has an option."""
        expected = ListOptions(
            "a in (1, 2)", "metadata.name!=x", 500, "next=", "7", "NotOlderThan", 30, True, True
        )
        query = (
            "labelSelector=a+in%20(1%2C+2)&fieldSelector=metadata.name%21%3Dx&limit=500"
            "&continue=next%3D&resourceVersion=7&resourceVersionMatch=NotOlderThan"
            "&timeoutSeconds=30&sendInitialEvents=true&allowWatchBookmarks=1"
        )
        self.assertEqual(expected, self.options(query))

    def test_none(self):
        """Missing parameters have their defaults; unknown ones are ignored."""
        for query in ("", "&&", "pretty=%zz&x;y=%ff", "limit=", "Limit=x"):
            self.assertEqual(ListOptions(), self.options(query), query)

    def test_the_first_counts(self):
        """The first of several values counts, as in the API."""
        self.assertEqual(1, self.options("limit=1&limit=2").limit)

    def test_bad_values(self):
        """Invalid values are rejected."""
        for query in (
            "limit=many",
            "limit=0x10",
            "limit=" + "9" * 30,
            "timeoutSeconds=1s",
            "labelSelector=%",
            "continue=%ff",
        ):
            error = self.assertRaises(RequestFailed, self.options, query)
            self.assertEqual(400, error.status, query)

    def test_encoded_names(self):
        """The API would decode a parameter's name; only a client that hides one encodes it."""
        for query in ("fieldSelect%6Fr=a%3Db", "limit=1&w%61tch=1", "a+b=c", "%77atch", "%zz=1"):
            error = self.assertRaises(RequestFailed, self.options, query)
            self.assertEqual(400, error.status, query)

    def test_semicolons(self):
        """A pair with a semicolon is ignored, as in the API, unless it is encoded."""
        self.assertEqual(ListOptions(), self.options("fieldSelector=a%3Db;c&limit=1;2"))
        self.assertEqual("a=b;c", self.options("fieldSelector=a%3Db%3Bc").field_selector)

    def test_others_have_none(self):
        """Requests other than lists and watches may have any query."""
        found = parse("/api/v1/namespaces/n/pods/p/exec?command=50%&limit=x", "POST")
        self.assertEqual(("create", ListOptions()), (found.verb, found.options))

    def test_long_targets(self):
        """A target that is too long to be remembered is parsed nevertheless."""
        selector = "a in (" + ",".join(map(str, range(1000))) + ")"
        self.assertEqual(selector, self.options(f"labelSelector={selector}").label_selector)

    def test_many_parameters(self):
        """A list has at most 1,000 parameters."""
        most = "&".join(["a"] * (MAX_PARAMETERS - 1))
        self.assertEqual(7, self.options(f"{most}&limit=7").limit)
        error = self.assertRaises(RequestFailed, self.options, f"{most}&a&limit=7")
        self.assertEqual(400, error.status)
        self.assertIn("more than 1000 parameters", str(error))

    def test_long_selectors(self):
        """A very long selector is not searched for a name, because each term takes time."""
        for length, name in ((MAX_SELECTORS, "p"), (MAX_SELECTORS + 1, "")):
            selector = "metadata.name=p".ljust(length, ",")
            self.assertEqual(name, parse(f"/api/v1/pods?fieldSelector={selector}").name)


class HalfMegabyteTests(SynchronousTestCase):
    """Targets of half a megabyte, which any client may send."""

    def test_time(self):
        """None blocks others for long."""
        targets = (
            "/api/v1/pods?" + "a&" * 250_000,
            "/api/v1/pods?labelSelector=" + "%41" * 170_000,
            "/api/v1/pods?fieldSelector=metadata.name" + "%3d" * 170_000,
            "/api/v1/pods?continue=" + "%41" * 170_000,
            "/api/v1/pods/" + "%41" * 170_000,
            "/api/v1/pods/" + "/".join(["%41" * 2_800] * 60),
        )
        before = time.process_time()
        for target in targets * 10:
            try:
                parse(target)
            except RequestFailed as error:
                self.assertEqual(400, error.status)
        self.assertLess(time.process_time() - before, 1)
