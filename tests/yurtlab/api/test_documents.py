"""Discovery, OpenAPI and probes, which clients request first."""

from __future__ import annotations

import json

from tests.yurtlab.api.support import ApiTestCase

AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
POD = {"group": "", "version": "v1", "kind": "Pod"}


class DiscoveryTests(ApiTestCase):
    """Discovery."""

    def test_groups(self):
        """The groups and their versions are listed."""
        _, core = self.call("GET", "/api")
        self.assertEqual(("APIVersions", ["v1"]), (core["kind"], core["versions"]))
        self.assertEqual("api:6443", core["serverAddressByClientCIDRs"][0]["serverAddress"])
        _, groups = self.call("GET", "/apis")
        version = {"groupVersion": "coordination.k8s.io/v1", "version": "v1"}
        group = {
            "name": "coordination.k8s.io",
            "versions": [version],
            "preferredVersion": version,
        }
        self.assertIn(group, groups["groups"])
        self.assertEqual(
            ["coordination.k8s.io", "discovery.k8s.io", "apps", "batch"],
            [group["name"] for group in groups["groups"]],
        )
        _, one = self.call("GET", "/apis/coordination.k8s.io")
        self.assertEqual({"kind": "APIGroup", "apiVersion": "v1", **group}, one)

    def test_kinds(self):
        """The kinds of a version are listed with verbs, short names and subresources."""
        _, found = self.call("GET", "/api/v1")
        self.assertEqual(("APIResourceList", "v1"), (found["kind"], found["groupVersion"]))
        entries = {entry["name"]: entry for entry in found["resources"]}
        self.assertEqual(
            {
                "name": "pods",
                "singularName": "pod",
                "namespaced": True,
                "kind": "Pod",
                "verbs": [
                    "create",
                    "delete",
                    "deletecollection",
                    "get",
                    "list",
                    "patch",
                    "update",
                    "watch",
                ],
                "shortNames": ["po"],
                "categories": ["all"],
            },
            entries["pods"],
        )
        self.assertEqual(["create", "get"], entries["pods/exec"]["verbs"])
        token = entries["serviceaccounts/token"]
        self.assertEqual(
            ("authentication.k8s.io", "v1", "TokenRequest"),
            (token["group"], token["version"], token["kind"]),
        )
        self.assertFalse(entries["nodes"]["namespaced"])
        self.assertNotIn("leases", entries)
        _, found = self.call("GET", "/apis/coordination.k8s.io/v1")
        self.assertEqual(["leases"], [entry["name"] for entry in found["resources"]])

    def test_aggregated(self):
        """A client that prefers aggregated discovery gets one document of its version and type."""
        for version in ("v2", "v2beta1"):
            accept = AGGREGATED if version == "v2" else AGGREGATED.partition(",")[2]
            fields = [f"Accept: {accept}"]
            _, fields, body = self.exchange("GET", "/api", fields=fields)
            found = json.loads(body)
            self.assertEqual(
                f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList",
                fields[b"content-type"].decode(),
            )
            self.assertEqual(f"apidiscovery.k8s.io/{version}", found["apiVersion"])
            (core,) = found["items"]
            group, *_ = self.call("GET", "/apis", accept=accept)[1]["items"]
            kinds = {one["resource"]: one for one in core["versions"][0]["resources"]}
            self.assertEqual(POD, kinds["pods"]["responseKind"])
            self.assertEqual("Namespaced", kinds["pods"]["scope"])
            names = [one["subresource"] for one in kinds["pods"]["subresources"]]
            self.assertEqual(
                ["attach", "ephemeralcontainers", "exec", "log", "portforward", "proxy", "status"],
                names,
            )
            self.assertEqual("coordination.k8s.io", group["metadata"]["name"])

    def test_not_aggregated(self):
        """A client that prefers plain discovery gets it."""
        _, found = self.call("GET", "/api", accept="application/json," + AGGREGATED)
        self.assertEqual("APIVersions", found["kind"])
        _, found = self.call("GET", "/api/v1", accept=AGGREGATED)
        self.assertEqual("APIResourceList", found["kind"])

    def test_unknown_paths(self):
        """Unknown paths are NotFound."""
        for method, path in (
            ("GET", "/"),
            ("GET", "/api/v2"),
            ("GET", "/apis/x"),
            ("GET", "/apis/x/v1"),
            ("GET", "/api/v1/cars"),
            ("POST", "/version"),
            ("GET", "/openapi/v3/api/v2"),
        ):
            answer = self.call(method, path)
            text = "the server could not find the requested resource"
            self.assert_error(answer, 404, "NotFound", text)


class OpenAPITests(ApiTestCase):
    """OpenAPI."""

    def document(self, group):
        """Fetch a document of version 3 at the path in the index."""
        _, index = self.call("GET", "/openapi/v3")
        address = index["paths"][group]["serverRelativeURL"]
        self.assertRegex(address, r"^/openapi/v3/.*\?hash=[0-9A-F]{32}$")
        return self.call("GET", address)[1]

    def test_validation_by_the_server(self):
        """PATCH of every kind has the parameters by which kubectl leaves validation to the
        server.
        """
        for group, path, kind in (
            ("api/v1", "/api/v1/namespaces/{namespace}/pods/{name}", "Pod"),
            ("api/v1", "/api/v1/nodes/{name}", "Node"),
            (
                "apis/coordination.k8s.io/v1",
                "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}",
                "Lease",
            ),
        ):
            patch = self.document(group)["paths"][path]["patch"]
            self.assertEqual(kind, patch["x-kubernetes-group-version-kind"]["kind"])
            names = {one["name"] for one in patch["parameters"] if one["in"] == "query"}
            self.assertLessEqual({"dryRun", "fieldValidation"}, names)

    def test_schemas(self):
        """Every document includes all schemas that it references."""
        document = self.document("api/v1")
        known = set(document["components"]["schemas"])
        text = json.dumps(document)
        used = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
        self.assertLessEqual(used, known)
        self.assertIn("io.k8s.api.core.v1.Container", known)

    def test_version_2(self):
        """Version 2 is served as JSON and in the binary form that old kubectls request."""
        _, found = self.call("GET", "/openapi/v2")
        self.assertEqual("2.0", found["swagger"])
        fields = ["Accept: application/com.github.proto-openapi.spec.v2@v1.0+protobuf"]
        _, fields, body = self.exchange("GET", "/openapi/v2", fields=fields)
        self.assertEqual(
            b"application/com.github.proto-openapi.spec.v2.v1.0+protobuf", fields[b"content-type"]
        )
        # Field 1 is "2.0", field 2 has title and version, field 8 is empty.
        info = b"\n\x0aKubernetes\x12\x07v1.33.0"
        self.assertEqual(b"\n\x032.0\x12" + bytes([len(info)]) + info + b"\x42\x00", body)


class ProbeTests(ApiTestCase):
    """Probes."""

    def test_version(self):
        """The version is that of the implemented Kubernetes API."""
        _, version = self.call("GET", "/version", known=False)
        self.assertEqual((200, version), self.call("GET", "/version/", known=False))
        self.assertEqual(("1", "33"), (version["major"], version["minor"]))
        self.assertRegex(version["gitVersion"], r"^v1\.33\.0")

    def test_health(self):
        """Probes need no credentials."""
        for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
            status, fields, body = self.exchange("GET", path, known=False)
            self.assertEqual((200, b"ok"), (status, body))
            self.assertTrue(fields[b"content-type"].startswith(b"text/plain"))
