"""Tests of the source ``api``: informers, with and without errors."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, fail, succeed

from tests.proxy.objects import endpoint, endpoint_slice, service
from tests.proxy.sources.world import OWN, WorldCase
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import ENDPOINT_SLICES, NODES, SERVICES
from yurttunnel.ops import slices
from yurttunnel.ops.reconciler import Phase
from yurttunnel.proxy.node import machine_addresses
from yurttunnel.proxy.sources.sources import BURST, SPACING_SECONDS
from yurttunnel.steering.failures import SteeringFailed

UNREACHABLE = ApiUnreachable("connection refused")


def node(zone="a", taints=(), **metadata):
    """Return the Node of this node."""
    labels = {"topology.kubernetes.io/zone": zone}
    return {
        "metadata": {"name": "here", "labels": labels, **metadata},
        "spec": {"taints": [{"key": each} for each in taints]},
    }


class ApiTests(WorldCase):
    """The state follows the API."""

    def test_what_is_there(self):
        """Services and EndpointSlices that exist at the start are served, and reported once."""
        self.client.put(SERVICES, service())
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.1"))
        self.start()
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())
        self.assertEqual(1, self.changes)

    def test_pages(self):
        """A list in pages is reported when the last page is there."""
        self.client.page_limit = 1
        for number in range(1, 4):
            self.client.put(SERVICES, service(f"s{number}", f"10.96.0.{number}"))
        self.start()
        self.assertEqual((3, 1), (len(self.shown()), self.changes))

    def test_changes(self):
        """Additions, changes and removals are seen in the next turn."""
        self.start()
        self.assertEqual({}, self.shown())
        self.client.put(SERVICES, service())
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.1"))
        self.clock.advance(0)
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.2"))
        self.clock.advance(0)
        self.assertEqual(["10.1.0.2:8080"], self.endpoints())
        self.client.remove(SERVICES, "web", "default")
        self.clock.advance(0)
        self.assertEqual({}, self.shown())

    def test_continuous_changes(self):
        """Continuous changes are combined, so that the process is not always busy with them."""
        self.client.put(SERVICES, service())
        self.start()
        self.changes = 0
        for number in range(1000):
            address = f"10.1.{number // 250}.{number % 250 + 1}"
            self.client.put(ENDPOINT_SLICES, endpoint_slice(address))
            self.clock.advance(0.01)
        self.assertLessEqual(self.changes, BURST + 10 / SPACING_SECONDS)
        self.settle(SPACING_SECONDS)
        self.assertEqual([f"{address}:8080"], self.endpoints())

    def test_burst(self):
        """A burst of 100 changes is reported once, and ends in the final state."""
        self.start()
        self.client.put(SERVICES, service())
        before = self.changes
        for number in range(1, 101):
            self.client.put(ENDPOINT_SLICES, endpoint_slice(f"10.1.0.{number}"))
        self.clock.advance(0)
        self.assertEqual(["10.1.0.100:8080"], self.endpoints())
        self.assertEqual(1, self.changes - before)

    def test_irrelevant_change(self):
        """A change that leads to the same state is not reported."""
        self.client.put(SERVICES, service())
        self.start()
        before = self.changes
        changed = service()
        changed["metadata"]["annotations"]["seen"] = "today"
        self.client.put(SERVICES, changed)
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.1", of="unknown"))
        self.settle()
        self.assertEqual(0, self.changes - before)

    def test_nothing_before_both_are_listed(self):
        """Until both kinds are listed there is no state, so that nothing is torn down."""
        self.client.put(SERVICES, service())
        answers = self.client.list
        self.client.list = lambda resource, *args, **kwargs: (
            fail(UNREACHABLE) if resource is ENDPOINT_SLICES else answers(resource, *args, **kwargs)
        )
        self.start()
        self.assertIsNone(self.shown())
        self.assertIn("endpointslices", self.sources.problem())
        self.client.list = answers
        self.settle(60)
        self.assertEqual([], self.endpoints())
        self.assertIsNone(self.sources.problem())

    def test_api_becomes_unavailable(self):
        """While the API is unreachable, and its lists fail, the last state stays."""
        self.client.put(SERVICES, service())
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.1"))
        self.start()
        before = self.changes
        self.client.fail(UNREACHABLE)
        self.client.forget_history()
        for _ in range(20):
            self.settle(30)
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())
        self.assertIn("has not been heard of since", self.sources.problem())
        self.client.remove(SERVICES, "web", "default")
        self.client.recover()
        self.settle(120)
        self.assertEqual(({}, 1), (self.shown(), self.changes - before))

    def test_stop(self):
        """After the stop nothing is reported."""
        self.start()
        self.sources.stopService()
        self.client.put(SERVICES, service())
        self.settle()
        self.assertEqual({}, self.shown())
        self.sources.startService()
        self.settle()
        self.assertEqual([], self.endpoints())

    def test_defect(self):
        """The exception of a callback is logged, and the next change is reported."""
        self.start()
        self.sources.on_changed.append(lambda: 1 / 0)
        for number in (1, 2):
            before = self.changes
            self.client.put(SERVICES, service(f"s{number}", f"10.96.0.{number}"))
            self.settle()
            self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
            self.assertEqual(1, self.changes - before)

    def test_change_just_before_a_stop(self):
        """A change that was not reported before the stop is not reported."""
        self.start()
        before = self.changes
        self.client.put(SERVICES, service())
        self.sources.stopService()
        self.settle()
        self.assertEqual(({}, 0), (self.shown(), self.changes - before))

    def test_skipped(self):
        """Those of another proxy are not requested; a Service that becomes headless is removed."""
        foreign = {"service.kubernetes.io/service-proxy-name": "other"}
        self.client.put(SERVICES, service("foreign", labels=foreign))
        self.client.put(SERVICES, service())
        self.start()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.client.put(SERVICES, service("web", "None"))
        self.settle()
        self.assertEqual({}, self.shown())

    def test_problems_are_logged_once(self):
        """A problem is logged when it occurs, and not again while it lasts."""
        self.client.put(SERVICES, service(external=["127.0.0.1"]))
        self.start()
        sentence = "default/web: the external IP 127.0.0.1 is a loopback address: it is not served"
        self.assertEqual([sentence], self.warnings)
        self.client.put(ENDPOINT_SLICES, endpoint_slice("10.1.0.1"))
        self.settle()
        self.assertEqual([sentence], self.warnings)

    def test_many_problems(self):
        """Of many problems at once some are logged, with the number of the others."""
        for number in range(1, 31):
            broken = service(f"s{number}", f"10.96.0.{number}", external=["::"])
            self.client.put(SERVICES, broken)
        self.start()
        self.assertEqual(21, len(self.warnings))
        self.assertIn("10 more problems", self.warnings[-1])


class NodeTests(WorldCase):
    """The state depends on the node, too."""

    def test_zone(self):
        """The zone of the Node decides which endpoints are preferred, also when it changes."""
        self.client.put(NODES, node(zone="a"))
        self.client.put(SERVICES, service())
        self.client.put(
            ENDPOINT_SLICES,
            endpoint_slice(
                endpoint("10.1.0.1", for_zones="a"), endpoint("10.1.0.2", for_zones="b")
            ),
        )
        self.start()
        self.assertEqual(["10.1.0.1:8080"], self.endpoints())
        self.client.put(NODES, node(zone="b"))
        self.settle()
        self.assertEqual(["10.1.0.2:8080"], self.endpoints())

    def test_eligible(self):
        """A node that is being deleted, or drained, is no longer for load balancers."""
        self.start()
        self.assertTrue(self.node.facts.eligible)
        found = []
        for changed in (
            node(taints=["ToBeDeletedByClusterAutoscaler"]),
            node(taints=["other"]),
            node(deletionTimestamp="2026-01-01T00:00:00Z"),
        ):
            self.client.put(NODES, changed)
            self.settle()
            found.append(self.node.facts.eligible)
        self.assertEqual([False, True, False], found)

    def test_deleted_node(self):
        """A deleted Node keeps its facts: load balancers should not send clients again."""
        self.start()
        self.client.put(NODES, node(zone="a", taints=["ToBeDeletedByClusterAutoscaler"]))
        self.settle()
        self.client.remove(NODES, "here")
        self.settle()
        self.assertEqual(("a", False), (self.node.facts.zone, self.node.facts.eligible))

    def test_heartbeats(self):
        """Other changes of a Node are not reported."""
        self.client.put(NODES, node())
        self.start()
        reported_facts = []
        self.node.on_changed.append(lambda: reported_facts.append(self.node.facts))
        self.client.put(NODES, {**node(), "status": {"conditions": [{"type": "Ready"}]}})
        self.settle()
        self.assertEqual([], reported_facts)

    def test_families(self):
        """The families of the machine are read with the addresses."""
        self.versions = (4,)
        self.client.put(SERVICES, service("web", "10.96.0.1", "fd00::1"))
        self.start()
        self.assertEqual(["default/web TCP IPv4"], list(self.shown()))
        self.settle(1)
        self.versions = (4, 6)
        self.settle(29)
        self.assertEqual({"default/web TCP IPv4", "default/web TCP IPv6"}, self.shown().keys())

    def test_stop_while_the_state_is_computed(self):
        """A stop between two slices of a computation is no defect."""
        self.start()
        self.patch(slices, "WORK_SECONDS", 0.0)
        self.patch(slices, "deferLater", lambda clock, seconds: Deferred())
        self.client.put(SERVICES, service())
        self.settle()
        self.assertIs(Phase.RUNNING, self.sources._updates.phase)
        self.sources.stopService()
        self.assertEqual([], self.flushLoggedErrors(CancelledError))

    def test_change_of_addresses(self):
        """A change that the kernel reports is seen at once, many of them once a second."""
        self.start()
        self.settle(2)
        self.addresses = frozenset({OWN + 1})
        self.node.refresh()
        self.settle(0.1)
        self.assertEqual({OWN + 1}, self.node.facts.addresses)
        self.addresses = frozenset({OWN + 2})
        self.node.refresh()
        self.settle(0.5)
        self.assertEqual({OWN + 1}, self.node.facts.addresses)
        self.settle(0.6)
        self.settle(0.1)
        self.assertEqual({OWN + 2}, self.node.facts.addresses)

    def test_addresses_come_first(self):
        """There is no state before the machine's addresses are known."""
        answer = Deferred()
        self.run_at_once = lambda job: answer
        self.client.put(SERVICES, service())
        self.start()
        self.assertIsNone(self.shown())
        self.assertIsNotNone(self.sources.problem())
        answer.callback(self.addresses)
        self.settle()
        self.assertEqual(1, len(self.shown()))

    def test_unknown_addresses(self):
        """If they cannot be read, everything that does not depend on them is served."""
        self.addresses = SteeringFailed("the kernel does not answer")
        self.client.put(SERVICES, service())
        self.start()
        self.assertEqual(1, len(self.shown()))
        self.assertIn("the kernel does not answer", self.warnings[0])
        self.addresses = frozenset({OWN})
        self.settle(31)
        self.assertEqual({OWN}, self.node.facts.addresses)

    def test_unknown_links(self):
        """Addresses are known even if the links without one cannot be read."""
        self.run_at_once = lambda job: (
            succeed(self.addresses)
            if job is machine_addresses
            else fail(SteeringFailed("the kernel does not answer"))
        )
        self.start()
        self.assertEqual({OWN}, self.node.facts.addresses)
        self.assertIn("the kernel does not answer", self.warnings[0])

    def test_addresses(self):
        """The machine's addresses are read again each period."""
        self.start()
        self.assertEqual({OWN}, self.node.facts.addresses)
        self.addresses = frozenset({OWN + 1})
        self.clock.pump([1.0] * 31)
        self.assertEqual({OWN + 1}, self.node.facts.addresses)
