"""Decisions about certificate requests of the tunnel, and the facts that they depend on."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from yurttunnel.http.authority import Address
from yurttunnel.kube.resources import Object

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


@dataclass(frozen=True, slots=True)
class Lookups:
    """The objects to read from the API to decide about a request.

    ``node`` is the name of a node, ``pod`` that of a pod in the tunnel's namespace.
    ``further_names`` are host names, at most :data:`MAX_FURTHER_NAMES`; none may be the name of a
    node. ``may_join`` requests a check whether the requester may become a node, and ``api_service``
    the addresses of the Service ``kubernetes``.
    """

    node: str | None = None
    pod: str | None = None
    further_names: tuple[str, ...] = ()
    may_join: bool = False
    api_service: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """The API's answers; an object is ``None`` if it does not exist or was not requested.

    ``namespace`` is the tunnel's. ``other_nodes`` are the further names that are names of nodes.
    ``may_join`` is whether the requester may become a node (create
    ``certificatesigningrequests/nodeclient``). ``api_addresses`` are the addresses of the Service
    ``kubernetes``.
    """

    namespace: str
    node: Object | None = None
    pod: Object | None = None
    other_nodes: frozenset[str] = frozenset()
    may_join: bool = False
    api_addresses: frozenset[Address] = frozenset()


class NotApproved(Exception):
    """Raised when a request is left alone."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.decision = Decision(message, reason)
