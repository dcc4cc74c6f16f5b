"""Who may do what with the quickstart's API: its user everything, the node what nodes need."""

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
"""What the node writes, as method, kind and subresource: less than a cluster's node may."""


@implementer(IAuthorizer)
class NodeAndMasters:
    """Lets ``node`` read objects and tell of itself and its pods, beside what masters may do.

    The hub lends the identity of its node to every program of this machine. Pods are processes of
    the user who has started the quickstart, so they are not for the node to make or to enter.
    """

    def __init__(self, node: str) -> None:
        self._user = f"system:node:{node}"

    def check(self, user: User, request: Request) -> None:
        """Let a request pass, or raise Forbidden; see ``IAuthorizer``."""
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
