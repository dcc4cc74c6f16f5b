"""Tests of the back end without rules."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.interfaces import IConntrack, IPortClaims, IRules, ProxiedService
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.state.virtual_services import (
    Key,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)
from yurttunnel.steering.interfaces import Applied

KEY = Key(ServicePortName("shop", "web", "http"), 4, Protocol.TCP, Scope.ALL)
PORTALS = (
    Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80),
    Portal(PortalKind.NODE_PORT, None, 30080),
)


class NoRulesTests(SynchronousTestCase):
    """It only logs the rules that others would create."""

    def logged(self, rules, port):
        """Apply; return the log messages."""
        proxied = [ProxiedService(VirtualService(KEY, PORTALS, ()), port)]
        with capturedLogs() as events:
            self.assertEqual(Applied(), self.successResultOf(rules.apply(proxied)))
        self.assertEqual(
            {LogLevel.debug}, {event["log_level"] for event in events} or {LogLevel.debug}
        )
        return [event["sentence"] for event in events]

    def test_apply(self):
        """Each portal is logged, and again when its target changes."""
        rules = NoRules()
        name = "shop/web:http TCP IPv4"
        self.assertEqual(
            [
                f"{name}: cluster IP 10.96.0.1 port 80 would be redirected to port 4000",
                f"{name}: node port * port 30080 would be redirected to port 4000",
            ],
            self.logged(rules, 4000),
        )
        self.assertEqual([], self.logged(rules, 4000))
        self.assertEqual(
            f"{name}: cluster IP 10.96.0.1 port 80 would be refused",
            self.logged(rules, None)[0],
        )

    def test_nothing_else(self):
        """There is nothing to remove, to claim or to delete."""
        rules = NoRules()
        for interface in (IRules, IPortClaims, IConntrack):
            verifyObject(interface, rules)
        self.assertFalse(self.successResultOf(rules.remove()))
        self.assertIsNone(rules.generation())
        self.assertEqual({}, at_once(rules.claim({KEY: VirtualService(KEY, PORTALS, ())})))
        self.assertEqual(0, self.successResultOf(rules.delete_entries(4, [])))
