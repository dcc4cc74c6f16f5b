"""The resources of the API that this package uses, and their paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Object = dict[str, Any]
"""An object as decoded from JSON; its fields are those of the API reference."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type; ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def typed(self, body: Object) -> Object:
        """Return ``body`` with ``apiVersion`` and ``kind``, those that it has taking precedence."""
        return {"apiVersion": self.api_version, "kind": self.kind, **body}

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """Return the path of all objects, of those in a namespace, of one, or of a subresource."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CERTIFICATE_SIGNING_REQUESTS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
)
TOKEN_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
