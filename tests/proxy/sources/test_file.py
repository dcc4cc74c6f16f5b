"""Tests of the source ``file``: manifests in a file or a directory."""

from __future__ import annotations

import json

import yaml

from tests.kube.misfits import MISFITS
from tests.proxy.objects import endpoint_slice, service
from tests.proxy.sources.world import WorldCase
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import SERVICES
from yurttunnel.proxy.sources.manifests import CHECK_SECONDS, read_manifests


class FileTests(WorldCase):
    """The state follows the files."""

    def write(self, name, *objects):
        """Write a file with objects, or with a text, as editors do."""
        text = objects[0] if isinstance(objects[0], str) else yaml.safe_dump_all(objects)
        if name.endswith(".json") and not isinstance(objects[0], str):
            text = json.dumps({"kind": "List", "items": list(objects)})
        new = self.directory / f".{name}.new"
        new.write_text(text)
        new.rename(self.directory / name)

    def refresh(self):
        """Run the next check."""
        self.settle(CHECK_SECONDS)

    def begin(self, path=None):
        """Start the source ``file`` only."""
        self.start(api=False, manifests=path or self.directory)

    def test_directory(self):
        """YAML with several documents and JSON with a list are served; other files are not."""
        self.write("web.yaml", service(), endpoint_slice("10.1.0.1"))
        self.write("api.json", service("api", "10.96.0.2"))
        self.write("README", "no manifest at all: [")
        self.write(".hidden.yaml", service("hidden", "10.96.0.3"))
        self.begin()
        self.assertEqual({"default/web TCP IPv4", "default/api TCP IPv4"}, self.shown().keys())
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())
        self.assertIsNone(self.sources.problem())

    def test_changes(self):
        """A replaced file is seen at the next check, and a removed one."""
        self.write("web.yaml", service(), endpoint_slice("10.1.0.1"))
        self.begin()
        self.write("web.yaml", service(), endpoint_slice("10.1.0.2"))
        self.refresh()
        self.assertEqual(["10.1.0.2:8080"], self.endpoints())
        (self.directory / "web.yaml").unlink()
        self.refresh()
        self.assertEqual(({}, 3), (self.shown(), self.changes))

    def test_unchanged(self):
        """Unchanged files are not read again."""
        self.write("a.yaml", service())
        self.write("b.yaml", service("b", "10.96.0.2"))
        before = read_manifests(self.directory, {})
        self.write("b.yaml", service("c", "10.96.0.3"))
        after = read_manifests(self.directory, before)
        same = [path.name for path in after if after[path] is before[path]]
        self.assertEqual(["a.yaml"], same)

    def test_single_file(self):
        """The path may be one file of any name."""
        self.write("services", service(), endpoint_slice("10.1.0.1"))
        self.begin(self.directory / "services")
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())

    def test_bad_file(self):
        """The content of a file stays when it becomes invalid, and others change all the same."""
        self.write("a.yaml", service(), endpoint_slice("10.1.0.1"))
        self.write("b.yaml", service("b", "10.96.0.2"))
        self.begin()
        self.write("a.yaml", "kind: Service\nmetadata: [")
        self.write("b.yaml", service("c", "10.96.0.3"))
        self.refresh()
        self.assertEqual({"default/web TCP IPv4", "default/c TCP IPv4"}, self.shown().keys())
        (problem,) = self.sources.state().problems
        self.assertEqual(f"file {self.directory}/a.yaml", problem.what)
        self.assertIn("its previous content stays in use", problem.text)
        self.assertIn("a.yaml", self.sources.problem())
        self.assertEqual(1, len(self.warnings))
        for _ in range(3):
            self.refresh()
        self.assertEqual(1, len(self.warnings))
        self.write("a.yaml", service("d", "10.96.0.4"))
        self.refresh()
        self.assertEqual({"default/d TCP IPv4", "default/c TCP IPv4"}, self.shown().keys())
        self.assertEqual(((), None), (self.sources.state().problems, self.sources.problem()))

    def test_bad_from_the_start(self):
        """Until each file could be read once there is no state: what a previous process has created
        stays. A file that has become invalid meanwhile is no reason to wait longer.
        """
        self.write("a.yaml", "just a text")
        self.write("b.yaml", service())
        self.begin()
        self.assertIsNone(self.shown())
        (warning,) = self.warnings
        reason = "a.yaml: it cannot be read: just a text is not an object of the API"
        self.assertIn(reason, warning)
        self.assertIn(reason, self.sources.problem())
        self.write("b.yaml", "[")
        self.refresh()
        self.assertIsNone(self.shown())
        self.write("a.yaml", service("a", "10.96.0.2"))
        self.refresh()
        self.assertEqual({"default/web TCP IPv4", "default/a TCP IPv4"}, self.shown().keys())

    def test_invalid_values(self):
        """A tag may turn a value into an invalid one: the file is invalid like any other."""
        for misfit in MISFITS:
            self.write("a.yaml", service(), endpoint_slice("10.1.0.1"))
            self.write("b.yaml", service("b", "10.96.0.2"))
            self.begin()
            self.write("a.yaml", misfit)
            self.write("b.yaml", service("c", "10.96.0.3"))
            self.refresh()
            self.assertEqual({"default/web TCP IPv4", "default/c TCP IPv4"}, self.shown().keys())
            self.assertIn("a.yaml: it cannot be read, and its previous", self.sources.problem())

    def test_link_that_leads_nowhere(self):
        """At the start it is an unreadable file; the content of an existing one stays, and a
        removed one is gone.
        """
        link = self.directory / "a.yaml"
        link.symlink_to("later")
        self.write("b.yaml", service())
        self.begin()
        self.assertIsNone(self.shown())
        self.assertIn("a.yaml: it cannot be read: No such file", self.sources.problem())
        self.write("later", yaml.safe_dump(service("a", "10.96.0.2")))
        self.refresh()
        self.assertEqual({"default/web TCP IPv4", "default/a TCP IPv4"}, self.shown().keys())
        (self.directory / "later").unlink()
        self.refresh()
        self.assertEqual({"default/web TCP IPv4", "default/a TCP IPv4"}, self.shown().keys())
        link.unlink()
        self.refresh()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))

    def test_bad_from_the_start_and_removed(self):
        """A removed file is not waited for."""
        self.write("a.yaml", "[")
        self.write("b.yaml", service())
        self.begin()
        self.assertIsNone(self.shown())
        (self.directory / "a.yaml").unlink()
        self.refresh()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))

    def test_file_becomes_invalid(self):
        """A file that never was valid does not affect others."""
        self.write("b.yaml", service())
        self.begin()
        self.write("a.yaml", "[")
        self.write("b.yaml", service("c", "10.96.0.3"))
        self.refresh()
        self.assertEqual(["default/c TCP IPv4"], list(self.shown()))
        self.assertIn("a.yaml: it cannot be read: ", self.sources.problem())

    def test_empty_file(self):
        """A file of 0 bytes is being written: its content stays, which is reported, and at the
        start it is waited for. A file without objects means that there are none.
        """
        for name, empty in (("a.yaml", "# none\n"), ("a.json", '{"kind": "List", "items": []}')):
            (self.directory / name).write_text("")
            self.begin(self.directory / name)
            self.assertIsNone(self.shown())
            self.write(name, service())
            self.refresh()
            (self.directory / name).write_text("")
            self.refresh()
            self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
            reason = "stays in use: it is empty, perhaps because it is being written"
            self.assertIn(reason, self.sources.problem())
            self.write(name, empty)
            self.refresh()
            self.assertEqual(({}, None), (self.shown(), self.sources.problem()))

    def test_unreadable_for_a_time(self):
        """An unreadable file is reported as long as it is, and no longer."""
        self.write("a.yaml", service())
        self.begin()
        path, aside = self.directory / "a.yaml", self.directory / "aside"
        path.rename(aside)
        path.mkdir()
        self.refresh()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.assertIn("Is a directory", self.sources.problem())
        path.rmdir()
        aside.rename(path)
        self.refresh()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.assertIsNone(self.sources.problem())

    def test_directory_is_missing(self):
        """Nothing is served before the directory is read, which is logged once; later its content
        stays.
        """
        away = self.directory / "later"
        self.begin(away)
        self.assertIsNone(self.shown())
        self.refresh()
        (warning,) = self.warnings
        self.assertIn(f"file {away}: it cannot be read: No such file or directory", warning)
        self.assertIn("No such file or directory", self.sources.problem())
        away.mkdir()
        self.refresh()
        self.assertEqual({}, self.shown())
        (away / "web.yaml").write_text(yaml.safe_dump(service()))
        self.refresh()
        (away / "web.yaml").rename(self.directory / "web.yaml")
        away.rmdir()
        self.refresh()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.assertIn("No such file or directory", self.sources.problem())

    def test_wrong_objects(self):
        """Other kinds, and objects without a name, are reported and left out."""
        nameless = service()
        del nameless["metadata"]["name"]
        self.write("a.yaml", {"kind": "Pod", "metadata": {"name": "x"}}, nameless, service())
        self.begin()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.assertEqual(2, len(self.sources.state().problems))

    def test_endpoints(self):
        """The older kind Endpoints has the same effect as EndpointSlices, in both families."""
        subsets = [
            {
                "addresses": [{"ip": "10.1.0.1", "nodeName": "here"}, {"ip": "fd01::1"}],
                "notReadyAddresses": [{"ip": "10.1.0.2"}],
                "ports": [{"port": 8080}],
            },
            {"addresses": [{"ip": "10.1.0.3"}, {"ip": "127.0.0.1"}], "ports": [{"port": 9090}]},
        ]
        old = {"kind": "Endpoints", "metadata": {"name": "web"}, "subsets": subsets}
        self.write("a.yaml", service("web", "10.96.0.1", "fd00::1"), old)
        self.begin()
        self.assertEqual(["10.1.0.1:8080", "10.1.0.3:9090"], self.endpoints())
        self.assertEqual(["[fd01::1]:8080"], self.endpoints("default/web TCP IPv6"))
        self.assertEqual(1, len(self.sources.state().problems))

    def test_default_namespace(self):
        """An object without a namespace is in ``default``, as with kubectl."""
        web = service()
        del web["metadata"]["namespace"]
        self.write("a.yaml", web)
        self.begin()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))

    def test_same_object_in_two_files(self):
        """The first file by name counts."""
        self.write("b.yaml", service("web", "10.96.0.2"))
        self.write("a.yaml", service("web", "10.96.0.1"))
        self.begin()
        self.assertEqual(["cluster IP 10.96.0.1 80"], self.shown()["default/web TCP IPv4"][0])

    def test_with_the_api(self):
        """Both sources are served; of objects in both the API's counts, while it has them."""
        self.client.put(SERVICES, service("web", "10.96.0.1"))
        self.write("a.yaml", service("web", "10.96.0.2"), service("file", "10.96.0.3"))
        self.start(manifests=self.directory)
        self.assertEqual({"default/web TCP IPv4", "default/file TCP IPv4"}, self.shown().keys())
        self.assertEqual(["cluster IP 10.96.0.1 80"], self.shown()["default/web TCP IPv4"][0])
        self.client.remove(SERVICES, "web", "default")
        self.settle()
        self.assertEqual(["cluster IP 10.96.0.2 80"], self.shown()["default/web TCP IPv4"][0])

    def test_before_the_api(self):
        """Files have no effect before the API has been listed."""
        self.client.fail(ApiUnreachable("connection refused"))
        self.write("a.yaml", service())
        self.start(manifests=self.directory)
        self.assertIsNone(self.shown())
        self.client.recover()
        self.settle(60)
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
