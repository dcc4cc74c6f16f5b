"""The service proxy of a node as a real process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.hub.cloud import NODE
from tests.e2e.programs import Program, free_ports

HEALTH_PORT = 10256
METRICS_PORT = 10249
"""Those of kube-proxy; each test has a network of its own, so that they are free."""

SYNC_SECONDS = 1.0
"""How often the proxies of these tests look whether their rules are there."""

SYNCS = "kubeproxy_sync_proxy_rules_duration_seconds_count"
"""The metric of syncs that went well."""


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


class IdleProxy(Program):
    """``twist yurtproxy`` without Services and rules, which leaves the machine as it is.

    Its socket for commands is in ``state``.
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
