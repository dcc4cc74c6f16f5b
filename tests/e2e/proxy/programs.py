"""The service proxy of a node as a real process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.hub.cloud import NODE
from tests.e2e.programs import Program, free_ports

HEALTH_PORT = 10256
METRICS_PORT = 10249
"""kube-proxy's ports; each test has a separate network, so that they are free."""

SYNC_SECONDS = 1.0
"""How often the proxies of these tests check their rules."""

SYNCS = "kubeproxy_sync_proxy_rules_duration_seconds_count"
"""The metric of successful syncs."""


class Proxy(Program):
    """``twist yurtproxy`` of the node; ``extra`` are the flags for what it watches."""

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


class IdleProxy(Program):
    """``twist yurtproxy`` without Services and rules, which leaves the machine unchanged.

    Its admin socket is in ``state``.
    """

    def __init__(self, reactor, directory: str, extra: Sequence[str] = ()) -> None:
        self.state = os.path.join(directory, "P")
        services, port = Path(directory, "services.yaml"), free_ports.take()
        services.write_text("{}")
        arguments = [
            "yurtproxy",
            *("--state-dir", self.state),
            *("--hostname-override", NODE),
            *("--services-file", str(services)),
            *("--proxy-backend", "none"),
            *("--bind-address", "127.0.0.1"),
            *("--healthz-bind-address", ""),
            *("--metrics-bind-address", f"127.0.0.1:{port}"),
            *extra,
        ]
        super().__init__(reactor, arguments, os.path.join(directory, "proxy.log"), port)
