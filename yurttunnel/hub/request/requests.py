"""Requests as the API server parses them (``RequestInfo`` of k8s.io/apiserver)."""

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
        """Return the format of upstream's cache, such as ``pods.v1.core``."""
        return f"{self.name}.{self.version}.{self.group or 'core'}"


MAX_SELECTORS = 8 * 1024
"""Maximum length of both selectors of a request that the hub evaluates, in characters. A
requirement takes time and can be two characters long, and a head has room for half a megabyte."""


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The query of a list or a watch (``ListOptions`` of meta/v1), as sent and not evaluated."""

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int | None = None
    send_initial_events: bool = False
    allow_watch_bookmarks: bool = False


_LONG_RUNNING_SUBRESOURCES = frozenset({"log", "exec", "attach", "portforward", "proxy"})


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A parsed request.

    ``verb`` is get, list, watch, create, update, patch, delete or deletecollection. For a request
    that is not for a resource (``resource`` is ``None``: ``/version``, ``/apis/apps/v1``) it is the
    method in lower case. ``namespace`` is empty for all namespaces, and for cluster-scoped
    resources. ``path`` is decoded and has no query; none of its segments can refer to a parent
    directory.
    """

    verb: str
    path: str
    resource: ResourceType | None = None
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    options: ListOptions = ListOptions()
    long_running: bool = field(init=False, compare=False, repr=False)
    """Whether the request is long-running: its response has no defined end."""
    size: int = field(init=False, compare=False, repr=False)
    """The number of characters in it that the client chooses."""

    def __post_init__(self) -> None:
        """Compute both values once, because most requests are repeated many times."""
        long_running = self.verb == "watch" or self.subresource in _LONG_RUNNING_SUBRESOURCES
        object.__setattr__(self, "long_running", long_running)
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
        """Hash only the fields that differ most; hashing all takes as long as all other work."""
        return hash((self.verb, self.path))


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    ``component`` is the first word of User-Agent in lower case, up to its first slash; empty
    without a User-Agent. ``token`` is the bearer token, if any. ``local`` says that the request
    arrived on a loopback listener, where a request without a token has the node's identity.
    ``wants_caching`` says that it requests caching with ``Edge-Cache: true``; this field is not
    forwarded to the API.
    """

    component: str
    token: str = field(default="", repr=False)
    local: bool = True
    wants_caching: bool = False


class Form(NamedTuple):
    """The form of a response: ``json`` or ``protobuf``, and an optional transform.

    ``transform`` is empty for complete objects, else ``Table`` or ``PartialObjectMetadata`` (also
    for its lists); ``version`` is the version of ``meta.k8s.io`` for these two.
    """

    encoding: str
    transform: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return a single word, which is part of the key of a collection."""
        return (
            f"{self.encoding}:{self.transform}.{self.version}" if self.transform else self.encoding
        )


@dataclass(slots=True)
class HubCall:
    """A request on its way through the hub; ``forms`` are the accepted forms, the best first.

    ``share_holder`` is the address whose share of the limits for pods is charged, ``None`` for
    clients in the node's network, which have limits of their own. Shares are not per network, as
    elsewhere, because all pods of a node may be in one. ``body`` is the body of the request if it
    has been read already.

    Instances are not modified. They are not frozen, because creating a frozen one takes three times
    as long, and each request creates one.
    """

    exchange: IExchange
    request: ApiRequest
    caller: Caller
    forms: tuple[Form, ...]
    share_holder: str | None = None
    body: bytes | None = None
