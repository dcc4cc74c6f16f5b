"""The service proxy of a node as a real process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.e2e.hub.cloud import NODE
from tests.e2e.programs import Program

HEALTH_PORT = 10256
METRICS_PORT = 10249
"""Those of kube-proxy; each test has a network of its own, so that they are free."""

SYNC_SECONDS = 1.0
"""How often the proxies of these tests look whether their rules are there."""


class Proxy(Program):
    """``twist yurtproxy`` of the node; what it watches is said by ``extra``."""

    def __init__(
        self,
        reactor,
        directory: str,
        *,
        extra: Sequence[str] = (),
        name: str = "proxy",
        prefix: tuple[str, ...] = (),
    ) -> None:
        arguments = [
            "yurtproxy",
            *("--hostname-override", NODE),
            *("--iptables-sync-period", f"{SYNC_SECONDS:g}s"),
            *("--iptables-min-sync-period", "100ms"),
            *("--drain-timeout", "2s"),
            *extra,
        ]
        log_path = os.path.join(directory, f"{name}.log")
        super().__init__(reactor, arguments, log_path, METRICS_PORT, prefix)
