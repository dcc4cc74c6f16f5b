"""Who asks (``user.Info`` of k8s.io/apiserver)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AUTHENTICATED = "system:authenticated"
"""The group of everybody who is known."""

MASTERS = "system:masters"
"""The group whose members may do everything."""

NODES_GROUP = "system:nodes"
NODE_PREFIX = "system:node:"
"""What the group and the names of kubelets are."""


@dataclass(frozen=True, slots=True)
class User:
    """Who asks: a name, groups, and what else is known."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The node whose kubelet this is, ``None`` when it is none."""
        if NODES_GROUP not in self.groups or not self.name.startswith(NODE_PREFIX):
            return None
        return self.name.removeprefix(NODE_PREFIX)

    def as_user_info(self) -> dict[str, Any]:
        """Return the ``UserInfo`` of authentication.k8s.io."""
        extra = {key: list(values) for key, values in self.extra.items()}
        info = {
            "username": self.name,
            "uid": self.uid,
            "groups": list(self.groups),
            "extra": extra,
        }
        return {key: value for key, value in info.items() if value}
