"""The rules of kernel mode, as endpoints are ejected and return."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint, key, service
from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.parts import KernelParts, Masquerade
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.rules import RETRY, KernelRules
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind, Protocol
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.programs import Finished

ONE, TWO, THREE = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2, 3))
PORTAL = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80)


class KernelRulesTests(SynchronousTestCase):
    """A service of three endpoints, by a program that says that it does what it is given."""

    def setUp(self):
        """Make its rules."""
        self.clock = Clock()
        self.transactions = []
        self.forgotten = []
        self.forgetting = lambda: succeed(0)
        programs = FakePrograms()
        programs.programs["nft"] = self.nft
        self.ejections = Ejections(self.clock, lambda where: Deferred())
        parts = KernelParts(Masquerade(), self.ejections.is_ejected)
        tables = Tables((4,), parts, {}.get, Networks())
        self.rules = KernelRules(
            self.clock, Nftables(programs, tables), tables, self.ejections, self.forget
        )
        endpoints = [each.endpoint for each in (ONE, TWO, THREE)]
        web = service(endpoints, key=key("web"), portals=(PORTAL,))
        self.successResultOf(self.rules.apply([Placed(web, None)]))
        self.transactions.clear()

    def nft(self, arguments, given):
        """Have no table of before, and take everything."""
        if arguments[0] == "list":
            return Finished(1, b"", "No such file or directory")
        self.transactions.append(given.decode())
        return Finished(0, b"", "")

    def forget(self, targets):
        """Note whose attempts are forgotten, and how many transactions there were by then."""
        self.forgotten.append((set(targets), len(self.transactions)))
        return self.forgetting()

    def eject(self, *targets):
        """Find some dead in one turn of the reactor."""
        for each in targets:
            self.ejections.eject(each, Outcome.SILENT)

    def test_found_dead_together(self):
        """They are gone in one transaction, before attempts at them are forgotten: no client is led
        from one to the other.
        """
        self.eject(ONE, TWO)
        self.clock.advance(0)
        (text,) = self.transactions
        self.assertIn("mod 1 map", text)
        self.assertEqual([({ONE, TWO}, 1)], self.forgotten)

    def test_found_dead_during_a_change(self):
        """It goes into the next transaction, which begins when the first is through."""
        first = Deferred()
        self.forgetting = lambda: first
        self.eject(ONE)
        self.clock.advance(0)
        self.eject(TWO)
        self.clock.advance(0)
        self.assertEqual(1, len(self.transactions))
        self.forgetting = lambda: succeed(0)
        first.callback(0)
        self.assertIn("mod 1 map", self.transactions[1])
        self.assertEqual([({ONE}, 1), ({TWO}, 2)], self.forgotten)

    def test_siblings(self):
        """They are the other endpoints of all services that an endpoint has, as of the last call;
        there are none of one that the kernel leads nothing to.
        """
        others = {each.endpoint for each in (TWO, THREE)}
        self.assertEqual(others, self.rules.siblings(ONE))
        self.assertIsNone(self.rules.siblings(Target(Protocol.UDP, ONE.endpoint)))
        both = [
            Placed(service([1, 4], key=key("web"), portals=(PORTAL,)), None),
            Placed(service([1, 5], key=key("api")), None),
            Placed(service([1, 6], key=key("socket")), 40000),
            Placed(service([3], key=key("alone")), None),
        ]
        self.successResultOf(self.rules.apply(both))
        self.assertEqual({endpoint(4), endpoint(5)}, self.rules.siblings(ONE))
        self.assertIsNone(self.rules.siblings(THREE))
        self.assertIsNone(self.rules.siblings(TWO))

    def test_a_kernel_that_does_not_forget(self):
        """It is told, and all of it is tried again."""
        self.forgetting = lambda: fail(SteeringFailed("it is locked"))
        self.eject(ONE)
        with capturedLogs() as logged:
            self.clock.advance(0)
        self.assertIn("it is locked", str([each.get("error") for each in logged]))
        self.forgetting = lambda: succeed(1)
        self.clock.advance(RETRY)
        self.assertEqual([{ONE}, {ONE}], [targets for targets, _ in self.forgotten])

    def test_the_end(self):
        """What was about to be changed is not, and no timer is left."""
        self.eject(ONE)
        self.ejections.stop()
        self.successResultOf(self.rules.leave())
        self.assertEqual([], self.clock.getDelayedCalls())
