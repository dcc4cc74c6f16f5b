"""A request as the API server understands it (``RequestInfo`` of k8s.io/apiserver)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from yurttunnel.http.interfaces import IExchange


class ResourceType(NamedTuple):
    """A resource of one version of one API group; ``group`` is empty for the core group."""

    group: str
    version: str
    name: str

    def __str__(self) -> str:
        """Return it as upstream's cache has it: ``pods.v1.core``."""
        return f"{self.name}.{self.version}.{self.group or 'core'}"


LONGEST_SELECTORS = 8 * 1024
"""Characters of both selectors of a request that are looked into here. Each requirement takes time
and may have two characters, and a head has room for half a megabyte."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query of a list or a watch (``ListOptions`` of meta/v1); as sent, not evaluated."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int | None = None
    send_initial_events: bool = False
    allow_watch_bookmarks: bool = False


_LASTING_SUBRESOURCES = frozenset({"log", "exec", "attach", "portforward", "proxy"})


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """What is asked for.

    ``verb`` is one of get, list, watch, create, update, patch, delete and deletecollection; for
    what is no resource (``resource`` is ``None``: ``/version``, ``/apis/apps/v1``) the method in
    lower case. ``namespace`` is empty for all of them and for what has none. ``path`` is without
    the query, and decoded; each of its segments is a name that cannot leave a directory.
    """

    verb: str
    path: str
    resource: ResourceType | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    options: ListOptions = ListOptions()
    lasts: bool = field(init=False, compare=False, repr=False)
    """Whether the answer lasts as long as somebody wants it to."""
    size: int = field(init=False, compare=False, repr=False)
    """How many characters of it its client chooses."""

    def __post_init__(self) -> None:
        """Look once: most requests come again and again."""
        lasts = self.verb == "watch" or self.subresource in _LASTING_SUBRESOURCES
        object.__setattr__(self, "lasts", lasts)
        options = self.options
        chosen = (
            self.path,
            options.label_selector,
            options.field_selector,
            options.continue_token,
            options.resource_version,
            options.resource_version_match,
        )
        object.__setattr__(self, "size", sum(map(len, chosen)))

    def __hash__(self) -> int:
        """Return what tells most requests apart, since the whole would take as long as all else."""
        return hash((self.verb, self.path))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    ``component`` is the first word of User-Agent in lower case, cut at its first slash; empty
    when there is none. ``token`` is the bearer token, if any. ``local`` says that it came by a
    loopback listener, where a request without a token has the node's identity. ``keep`` says that
    it asks for its answer to be kept, by ``Edge-Cache: true``; the API does not get that field.
    """

    component: str
    token: str = field(default="", repr=False)
    local: bool = True
    keep: bool = False


class Form(NamedTuple):
    """The form of an answer: ``json`` or ``protobuf``, whole or transformed.

    ``transform`` is empty for objects as they are, ``Table`` or ``PartialObjectMetadata``
    (its lists, too); ``version`` is that of ``meta.k8s.io`` for the latter two.
    """

    media: str
    transform: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return it as one word, as collections are keyed by it."""
        return f"{self.media}:{self.transform}.{self.version}" if self.transform else self.media


@dataclass(slots=True)
class HubCall:
    """One request on its way through the hub; ``forms`` are those accepted, the best first.

    ``holder`` is whose share it takes of what all pods have together: that of an address. ``None``
    is for clients in the node's network, who share nothing with those. Not by networks, as
    elsewhere: all pods of a node may be in one. ``body`` is that of the request where it has been
    read already, else it is still to come.

    Nothing of it is changed. It is not frozen, as to make it then takes three times as long, which
    each request would.
    """

    exchange: IExchange
    request: ApiRequest
    caller: Caller
    forms: tuple[Form, ...]
    holder: str | None = None
    body: bytes | None = None
