"""What is to be known about a certificate request of the tunnel, and what becomes of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from yurttunnel.http.authority import Address
from yurttunnel.kube.resources import Object

MOST_FURTHER_NAMES = 8
"""How many host names beside its node's own an agent may ask for: each is looked up as a node's.

Nodes report at most a few: a host name, and one inside and one outside of a provider's network.
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
    """What becomes of a request: it is approved, or left alone for ``reason``.

    ``message`` is for the operator. It completes "the certificate request NAME ...": for one
    that is approved why, for one that is left alone why not, and what to do.
    """

    message: str
    reason: Reason | None = None

    @property
    def approved(self) -> bool:
        """It is approved."""
        return self.reason is None

    @property
    def may_change(self) -> bool:
        """It may be another one later: it is about objects that come and change."""
        return self.reason in _CHANGING

    @property
    def is_alarming(self) -> bool:
        """It is left alone, and its owner or somebody else has to do something about that."""
        return self.reason not in (None, Reason.OTHER_INSTALLATION)


@dataclass(frozen=True, slots=True)
class Lookups:
    """What has to be read from the API to decide about a request.

    ``node`` is the name of a node, ``pod`` that of a pod in the tunnel's namespace.
    ``further_names`` are host names, at most :data:`MOST_FURTHER_NAMES`, none of which may be
    the name of a node. With ``may_join`` it is whether the requester may become a node, with
    ``api_service`` the addresses of the Service ``kubernetes``.
    """

    node: str | None = None
    pod: str | None = None
    further_names: tuple[str, ...] = ()
    may_join: bool = False
    api_service: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the API says; an object is ``None`` when there is none, or it was not to be looked up.

    ``namespace`` is the tunnel's. ``other_nodes`` are those of the further names that are names
    of nodes. ``may_join`` says that the requester may become a node (create
    ``certificatesigningrequests/nodeclient``), ``api_addresses`` are those of the Service
    ``kubernetes``.
    """

    namespace: str
    node: Object | None = None
    pod: Object | None = None
    other_nodes: frozenset[str] = frozenset()
    may_join: bool = False
    api_addresses: frozenset[Address] = frozenset()


class LeftAlone(Exception):
    """A request that is left alone."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.decision = Decision(message, reason)
