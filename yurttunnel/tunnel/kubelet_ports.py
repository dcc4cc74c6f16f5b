"""The default ports of kubelets (``pkg/cluster/ports`` of Kubernetes)."""

from __future__ import annotations

from typing import Final

KUBELET_PORT: Final = 10250
"""HTTPS: ``KubeletPort``."""

KUBELET_READ_ONLY_PORT: Final = 10255
"""HTTP without authentication, where it is enabled: ``KubeletReadOnlyPort``."""

KUBELET_PORTS: Final = frozenset({KUBELET_PORT, KUBELET_READ_ONLY_PORT})
