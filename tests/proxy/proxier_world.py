"""A proxier with fakes around it."""

from __future__ import annotations

import math
from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from tests.proxy.fakes import (
    FakeChecks,
    FakeClaims,
    FakeConntrack,
    FakeRules,
    FakeSockets,
    FakeSource,
)
from tests.proxy.services import key
from yurttunnel.ops import slices
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.proxier import Proxier
from yurttunnel.proxy.settings import SyncSettings
from yurttunnel.proxy.socket_manager import SocketManager
from yurttunnel.proxy.state.virtual_services import (
    Portal,
    PortalKind,
    Protocol,
)

SETTINGS = SyncSettings(period=30.0, min_period=1.0, drain=5.0, removes_rules=False)
CLUSTER_IP = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80)
NODE_PORT = Portal(PortalKind.NODE_PORT, None, 30080)
DNS = key("dns", Protocol.UDP)


class ProxierTestCase(SynchronousTestCase):
    """A proxier among fakes."""

    settings = SETTINGS

    def setUp(self):
        """Start it without a state."""
        self.clock = Clock()
        # Otherwise a collection of garbage might add turns.
        self.patch(slices, "WORK_SECONDS", math.inf)
        self.addresses = frozenset([ip_address("192.0.2.1"), ip_address("2001:db8::1")])
        self.source = FakeSource()
        self.claims = FakeClaims()
        self.sockets = FakeSockets()
        self.rules = FakeRules()
        self.conntrack = FakeConntrack()
        self.checks = FakeChecks()
        self.health = SyncHealth(self.clock, self.settings.period, lambda: True)
        self.manager = self.make_manager()
        self.proxier = Proxier(
            self.clock,
            self.settings,
            self.source,
            self.manager,
            self.claims,
            self.rules,
            self.conntrack,
            self.checks,
            self.health,
            lambda: self.addresses,
        )
        self.warnings = Logged(self, "yurttunnel", level=LogLevel.warn)
        self.proxier.startService()

    kernel = None

    def make_manager(self):
        """Use sockets, except for what the kernel carries."""
        return SocketManager(self.clock, dict.fromkeys(Protocol, self.sockets), self.kernel)

    def set(self, *services, **more):
        """Set another state, and run the next reactor turn."""
        self.source.set(*services, **more)
        self.clock.advance(0)
        self.clock.advance(0)

    def pass_period(self):
        """Run the next periodic sync."""
        self.clock.advance(self.settings.min_period)
        self.clock.advance(self.settings.period)
