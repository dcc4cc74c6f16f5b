"""Tests of stopping a proxier, and of removing its rules."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.defer import Deferred

from tests.proxy.proxier_world import SETTINGS, ProxierTestCase
from tests.proxy.services import key, service
from yurttunnel.proxy.proxier import REMOVAL_SECONDS
from yurttunnel.proxy.state.virtual_services import (
    HealthCheckNodePort,
    Scope,
)


class EndTests(ProxierTestCase):
    """A graceful shutdown."""

    def test_no_clients_are_taken_while_it_drains(self):
        """Load balancers are told to send none; a restarted proxy gets clients again."""
        self.set(service([1]))
        (socket,) = self.sockets.opened
        socket.active = 1
        self.assertTrue(self.health.accepts_clients)
        stopped = self.proxier.stopService()
        self.assertFalse(self.health.accepts_clients)
        self.assertEqual("draining: the proxy is about to stop", self.proxier.problem())
        socket.drained()
        self.successResultOf(stopped)
        self.proxier.startService()
        self.assertTrue(self.health.accepts_clients)
        self.assertNotIn("draining", str(self.proxier.problem()))
        self.successResultOf(self.proxier.stopService())

    def test_what_outlived_a_traffic_policy_drains(self):
        """The proxy does not wait forever."""
        self.set(service([1]))
        (former,) = self.sockets.opened
        former.active = 1
        self.clock.advance(1)
        self.set(service([1], key=key(scope=Scope.INTERNAL)))
        stopped = self.proxier.stopService()
        self.assertEqual([None, 5.0], former.drains)
        self.assertNoResult(stopped)
        former.drained()
        self.successResultOf(stopped)

    def test_rules_stay(self):
        """The next process takes them over; connections have their time."""
        self.set(service([1]), checks=[HealthCheckNodePort(30000, "shop", "web", 1)])
        self.assertEqual({30000}, self.checks.desired.keys())
        (socket,) = self.sockets.opened
        socket.active = 1
        stopped = self.proxier.stopService()
        self.assertEqual(0, self.rules.removed)
        self.assertEqual([5.0], socket.drains)
        self.assertEqual((None, {}), (self.claims.wanted, self.checks.desired))
        self.assertNoResult(stopped)
        socket.drained()
        self.successResultOf(stopped)
        self.assertEqual([], self.clock.getDelayedCalls())


class RemovalTests(ProxierTestCase):
    """A graceful shutdown that removes the rules."""

    settings = replace(SETTINGS, removes_rules=True)

    def test_rules_go_first(self):
        """Then no rule leads to closed sockets."""
        self.set(service([1]))
        self.successResultOf(self.proxier.stopService())
        self.assertEqual(1, self.rules.removed)
        self.assertEqual([5.0], self.sockets.opened[0].drains)

    def test_they_cannot_be_removed(self):
        """The log says what to do, and the proxy ends all the same."""
        self.set(service([1]))
        self.rules.failure = "the lock is held"
        self.successResultOf(self.proxier.stopService())
        self.assertIn("run yurttunnel proxy --cleanup", self.warnings[-1])

    def test_their_removal_hangs(self):
        """It is cancelled after its timeout."""
        self.set(service([1]))
        hanging = Deferred()
        self.rules.remove = lambda: hanging
        stopped = self.proxier.stopService()
        self.clock.advance(REMOVAL_SECONDS)
        self.clock.advance(0)
        self.successResultOf(stopped)
        self.assertIn("left behind", self.warnings[-1])
