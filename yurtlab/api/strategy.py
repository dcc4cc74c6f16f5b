"""What the API does with the objects of a kind before it stores them.

Kubernetes calls this a strategy (pkg/registry): defaults, validation, and how objects end. Here
is what applies to most kinds.
"""

from __future__ import annotations

import base64

from yurtlab.api import names
from yurtlab.api.access import User
from yurtlab.api.errors import Cause
from yurtlab.api.store import Object


class Strategy:
    """The strategy of kinds without a particular one.

    Bodies have the structure of their kind, ``metadata`` included. They belong to the strategy,
    which fills them in place; what is ``current`` is to be read only.
    """

    name_rule: names.NameRule = staticmethod(names.dns_subdomain)

    def set_defaults(self, body: Object) -> None:
        """Fill in what a new or a changed object does not say."""

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Set what a client cannot decide, and defaults; ``user`` asks, or the API itself."""
        self.set_defaults(body)

    def admit(self, body: Object, user: User) -> None:
        """Refuse a new object, which is valid, that ``user`` may not create."""

    def validate(self, body: Object) -> list[Cause]:
        """Return what is wrong with a new object."""
        return names.validate_metadata(body["metadata"], self.name_rule)

    def prepare_for_update(self, body: Object, current: Object) -> None:
        """Set what a client cannot decide, and defaults."""
        self.set_defaults(body)

    def validate_update(self, body: Object, current: Object) -> list[Cause]:
        """Return what is wrong with a change."""
        return names.validate_labels(body["metadata"])

    def prepare_subresource(self, subresource: str, body: Object, current: Object) -> None:
        """Set what a client cannot decide when it writes the status or the like."""

    def validate_subresource(self, subresource: str, body: Object, current: Object) -> list[Cause]:
        """Return what is wrong with a change of the status or the like."""
        return []

    def admit_subresource(
        self, subresource: str, body: Object, current: Object, user: User
    ) -> None:
        """Refuse a change of the status or the like that ``user`` may not make."""

    def grace_period(self, current: Object, requested: int | None) -> int:
        """Return the seconds that an object has for its end; 0 removes it at once.

        With more, it is marked, and whoever runs it removes it.
        """
        return 0


class SecretStrategy(Strategy):
    """Secrets: ``stringData`` is a way to write ``data``."""

    def set_defaults(self, body: Object) -> None:
        """Move ``stringData`` into ``data``."""
        for key, text in body.pop("stringData", {}).items():
            encoded = base64.b64encode(text.encode()).decode("ascii")
            body.setdefault("data", {})[key] = encoded
        body.setdefault("type", "Opaque")


WITH_NODE_PORTS = ("NodePort", "LoadBalancer")
"""The types of services that have ports on nodes."""


class ServiceStrategy(Strategy):
    """Services: nothing routes to them, so they get neither addresses nor ports on nodes.

    They are good for ``kubectl port-forward service/NAME``, which finds a pod and its port.
    """

    name_rule = staticmethod(names.service_name)

    def set_defaults(self, body: Object) -> None:
        """Fill in defaults (pkg/apis/core/v1/defaults.go of Kubernetes)."""
        set_service_defaults(body.setdefault("spec", {}))

    def prepare_for_create(self, body: Object, user: User | None = None) -> None:
        """Fill in defaults and the first status."""
        super().prepare_for_create(body, user)
        body["status"] = {"loadBalancer": {}}


def set_service_defaults(spec: Object) -> None:
    """Fill in what the specification of a service does not say."""
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
