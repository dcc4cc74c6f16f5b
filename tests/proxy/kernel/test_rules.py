"""Tests of the rules of kernel mode, as endpoints are ejected and return."""

from __future__ import annotations

import dataclasses
import math
from ipaddress import ip_address

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import endpoint, key, service
from tests.steering.firewall.fakes import FakePrograms
from yurttunnel.ops import slices
from yurttunnel.ops.programs import CompletedProgram
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.kernel import rules
from yurttunnel.proxy.kernel.ejections import Ejections
from yurttunnel.proxy.kernel.marks import RETRIED, set_mark
from yurttunnel.proxy.kernel.parts import KernelParts, Masquerade
from yurttunnel.proxy.kernel.prober import Outcome
from yurttunnel.proxy.kernel.rules import ANSWER_SECONDS, RETRY_SECONDS, KernelRules
from yurttunnel.proxy.kernel.targets import Target
from yurttunnel.proxy.rules.nftables.rules import Nftables
from yurttunnel.proxy.rules.nftables.tables import Networks, Tables
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind, Protocol, Scope
from yurttunnel.steering.failures import SteeringFailed

ONE, TWO, THREE = (Target(Protocol.TCP, endpoint(number)) for number in (1, 2, 3))
PORTAL = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80)


class KernelRulesTests(SynchronousTestCase):
    """A service of three endpoints, with a program that accepts all input."""

    def setUp(self):
        """Create its rules."""
        self.clock = Clock()
        # Otherwise a collection of garbage might add turns.
        self.patch(slices, "WORK_SECONDS", math.inf)
        self.transactions = []
        self.deleted = []
        self.ejected_siblings = []
        self.forgetting = lambda: succeed(0)
        programs = FakePrograms()
        programs.programs["nft"] = self.nft
        self.probes = []
        self.ejections = Ejections(self.clock, self.probe)
        parts = KernelParts(Masquerade(), self.ejections.is_ejected, self.ejections.is_in_doubt)
        tables = Tables((4,), parts, {}.get, Networks())
        self.rules = KernelRules(
            self.clock,
            Nftables(self.clock, programs, tables),
            tables,
            self.ejections,
            self.delete_entries,
        )
        endpoints = [each.endpoint for each in (ONE, TWO, THREE)]
        web = service(endpoints, key=key("web"), portals=(PORTAL,))
        self.successResultOf(self.rules.apply([ProxiedService(web, None)]))
        self.transactions.clear()

    def nft(self, arguments, given):
        """Report no existing table, and accept everything."""
        if arguments[0] == "list":
            return CompletedProgram(1, b"", "No such file or directory")
        self.transactions.append(given.decode())
        return CompletedProgram(0, b"", "")

    def delete_entries(self, targets, mark):
        """Record which attempts are deleted, and the number of transactions by then; and for
        ejected endpoints, beside returned ones, attempts without a mark.
        """
        if mark == 0 and self.rules.siblings(next(iter(targets))):
            self.ejected_siblings.append((set(targets), len(self.transactions)))
            return self.forgetting()
        self.assertEqual(mark, RETRIED if self.rules.siblings(next(iter(targets))) else 0)
        self.deleted.append((set(targets), len(self.transactions)))
        return self.forgetting()

    def probe(self, family):
        """Have the test set the result."""
        self.probes.append((family, Deferred()))
        return self.probes[-1][1]

    def eject(self, *targets):
        """Detect dead endpoints in one reactor turn."""
        for each in targets:
            self.ejections.eject(each, Outcome.SILENT)

    def test_found_dead_together(self):
        """They are removed in one transaction before attempts at them are deleted, so that no
        client is sent from one to the other.
        """
        self.eject(ONE, TWO)
        self.clock.advance(0)
        (text,) = self.transactions
        self.assertIn("mod 1 map", text)
        self.assertEqual([({ONE, TWO}, 1)], self.deleted)

    def test_found_dead_during_a_change(self):
        """It is part of the next transaction, which starts when the first has finished."""
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
        self.assertEqual([({ONE}, 1), ({TWO}, 2)], self.deleted)

    def test_the_last_one(self):
        """When the last endpoint is found dead, the others are probed again, as they may be back.
        Until the result is known, clients are sent to all, and refusals are dropped; then to those
        that answer, wherever the clients were sent before.
        """
        self.eject(ONE, TWO)
        self.clock.advance(0)
        self.assertEqual([], self.probes)
        self.eject(THREE)
        self.clock.advance(0)
        self.assertEqual([ONE.endpoint, TWO.endpoint], [family for family, _ in self.probes])
        self.assertIn("mod 3 map", self.transactions[-1])
        self.assertIn(set_mark(RETRIED), self.transactions[-1])
        for (_, answer), outcome in zip(
            self.probes, (Outcome.REFUSED, Outcome.ANSWERED), strict=True
        ):
            answer.callback(outcome)
        self.assertEqual([], self.ejected_siblings)
        self.clock.advance(0)
        self.assertIn("mod 1 map", self.transactions[-1])
        self.assertEqual([({ONE, THREE}, len(self.transactions))], self.ejected_siblings)

    def test_none_is_left(self):
        """If all are dead, clients get their refusals, once that is known."""
        self.eject(ONE, TWO, THREE)
        self.clock.advance(0)
        self.assertIn(set_mark(RETRIED), self.transactions[-1])
        for _, answer in list(self.probes):
            answer.callback(Outcome.REFUSED)
        self.clock.advance(0)
        self.assertEqual(2, len(self.probes))
        self.assertIn("mod 3 map", self.transactions[-1])
        self.assertNotIn(set_mark(RETRIED), self.transactions[-1])

    def test_service_of_ejected_endpoints(self):
        """The endpoints of a service are probed at once if all of them are ejected."""
        self.eject(ONE, TWO)
        self.clock.advance(0)
        web = service([1, 2], key=key("web"), portals=(PORTAL,))
        self.successResultOf(self.rules.apply([ProxiedService(web, None)]))
        self.assertEqual([ONE.endpoint, TWO.endpoint], [family for family, _ in self.probes])
        self.assertIn(set_mark(RETRIED), self.transactions[-1])
        self.successResultOf(self.rules.apply([ProxiedService(web, None)]))
        self.assertEqual(2, len(self.probes))

    def test_a_new_one(self):
        """A new endpoint gets the clients of ejected ones, once."""
        self.eject(ONE, TWO, THREE)
        self.clock.advance(0)
        self.apply([1, 2, 3, 4])
        self.clock.advance(0)
        self.assertEqual([({ONE, TWO, THREE}, len(self.transactions))], self.ejected_siblings)
        self.apply([1, 2, 4])
        self.clock.advance(0)
        self.assertEqual(1, len(self.ejected_siblings))

    def test_new_service_with_others(self):
        """If none is ejected, no entries are deleted."""
        self.apply([1, 2, 3, 4])
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual([], self.ejected_siblings)

    def test_siblings(self):
        """Siblings are the other endpoints of all services of an endpoint, as of the last call;
        there are none for an endpoint that the kernel does not use.
        """
        others = {each.endpoint for each in (TWO, THREE)}
        self.assertEqual(others, self.rules.siblings(ONE))
        self.assertIsNone(self.rules.siblings(Target(Protocol.UDP, ONE.endpoint)))
        both = [
            ProxiedService(service([1, 4], key=key("web"), portals=(PORTAL,)), None),
            ProxiedService(service([1, 5], key=key("api")), None),
            ProxiedService(service([1, 6], key=key("socket")), 40000),
            ProxiedService(service([3], key=key("alone")), None),
        ]
        self.successResultOf(self.rules.apply(both))
        self.assertEqual({endpoint(4), endpoint(5)}, self.rules.siblings(ONE))
        self.assertIsNone(self.rules.siblings(THREE))
        self.assertIsNone(self.rules.siblings(TWO))

    def test_portals(self):
        """Clients use the portals of an endpoint's services, and of all with the same name, as this
        machine's own clients do; not those of another protocol.
        """
        outside = dataclasses.replace(PORTAL, kind=PortalKind.EXTERNAL_IP)
        within, external = (key("web", scope=scope) for scope in (Scope.INTERNAL, Scope.EXTERNAL))
        services = [
            ProxiedService(service([1, 4], key=within, portals=(PORTAL,)), None),
            ProxiedService(service([5], key=external, portals=(outside,)), None),
            ProxiedService(service([1], key=key("web", Protocol.UDP), portals=(PORTAL,)), None),
            ProxiedService(service([6], key=key("api"), portals=(PORTAL,)), None),
        ]
        self.successResultOf(self.rules.apply(services))
        self.assertEqual([PORTAL, outside], list(self.rules.portals(ONE)))
        self.assertEqual([], list(self.rules.portals(Target(Protocol.TCP, endpoint(9)))))

    def test_portals_of_one_that_has_left(self):
        """Earlier connections may lead clients there; its latest portals are known."""
        self.patch(rules, "MAX_FORMER", 1)
        self.setUp()
        self.apply([2, 3])
        self.assertEqual([PORTAL], list(self.rules.portals(ONE)))
        self.apply([3])
        self.assertEqual([PORTAL], list(self.rules.portals(TWO)))
        self.assertEqual([], list(self.rules.portals(ONE)))

    def test_entries_that_cannot_be_deleted(self):
        """The failure is logged, and everything is retried."""
        self.forgetting = lambda: fail(SteeringFailed("it is locked"))
        self.eject(ONE)
        with capturedLogs() as logged:
            self.clock.advance(0)
        self.assertIn("it is locked", str([each.get("error") for each in logged]))
        self.forgetting = lambda: succeed(1)
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual([{ONE}, {ONE}], [targets for targets, _ in self.deleted])

    def test_entries_that_can_never_be_deleted(self):
        """Removed endpoints are not kept: their clients retry for two minutes only."""
        self.forgetting = lambda: fail(SteeringFailed("there is no such table"))
        for number in range(4, 40):
            self.apply([2, number])
            self.clock.pump([ANSWER_SECONDS, RETRY_SECONDS])
        self.assertEqual(37, len({target for targets, _ in self.deleted for target in targets}))
        self.apply([2, 39])
        del self.deleted[:]
        self.clock.pump([ANSWER_SECONDS, RETRY_SECONDS, RETRY_SECONDS])
        self.assertEqual([], self.deleted)

    def test_an_endpoint_leaves(self):
        """Its unanswered attempts are deleted some time later, so that clients reach another
        endpoint when they retry.
        """
        self.apply([2, 3])
        self.clock.advance(ANSWER_SECONDS - 0.01)
        self.assertEqual([], self.deleted)
        self.clock.advance(0.01)
        self.clock.advance(0)
        self.assertEqual([{ONE}], [which for which, _ in self.deleted])

    def test_an_endpoint_leaves_one_of_its_services(self):
        """Attempts are kept if another service has the endpoint, or if it was added again."""
        api = ProxiedService(service([1], key=key("api")), None)
        for others in ([api], []):
            self.apply([2, 3], *others)
            self.clock.advance(ANSWER_SECONDS / 2)
            self.apply([1, 2, 3] if not others else [2, 3], *others)
            self.clock.advance(ANSWER_SECONDS)
            self.clock.advance(0)
            self.assertEqual([], self.deleted)

    def test_services_leave(self):
        """All TCP endpoints of removed services are removed; for UDP see the stale flows."""
        names = key("names", Protocol.UDP)
        self.apply([1, 2], ProxiedService(service([1, 2, 3], key=names), None))
        self.successResultOf(self.rules.apply([]))
        self.clock.advance(ANSWER_SECONDS)
        self.clock.advance(0)
        self.assertEqual({ONE, TWO, THREE}, set().union(*(which for which, _ in self.deleted)))

    def apply(self, numbers, *others):
        """Apply rules for other endpoints, and perhaps other services."""
        web = service(numbers, key=key("web"), portals=(PORTAL,))
        self.successResultOf(self.rules.apply([ProxiedService(web, None), *others]))

    def test_the_end(self):
        """Pending changes are dropped, no timer is left, and no endpoint is ejected."""
        self.eject(ONE)
        self.apply([1, 2])
        self.assertIn("mod 1 map", self.transactions[-1])
        self.ejections.stop()
        self.successResultOf(self.rules.end_ejections())
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertIn("mod 2 map", self.transactions[-1])

    def test_stop_during_a_change(self):
        """Nothing follows a change that is in progress at the stop."""
        change = Deferred()
        self.forgetting = lambda: change
        self.eject(ONE)
        self.clock.advance(0)
        self.eject(TWO)
        self.ejections.stop()
        self.successResultOf(self.rules.end_ejections())
        self.transactions.clear()
        change.callback(0)
        self.assertEqual([], self.transactions)
        self.assertEqual([], self.clock.getDelayedCalls())
