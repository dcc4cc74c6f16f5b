"""The permissions that a request to a kubelet needs, by the kubelets' own rules.

The rules are those of pkg/kubelet/server/auth.go of Kubernetes 1.33 with the feature
KubeletFineGrainedAuthz (KEP-2862): the method maps to a verb, and the path to a subresource of the
node. Some paths map to two subresources, of which either suffices.

In one point the rules are stricter than the kubelets'. A WebSocket begins with GET, so everyone who
may ``get`` nodes/proxy, as many monitoring programs may, can run commands in every container of a
kubelet. Here requests that run something, or connect to it, need ``create`` whatever their method,
as KEP-4006 requires for pods.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from yurttunnel.http.head import RequestHead

# HEAD is omitted, as in kubelets: it needs permission for all verbs.
_VERBS = {
    b"POST": "create",
    b"GET": "get",
    b"PUT": "update",
    b"PATCH": "patch",
    b"DELETE": "delete",
}

_RUN_VERB = "create"
_RUNNING = frozenset({b"exec", b"attach", b"portForward", b"run", b"cri"})
"""The first path segments of requests that run something in a container, or connect to it.

``cri`` was the target to which kubelets with a built-in container runtime (dockershim, before 1.24)
redirected exec, attach and portForward.
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


class Access(NamedTuple):
    """A requested action: ``verb`` on ``subresource`` of ``node``.

    An empty ``node`` means every node, an empty ``verb`` one that the API does not know.
    """

    verb: str
    subresource: str
    node: str

    def __str__(self) -> str:
        """Return it in the terms of RBAC."""
        where = f"node {self.node}" if self.node else "every node"
        return f"{self.verb or 'use'} nodes/{self.subresource} of {where}"


def accesses(head: RequestHead, node: str, is_kubelet: bool) -> list[Access]:
    """List the permissions of which one suffices for a request.

    A destination that is not a kubelet (not ``is_kubelet``) serves something else under these
    paths, so it needs permission for everything on the node.
    """
    verb = _VERBS.get(head.method, "")
    first = _first_segment(head.target)
    if verb and (first is None or first in _RUNNING):
        verb = _RUN_VERB
    subresources = _SUBRESOURCES.get(first or b"", _EVERYTHING) if is_kubelet else _EVERYTHING
    return [Access(verb, subresource, node) for subresource in subresources]


def _first_segment(target: bytes) -> bytes | None:
    """Return the first path segment, ``None`` if the path is ambiguous."""
    path = target.partition(b"?")[0]
    first, *others = [unquote_to_bytes(segment) for segment in path.removeprefix(b"/").split(b"/")]
    if any(b"/" in each or each in (b".", b"..") for each in (first, *others)):
        return None
    if b"" in others[:-1] or (others and not first):
        return None
    return first
