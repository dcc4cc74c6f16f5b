"""Authorization in the quickstart's API: everything for its user, what nodes need for the node."""

from __future__ import annotations

from zope.interface import implementer

from yurtlab.api.access import IAuthorizer, MastersOnly, Request, User
from yurtlab.api.resources import EVENTS, LEASES, NODES, PODS, Target

_MASTERS_ONLY = MastersOnly()

_READING = frozenset({"GET", "HEAD"})

_WRITING = frozenset(
    {
        ("POST", NODES, None),
        ("PUT", NODES, "status"),
        ("PUT", PODS, "status"),
        ("DELETE", PODS, None),
        *((method, EVENTS, None) for method in ("POST", "PUT", "PATCH")),
        *((method, LEASES, None) for method in ("POST", "PUT", "PATCH")),
    }
)
"""What the node may write, as method, kind and subresource: less than a node of a cluster."""


@implementer(IAuthorizer)
class NodeAndMasters:
    """Allows ``node`` to read objects, and to update its own and its pods' status; masters all.

    The hub lets every program of this machine use the node's identity. Pods are processes of the
    user who started the quickstart, so the node must not create them or execute commands in them.
    """

    def __init__(self, node: str) -> None:
        self._user = f"system:node:{node}"

    def check(self, user: User, request: Request) -> None:
        """Return if the request is allowed, else raise Forbidden; see ``IAuthorizer``."""
        if user.name != self._user or not _is_for_nodes(request.method, request.target):
            _MASTERS_ONLY.check(user, request)


def _is_for_nodes(method: str, target: Target | None) -> bool:
    if target is None:
        return method in _READING
    if method in _READING:
        return target.subresource is None
    if method == "DELETE" and target.name is None:
        return False
    return (method, target.kind, target.subresource) in _WRITING
