"""A request to a kubelet, as the middlewares and the proxy see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange
from yurttunnel.server.frontends.kubelet.destination import Destination

_VERBS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})

# The paths of a kubelet: pkg/kubelet/server/server.go and auth.go of Kubernetes.
_KUBELET_PATHS = frozenset(
    {
        b"attach",
        b"checkpoint",
        b"configz",
        b"containerLogs",
        b"cri",
        b"debug",
        b"exec",
        b"flagz",
        b"healthz",
        b"logs",
        b"metrics",
        b"pods",
        b"portForward",
        b"run",
        b"runningpods",
        b"stats",
        b"statusz",
    }
)

_FOLLOWS = re.compile(rb"(?<![^&])(?:follow|watch)(?![^=&])(?!=(?:0|(?i:false))(?![^&]))")
"""A query parameter that requests following. Kubelets treat everything except ``0`` and ``false``
as true (``Convert_Slice_string_To_bool`` of k8s.io/apimachinery pkg/runtime). Nothing is decoded:
if the name is percent-encoded, the response timeout applies."""


@dataclass(slots=True)
class InterceptedRequest:
    """One exchange, and what is known about it so far.

    ``request_id`` identifies it in the logs of both ends. ``destination``, and ``node``, the name
    of the node whose agent serves it, are empty until the proxy has set them. ``follows`` is
    whether the response may begin and end at any time: a followed log, or a watch. ``verb`` and
    ``path_class`` are the method and the first path segment, if kubelets know them.

    ``caller`` is the authenticated caller, empty if authentication was not needed. ``client`` is
    the address of the client for which a caller acts, empty if unknown. ``authorization_used`` is
    whether the field ``Authorization`` was for the server itself; it is then not passed on.
    ``refusal`` is why the caller may not make the request, empty if it may. ``proven`` is whether
    the connection has determined ``destination``, and not the request.
    """

    exchange: IExchange
    request_id: str
    destination: Destination | None = None
    node: str = ""
    caller: str = ""
    client: str = ""
    authorization_used: bool = False
    refusal: str = ""
    proven: bool = False
    follows: bool = field(init=False)
    verb: str = field(init=False)
    path_class: str = field(init=False)

    def __post_init__(self) -> None:
        """Parse once: a query can be long, and several middlewares need the result."""
        self.follows, self.verb, self.path_class = self.exchange.head.derived(_parse_request)


Handler = Callable[[InterceptedRequest], None]
"""Responds to a request, now or later."""


def _parse_request(head: RequestHead) -> tuple[bool, str, str]:
    return follows(head), verb_of(head), path_class_of(head)


def verb_of(head: RequestHead) -> str:
    """Return the method, or ``other`` if kubelets do not know it."""
    return head.method.decode("ascii") if head.method in _VERBS else "other"


def path_class_of(head: RequestHead) -> str:
    """Return the first path segment, such as ``/metrics``, or ``other`` if it is unknown.

    There are few values, and they reveal nothing about pods or the rest of a path.
    """
    path = head.target.partition(b"?")[0]
    segment = path.removeprefix(b"/").partition(b"/")[0]
    return f"/{segment.decode('ascii')}" if segment in _KUBELET_PATHS else "other"


def follows(head: RequestHead) -> bool:
    """Return whether the query requests a followed log or a watch."""
    return _FOLLOWS.search(head.target.partition(b"?")[2]) is not None
