"""The data of kinds and messages, compared with the client that Kubernetes publishes."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import kubernetes.client.api
from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.documents import all_documents
from tests.apiserver.kinds import RESOURCES
from yurtlab.api.documents import REFERENCE
from yurtlab.api.protobuf import MESSAGES

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OF_ALL = {"GET": {"list", "watch"}, "POST": {"create"}, "DELETE": {"deletecollection"}}
_OPERATION = re.compile(r"method='(\w+)',\s*resource_path='([^']+)'")


def operations():
    """Return the methods of each path of the API, from the client."""
    found = defaultdict(set)
    for path in Path(kubernetes.client.api.__file__).parent.glob("*_api.py"):
        for method, resource in _OPERATION.findall(path.read_text()):
            found[resource].add(method)
    return found


class KindTests(SynchronousTestCase):
    """Paths and verbs."""

    published = operations()

    def verbs(self, path):
        """Return the verbs of the single object at a path."""
        return {_VERBS[method] for method in self.published[path] & _VERBS.keys()}

    def test_verbs(self):
        """A kind has the path and the verbs of Kubernetes."""
        for kind in RESOURCES:
            collection = self.path(kind)
            of_all = [_OF_ALL[method] for method in self.published[collection]]
            verbs = self.verbs(f"{collection}/{{name}}").union(*of_all)
            self.assertEqual(verbs, set(kind.verbs), kind.kind)

    def test_subresources(self):
        """So have the subresources, of which Kubernetes may have more."""
        for kind in RESOURCES:
            for one in kind.subresources:
                path = f"{self.path(kind)}/{{name}}/{one.name}"
                self.assertEqual(self.verbs(path), set(one.verbs), path)

    def path(self, kind):
        """Return the path of the objects of a kind, in a namespace if it is namespaced."""
        root = "apis" if kind.group else "api"
        scope = "namespaces/{namespace}/" if kind.namespaced else ""
        return f"/{root}/{kind.api_version}/{scope}{kind.plural}"


class MessageTests(SynchronousTestCase):
    """Names and types of fields."""

    def test_fields(self):
        """The fields of a message are fields of its kind, of the same type."""
        schemas = {
            name.rpartition(".")[2]: one
            for name, one in all_documents().schemas.items()
            # Storage drivers have another TokenRequest.
            if not name.startswith("io.k8s.api.storage.")
        }
        checked = 0
        for message in MESSAGES.keys() & schemas.keys():
            properties = schemas[message]["properties"]
            for field in MESSAGES[message].values():
                self.assertIn(field.name, properties, message)
                place = f"{message}.{field.name}"
                self.assertEqual(self.type_of(field), self.published(properties[field.name]), place)
                checked += 1
        self.assertGreater(checked, 100)

    def type_of(self, field):
        """Return the type of a field in the notation of the schemas."""
        # JSON has no message for it.
        values = "list of string" if field.values == "ExtraValue" else field.values
        type_ = f"map of {values}" if values else field.type
        return f"list of {type_}" if field.repeated else type_

    def published(self, schema):
        """Return the fields and types of a schema in the notation of messages."""
        if "$ref" in schema:
            return schema["$ref"].removeprefix(REFERENCE).rpartition(".")[2]
        if schema.get("format") == "byte":
            return "bytes"
        if schema.get("format") == "date-time":
            return "Time"
        if schema.get("format") == "int-or-string":
            return "IntOrString"
        if "items" in schema:
            return f"list of {self.published(schema['items'])}"
        if "additionalProperties" in schema:
            return f"map of {self.published(schema['additionalProperties'])}"
        return {"integer": "int", "boolean": "bool"}.get(schema["type"], schema["type"])
