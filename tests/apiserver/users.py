"""The groups and attributes of users."""

from __future__ import annotations

from typing import Any

from yurtlab.api.access import User

NODES_GROUP = "system:nodes"
NODE_PREFIX = "system:node:"
"""The group and the prefix of the names of kubelets."""


def node_of(user: User) -> str | None:
    """Return the node of a kubelet, or ``None`` if ``user`` is no kubelet."""
    if NODES_GROUP not in user.groups or not user.name.startswith(NODE_PREFIX):
        return None
    return user.name.removeprefix(NODE_PREFIX)


def user_info(user: User) -> dict[str, Any]:
    """Return the ``UserInfo`` of authentication.k8s.io."""
    extra = {key: list(values) for key, values in user.extra.items()}
    info = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {key: value for key, value in info.items() if value}
