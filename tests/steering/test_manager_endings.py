"""Tests of the manager of the rules: rules exist as long as their listeners."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from tests.cluster.fakes import EDGE
from tests.steering.manager_support import (
    EDGE4,
    EDGE6,
    PERIOD,
    REFUSED,
    RULES,
    SECURE,
    ManagerTestCase,
    flow,
)
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.manager import (
    CHECK_SECONDS,
    FINISH_SECONDS,
    LISTENERS_TIMEOUT,
    REMOVAL_PAUSE,
    REMOVAL_TIMEOUT,
)


class ListenerTests(ManagerTestCase):
    """Rules exist as long as their listeners accept."""

    def look(self, seconds=CHECK_SECONDS):
        """Let the manager check repeatedly for some time."""
        self.clock.pump([CHECK_SECONDS] * round(seconds / CHECK_SECONDS))
        self.clock.advance(0)

    def test_short_pause(self):
        """Listeners that stop accepting for a moment keep their rules."""
        self.start()
        self.calls.clear()
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_TIMEOUT - 1)
        self.closed = None
        self.look(LISTENERS_TIMEOUT)
        self.assertNotIn(("remove", 4), self.calls)
        self.assertEqual(RULES, self.firewall.rules)

    def test_closed(self):
        """Otherwise their rules are removed, and restored with them; flows are left alone."""
        manager = self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_TIMEOUT + 1)
        self.assertEqual(({}, {}), (self.firewall.rules, self.sets.sets))
        self.assertEqual(1, len(self.flows.flows))
        self.assertIn("port 10263 is not bound", manager.problem())
        self.assertEqual("waiting", manager.report().state)
        self.assertEqual(1, len(self.logged("No firewall rules", "port 10263 is not bound")))
        self.calls.clear()
        self.look(2 * PERIOD)
        self.assertEqual([], self.calls)
        self.closed = None
        self.look()
        self.assertEqual(RULES, self.firewall.rules)
        self.assertEqual(1, len(self.flows.flows))
        self.assertIsNone(manager.problem())

    def test_cannot_be_queried(self):
        """An exception in the check of the listeners is logged, and the next check is in time."""
        manager = self.start()
        self.not_accepting = lambda: 1 // 0
        self.clock.advance(CHECK_SECONDS)
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.not_accepting = lambda: "port 10263 is not bound"
        self.look(LISTENERS_TIMEOUT + 1)
        self.assertEqual({}, self.firewall.rules)
        self.successResultOf(manager.stopService())
        self.assertEqual({}, self.firewall.rules)

    def test_removal_fails(self):
        """A removal that fails is retried after pauses, not with every check."""
        manager = self.start()
        self.firewall.failure = REFUSED
        self.closed = "port 10263 is not bound"
        self.look(LISTENERS_TIMEOUT + 1)
        self.assertIn(str(REFUSED), manager.problem())
        self.assertLess(self.calls.count(("remove", 4)), 3)
        self.firewall.failure = None
        self.look(5)
        self.assertEqual({}, self.firewall.rules)


class EndTests(ManagerTestCase):
    """Stopping the manager."""

    def test_stop(self):
        """Rules are removed before sets, flows are left alone, and nothing is done afterwards."""
        manager = self.start()
        self.flows.flows = [flow("192.168.0.1", 10250, SECURE)]
        self.calls.clear()
        self.successResultOf(manager.stopService())
        self.assertEqual(
            [("remove", 4), ("remove", EDGE4), ("remove", 6), ("remove", EDGE6)], self.calls
        )
        self.assertEqual(({}, {}), (self.firewall.rules, self.sets.sets))
        self.assertEqual(1, len(self.flows.flows))
        self.put("edge-2", "192.168.0.2", labels=EDGE)
        self.put_ports(http_proxy_ports="9100")
        self.assertEqual([], self.clock.getDelayedCalls())
        self.assertEqual("stopped", manager.report().state)

    def test_while_waiting(self):
        """Leftovers of a previous process are removed, too, if nothing has been created yet."""
        self.firewall.rules = dict(RULES)
        self.closed = "certificates are pending"
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual({}, self.firewall.rules)

    def test_in_progress(self):
        """A sync in progress ends first."""
        manager = self.start()
        self.firewall.hold = hold = Deferred()
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        self.calls.clear()
        stopped = manager.stopService()
        self.assertEqual([], self.calls)
        self.firewall.hold = None
        hold.callback(None)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_hangs(self):
        """A sync that does not end is cancelled, and the rules are removed."""
        manager = self.start()
        self.firewall.hold = Deferred()
        self.put_ports(http_proxy_ports="9100")
        self.settle()
        stopped = manager.stopService()
        self.firewall.hold = None
        self.clock.advance(FINISH_SECONDS)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_hangs(self):
        """A removal that does not end in time is logged, with what to do."""
        manager = self.start()
        self.firewall.hold = Deferred()
        stopped = manager.stopService()
        self.assertNoResult(stopped)
        self.clock.advance(REMOVAL_TIMEOUT)
        self.successResultOf(stopped)
        self.assertEqual(1, len(self.logged("left behind", "--cleanup-iptables")))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_fails(self):
        """A persistent error of one family is logged; the other's rules are removed at once."""
        self.put("edge-2", "fd00::2", labels=EDGE)
        manager = self.start()
        self.firewall.failure = REFUSED
        stopped = manager.stopService()
        self.assertEqual({}, self.firewall6.rules)
        self.clock.pump([REMOVAL_PAUSE] * round(REMOVAL_TIMEOUT / REMOVAL_PAUSE))
        self.successResultOf(stopped)
        self.assertEqual(1, len(self.logged("left behind", str(REFUSED), "--cleanup-iptables")))
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_removal_is_tried_again(self):
        """A removal that fails for some time, for example during a lock, is retried."""
        manager = self.start()
        self.firewall.failure = REFUSED
        stopped = manager.stopService()
        self.clock.pump([REMOVAL_PAUSE] * 14)
        self.assertNoResult(stopped)
        self.firewall.failure = None
        self.clock.advance(REMOVAL_PAUSE)
        self.successResultOf(stopped)
        self.assertEqual({}, self.firewall.rules)
        self.assertEqual([], self.logged("left behind"))

    def test_removal_without_the_right_to(self):
        """A manager without rules does not wait for permission to remove some."""
        self.firewall.failure = REFUSED
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.logged("IPv4", str(REFUSED), "--cleanup-iptables")))

    def test_removal_has_a_defect(self):
        """An unexpected error at the end is logged with what to do, and ends it."""
        manager = self.start()
        self.firewall.failure = ZeroDivisionError("unexpected")
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(1, len(self.logged("ZeroDivisionError", "--cleanup-iptables")))

    def test_search_fails(self):
        """A failed detection is logged at the end."""
        self.search_failure = SteeringFailed("iptables-save: timed out")
        manager = self.start()
        self.successResultOf(manager.stopService())
        self.assertEqual(1, len(self.logged("timed out", "--cleanup-iptables")))

    def test_again(self):
        """A stopped manager can be started again."""
        manager = self.start()
        self.successResultOf(manager.stopService())
        manager.startService()
        self.clock.advance(0)
        self.assertEqual(RULES, self.firewall.rules)
        self.successResultOf(manager.stopService())
