"""Strategies: how the API prepares and validates the objects of a kind before storing them.

As in Kubernetes (pkg/registry), a strategy has defaults, validation, and the rules of deletion.
This one applies to most kinds.
"""

from __future__ import annotations

import base64

from yurtlab.api import names
from yurtlab.api.access import User
from yurtlab.api.errors import Cause
from yurtlab.api.store import Object


class Strategy:
    """The strategy of kinds without their own.

    Bodies have the structure of their kind, including ``metadata``. The strategy owns them and
    changes them in place; ``current`` is read-only.
    """

    name_rule: names.NameRule = staticmethod(names.dns_subdomain)

    def set_defaults(self, body: Object) -> None:
        """Set the defaults of a new or changed object."""

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set defaults and the fields that clients cannot; ``user`` is ``None`` for the API."""
        self.set_defaults(body)

    def admit(self, body: Object, user: User) -> None:
        """Reject a new object, which is valid, that ``user`` may not create."""

    def validate(self, body: Object) -> list[Cause]:
        """Return the errors in a new object."""
        return names.validate_metadata(body["metadata"], self.name_rule)

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Set defaults and the fields that clients cannot."""
        self.set_defaults(body)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Return the errors in a change."""
        return names.validate_labels(body["metadata"])

    def prepare_subresource(self, subresource: str, body: Object, current: Object) -> None:
        """Set the fields that clients cannot, when they write a subresource."""

    def validate_subresource(self, subresource: str, body: Object, current: Object) -> list[Cause]:
        """Return the errors in a change of a subresource."""
        return []

    def admit_subresource(
        self, subresource: str, body: Object, current: Object, user: User
    ) -> None:
        """Reject a change of a subresource that ``user`` may not make."""

    def grace_period(self, current: Object, requested: int | None) -> int:
        """Return the grace period of a deletion in seconds; 0 removes the object at once.

        Otherwise it is marked as deleted, and the component that runs it removes it.
        """
        return 0


class SecretStrategy(Strategy):
    """The strategy of secrets: ``stringData`` is a convenient form of ``data``."""

    def set_defaults(self, body: Object) -> None:
        """Move ``stringData`` into ``data``."""
        for key, text in body.pop("stringData", {}).items():
            encoded = base64.b64encode(text.encode()).decode("ascii")
            body.setdefault("data", {})[key] = encoded
        body.setdefault("type", "Opaque")


WITH_NODE_PORTS = ("NodePort", "LoadBalancer")
"""The types of services that have ports on nodes."""


class ServiceStrategy(Strategy):
    """The strategy of services: nothing routes to them, so they get no addresses or node ports.

    They are useful for ``kubectl port-forward service/NAME``, which finds a pod and its port.
    """

    name_rule = staticmethod(names.service_name)

    def set_defaults(self, body: Object) -> None:
        """Set defaults (pkg/apis/core/v1/defaults.go of Kubernetes)."""
        set_service_defaults(body.setdefault("spec", {}))

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set defaults and the initial status."""
        super().prepare_for_create(body, user)
        body["status"] = {"loadBalancer": {}}


def set_service_defaults(spec: Object) -> None:
    """Set the defaults of a service's specification."""
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in WITH_NODE_PORTS:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port", 0))
