"""What is known of those who ask, beyond their names."""

from __future__ import annotations

from typing import Any

from yurtlab.api.access import User

NODES_GROUP = "system:nodes"
NODE_PREFIX = "system:node:"
"""What the group and the names of kubelets are."""


def node_of(user: User) -> str | None:
    """Return the node whose kubelet ``user`` is, ``None`` when it is none."""
    if NODES_GROUP not in user.groups or not user.name.startswith(NODE_PREFIX):
        return None
    return user.name.removeprefix(NODE_PREFIX)


def user_info(user: User) -> dict[str, Any]:
    """Return the ``UserInfo`` of authentication.k8s.io."""
    extra = {key: list(values) for key, values in user.extra.items()}
    info = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {key: value for key, value in info.items() if value}
