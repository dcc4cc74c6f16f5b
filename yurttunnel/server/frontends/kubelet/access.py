"""What a request to a kubelet needs permission for, as kubelets see it themselves.

The rules are those of pkg/kubelet/server/auth.go of Kubernetes 1.33 with its feature
KubeletFineGrainedAuthz (KEP-2862): the method becomes a verb, and the path a subresource of the
node. For some paths there are two, of which either is enough.

In one thing this is stricter than kubelets. A WebSocket begins with GET, so whoever may ``get``
nodes/proxy, as much monitoring may, runs commands in every container of a kubelet. Here what runs
something, or connects to it, needs ``create`` whatever the method is, as KEP-4006 has it for pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from yurttunnel.http.head import RequestHead

# HEAD is not among them, nor for kubelets: it is allowed to whoever is allowed every verb.
_VERBS = {
    b"POST": "create",
    b"GET": "get",
    b"PUT": "update",
    b"PATCH": "patch",
    b"DELETE": "delete",
}

_RUN_VERB = "create"
_RUNNING = frozenset({b"exec", b"attach", b"portForward", b"run", b"cri"})
"""What the paths begin with that run something in a container, or connect to it.

``cri`` is where kubelets with a container runtime of their own (dockershim, before 1.24) had what
they redirected exec, attach and portForward to.
"""

_EVERYTHING = ("proxy",)
_SUBRESOURCES = {
    b"pods": ("pods", "proxy"),
    b"runningpods": ("pods", "proxy"),
    b"healthz": ("healthz", "proxy"),
    b"configz": ("configz", "proxy"),
    b"statusz": ("statusz", "proxy"),
    b"stats": ("stats",),
    b"metrics": ("metrics",),
    b"logs": ("log",),
    b"checkpoint": ("checkpoint",),
}


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody wants to do: ``verb`` on ``subresource`` of ``node``.

    An empty ``node`` is every node, an empty ``verb`` none that the API knows.
    """

    verb: str
    subresource: str
    node: str

    def __str__(self) -> str:
        """Return it in the words of RBAC."""
        where = f"node {self.node}" if self.node else "every node"
        return f"{self.verb or 'use'} nodes/{self.subresource} of {where}"


def accesses(head: RequestHead, node: str, is_kubelet: bool) -> list[Access]:
    """List what allows a request, of which one is enough.

    What is not a kubelet (``is_kubelet``) serves something else under these paths, so only
    whoever may do everything with the node is allowed.
    """
    verb = _VERBS.get(head.method, "")
    first = _first_segment(head.target)
    if verb and (first is None or first in _RUNNING):
        verb = _RUN_VERB
    subresources = _SUBRESOURCES.get(first or b"", _EVERYTHING) if is_kubelet else _EVERYTHING
    return [Access(verb, subresource, node) for subresource in subresources]


def _first_segment(target: bytes) -> bytes | None:
    """Return what tells a path's use; ``None`` if it may be served as another one."""
    path = target.partition(b"?")[0]
    first, *others = [unquote_to_bytes(segment) for segment in path.removeprefix(b"/").split(b"/")]
    if any(b"/" in each or each in (b".", b"..") for each in (first, *others)):
        return None
    if b"" in others[:-1] or (others and not first):
        return None
    return first
