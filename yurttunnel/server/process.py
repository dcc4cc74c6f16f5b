"""What a server process has in either mode, and before anybody can connect: figures and pages."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.ops.meta import meta_site
from yurttunnel.ops.metrics import Figures, server_registry
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.services import PortService
from yurttunnel.ops.steering import SteeringReport
from yurttunnel.server.agents import RefuseStreams
from yurttunnel.server.options import Settings
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.credit import MemoryBudget

MEMORY_BUDGET = 512 * 1024 * 1024
"""What the streams of all sessions may be promised together, bytes."""


class ServerProcess:
    """The parts that need no trust: they are there from the start, and until the end.

    ``certificates()`` gives when each certificate in use ends. ``meta`` listens on
    ``--meta-port``. What comes later is put into ``sessions``, a function that gives those of all
    agents, into ``steering``, one that tells how callers are led here, and added to ``readiness``
    and ``metrics``.
    """

    def __init__(
        self,
        reactor: Any,
        settings: Settings,
        certificates: Callable[[], Mapping[str, datetime.datetime]],
    ) -> None:
        counters = TunnelCounters()
        budget = MemoryBudget(MEMORY_BUDGET)
        self.context = SessionContext(reactor, counters, budget, RefuseStreams())
        self.registry = SessionRegistry(reactor)
        self.sessions: Callable[[], Iterable[TunnelSession]] = tuple
        self.steering: Callable[[], SteeringReport | None] = lambda: None
        self.readiness = Readiness()
        self.lag = ReactorLag(reactor)
        figures = Figures(
            counters=counters,
            sessions=lambda: [session.snapshot() for session in self.sessions()],
            certificates=certificates,
            memory=budget,
            reactor_lag=self.lag.worst,
        )
        self.metrics = server_registry(figures)
        site = meta_site(
            reactor,
            "yurttunnel-server",
            self.readiness,
            self.metrics,
            figures.sessions,
            lambda: self.steering(),
        )
        address, port = settings.insecure_address, settings.meta_port
        self.meta = PortService(partial(listen_tcp, reactor, "--meta-port", address, port, site))
