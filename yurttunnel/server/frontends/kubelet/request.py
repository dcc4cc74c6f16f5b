"""A request on its way to a kubelet, as the middlewares and the proxy see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from yurttunnel.http.head import RequestHead
from yurttunnel.http.interfaces import IExchange
from yurttunnel.server.frontends.kubelet.destination import Destination

_VERBS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})

# What a kubelet serves: pkg/kubelet/server/server.go and auth.go of Kubernetes.
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
"""A parameter of a query that asks to follow something. Kubelets take everything but ``0`` and
``false`` for true (``Convert_Slice_string_To_bool`` of k8s.io/apimachinery pkg/runtime). Nothing
is decoded: who hides the name behind percent signs has what he follows end at a time limit."""


@dataclass(slots=True)
class InterceptedRequest:
    """One exchange, and what has been found out about it so far.

    ``request_id`` names it in the logs of both ends. ``destination`` and ``node``, the name of
    the node whose agent serves it, are empty until the proxy has found them. ``follows`` tells that
    the answer may begin, and end, at any time: a log is followed, or a watch. ``verb`` and
    ``path_class`` are the method and the first segment of the path, where kubelets know them.

    ``caller`` is who asks, as the server has made out, empty where it has not asked for that.
    ``client`` is the address for which a caller asks who speaks for others, empty where that is
    not known. ``authorization_used`` tells that the field ``Authorization`` was for the server
    itself; it is then not passed on. ``refusal`` says why the caller may not ask for this, empty
    where it may.
    ``proven`` tells that the connection has decided on ``destination``, not what the request says.
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
        """Look once: a query can be long, and several want to know."""
        self.follows, self.verb, self.path_class = self.exchange.head.derived(_looked_at)


Handler = Callable[[InterceptedRequest], None]
"""Answers a request, now or later."""


def _looked_at(head: RequestHead) -> tuple[bool, str, str]:
    return follows(head), verb_of(head), path_class_of(head)


def verb_of(head: RequestHead) -> str:
    """Return the method, or ``other`` for one that kubelets do not know."""
    return head.method.decode("ascii") if head.method in _VERBS else "other"


def path_class_of(head: RequestHead) -> str:
    """Return the first segment of the path, as ``/metrics``, or ``other`` for one not known.

    There are few of them, and they say nothing of pods and of whatever else is in a path.
    """
    path = head.target.partition(b"?")[0]
    segment = path.removeprefix(b"/").partition(b"/")[0]
    return f"/{segment.decode('ascii')}" if segment in _KUBELET_PATHS else "other"


def follows(head: RequestHead) -> bool:
    """Return whether the query asks to follow a log, or to watch."""
    return _FOLLOWS.search(head.target.partition(b"?")[2]) is not None
