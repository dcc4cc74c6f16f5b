"""Discovery, OpenAPI and schemas of all kinds, and the lab's file of its own kinds."""

from __future__ import annotations

import kubernetes
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.apiserver.documents import FILE, all_documents, make, written
from tests.apiserver.kinds import RESOURCES
from tests.apiserver.support import ApiTestCase
from yurtlab.api.documents import REFERENCE
from yurtlab.api.resources import LEASES, PODS, SECRETS
from yurtlab.api.resources import RESOURCES as LAB

CORE = "io.k8s.api.core.v1."


class DocumentTests(ApiTestCase):
    """The documents that clients read before they request objects."""

    def test_groups(self):
        """The groups are listed."""
        _, groups = self.call("GET", "/apis")
        self.assertEqual(
            [
                "coordination.k8s.io",
                "discovery.k8s.io",
                "apps",
                "batch",
                "certificates.k8s.io",
                "rbac.authorization.k8s.io",
                "policy",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "node.k8s.io",
                "storage.k8s.io",
            ],
            [group["name"] for group in groups["groups"]],
        )

    def test_only_what_can_be_done(self):
        """Operations are listed only where the kind has them."""
        _, document = self.call("GET", "/openapi/v3/apis/authentication.k8s.io/v1")
        paths = document["paths"]
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        self.assertEqual({"post"}, set(paths[path]))


class SchemaTests(SynchronousTestCase):
    """Schemas."""

    def test_every_kind_has_one(self):
        """Each kind has a schema with the usual fields and its own name."""
        for kind in RESOURCES:
            schema = all_documents().schema(kind)
            self.assertIn("metadata", schema["properties"], kind.kind)
            self.assertEqual(
                [{"group": kind.group, "version": kind.version, "kind": kind.kind}],
                schema["x-kubernetes-group-version-kind"],
            )

    def test_names(self):
        """Definitions have the names of Kubernetes."""
        schemas = all_documents()
        self.assertIs(schemas.schemas[f"{CORE}Pod"], schemas.schema(PODS))
        lease = "io.k8s.api.coordination.v1.Lease"
        self.assertIs(schemas.schemas[lease], schemas.schema(LEASES))
        meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        self.assertEqual({"$ref": REFERENCE + meta}, schemas.schema(PODS)["properties"]["metadata"])
        source = schemas.schemas[f"{CORE}EnvVar"]["properties"]["valueFrom"]
        self.assertEqual({"$ref": f"{REFERENCE}{CORE}EnvVarSource"}, source)

    def test_types(self):
        """Types, formats and descriptions are those of Kubernetes."""
        definitions = all_documents().schemas
        container = definitions[f"{CORE}Container"]
        self.assertEqual(["name"], container["required"])
        self.assertNotIn("Attributes", container["description"])
        command = container["properties"]["command"]
        self.assertEqual(("array", {"type": "string"}), (command["type"], command["items"]))
        self.assertIn("Entrypoint array", command["description"])
        port = definitions[f"{CORE}HTTPGetAction"]["properties"]["port"]
        self.assertEqual("int-or-string", port["format"])
        data = all_documents().schema(SECRETS)["properties"]["data"]
        self.assertEqual({"type": "string", "format": "byte"}, data["additionalProperties"])

    def test_group(self):
        """The schemas of a group are exactly those that its kinds use."""
        found = all_documents().openapi(f"apis/{LEASES.api_version}")["components"]["schemas"]
        self.assertIn("io.k8s.api.coordination.v1.LeaseSpec", found)
        self.assertNotIn(f"{CORE}Pod", found)


class FileTests(SynchronousTestCase):
    """The lab's file of documents."""

    def test_it_is_what_is_made(self):
        """The file is what ``python -m tests.apiserver.documents`` writes."""
        found = FILE.read_text()
        if f'"made of": "kubernetes {kubernetes.__version__}"' not in found:
            raise SkipTest("documents.json was made of another version of the kubernetes package")
        self.assertTrue(found == written(make(LAB)), "run python -m tests.apiserver.documents")
