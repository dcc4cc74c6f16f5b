"""Decisions about certificate requests of the tunnel, and the facts that they depend on."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from yurttunnel.cluster.services import service_addresses
from yurttunnel.http.authority import Address
from yurttunnel.kube.errors import NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import (
    CERTIFICATE_SIGNING_REQUESTS,
    NODES,
    PODS,
    SERVICES,
    SUBJECT_ACCESS_REVIEWS,
    Object,
    Resource,
)
from yurttunnel.pki.approval_requests import Requester

MAX_FURTHER_NAMES = 8
"""The maximum number of further host names that an agent may request; each is looked up.

Nodes report at most a few: a host name, and one inside and one outside the provider's network.
"""


class Reason(enum.Enum):
    """Why a request is left alone; the value is for metrics."""

    MALFORMED = "malformed"
    ORGANIZATION = "organization"
    USAGES = "usages"
    KEY = "key"
    NAMES = "names"
    OTHER_NODE = "other_node"
    REQUESTER = "requester"
    OTHER_INSTALLATION = "other_installation"
    UNBOUND_TOKEN = "unbound_token"
    UNKNOWN_NODE = "unknown_node"


_CHANGING = frozenset({Reason.NAMES, Reason.OTHER_NODE, Reason.UNBOUND_TOKEN, Reason.UNKNOWN_NODE})


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a request: approved, or left alone for ``reason``.

    ``message`` is for the operator and completes "the certificate request NAME ...". It gives the
    reason, and what to do if the request is left alone.
    """

    message: str
    reason: Reason | None = None

    @property
    def approved(self) -> bool:
        """Whether the request is approved."""
        return self.reason is None

    @property
    def may_change(self) -> bool:
        """Whether the decision may change later, because it depends on objects that may change."""
        return self.reason in _CHANGING

    @property
    def is_alarming(self) -> bool:
        """Whether the request is left alone and somebody, such as its owner, has to act."""
        return self.reason not in (None, Reason.OTHER_INSTALLATION)


class Facts:
    """Reads from the API what a decision depends on; an object is ``None`` if it does not exist.

    ``namespace`` is the tunnel's. All methods fail as those of the client do.
    """

    def __init__(self, client: IKubeClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def node(self, name: str) -> Object | None:
        """Return a node."""
        return await self._get(NODES, name)

    async def pod(self, name: str) -> Object | None:
        """Return a pod in the tunnel's namespace."""
        return await self._get(PODS, name, self.namespace)

    async def api_addresses(self) -> Collection[Address]:
        """Return the addresses of the Service ``kubernetes``."""
        service = await self._get(SERVICES, "kubernetes", "default")
        return () if service is None else service_addresses(service).cluster_addresses

    async def may_join(self, requester: Requester) -> bool:
        """Return whether ``requester`` may become a node.

        It is the check of kube-controller-manager for the first certificate of a kubelet.
        """
        spec = {
            "user": requester.username,
            "groups": sorted(requester.groups),
            "extra": {key: list(values) for key, values in requester.extra.items()},
            "resourceAttributes": {
                "verb": "create",
                "group": CERTIFICATE_SIGNING_REQUESTS.group,
                "version": "*",
                "resource": CERTIFICATE_SIGNING_REQUESTS.plural,
                "subresource": "nodeclient",
            },
        }
        review = await self._client.create(SUBJECT_ACCESS_REVIEWS, {"spec": spec})
        status = review.get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    async def _get(
        self, resource: Resource, name: str, namespace: str | None = None
    ) -> Object | None:
        try:
            return await self._client.get(resource, name, namespace)
        except NotFound:
            return None


class NotApproved(Exception):
    """Raised when a request is left alone."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.decision = Decision(message, reason)
