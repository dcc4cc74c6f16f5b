"""Tests that rules are repaired in time and at a limited cost, after any events in any order."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from tests.cluster.fakes import CLOUD, EDGE
from tests.steering.manager_support import EDGE4, PERIOD, ManagerTestCase
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.manager import CHECK_SECONDS
from yurttunnel.steering.probe_schedule import MIN_PAUSE, RECHECK_SECONDS

REFUSED = SteeringFailed("iptables-restore: line 3 failed")

REACTOR_SECONDS = 1.5
"""Seconds for detection and repair in reactor turns, in addition to the pause."""

_STEPS = st.one_of(
    st.tuples(st.sampled_from(("label", "port", "flush", "others", "refuse", "allow", "restart"))),
    st.tuples(st.just("passes"), st.floats(0, 200)),
    st.tuples(st.just("leaps"), st.floats(0, 100_000)),
    st.tuples(st.just("hangs"), st.floats(0, 100_000)),
)


class AnyOrderTests(ManagerTestCase):
    """Changes of nodes and ports, by others, failures, checks that hang, and leaps of the clock."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(_STEPS, max_size=8), st.booleans())
    @example([("leaps", 3600.0), ("label",), ("passes", 2.0)], True)
    @example([("leaps", 3600.0), ("port",), ("passes", 2.0)], True)
    @example([("leaps", 3600.0), ("label",), ("passes", 2.0)], False)
    @example([("hangs", 100_000.0), ("passes", 2.0)], True)
    def test_repaired(self, steps, counts):
        """After a flush the rules are repaired within the documented pause."""
        self.make_machine()
        self.firewall.counts_changes = counts
        self.manager_under_test = self.start()
        hung = False
        for step, *arguments in steps:
            hung = hung or step == "hangs"
            getattr(self, f"do_{step}")(*arguments)
        failing = self.firewall.failure is not None
        self.do_allow()
        self.do_flush()
        # A pause after a slow check is long, and after failures it grows.
        pause = PERIOD if hung else 30.0 if failing else MIN_PAUSE if counts else RECHECK_SECONDS
        self.do_passes(pause + REACTOR_SECONDS)
        self.assertLessEqual({10250, 10255}, self.firewall.rules.keys())
        self.assertIsNone(self.manager_under_test.problem())
        # Undisturbed rules are not checked more often than each pause and each period.
        self.do_passes(PERIOD)
        self.calls.clear()
        self.do_passes(PERIOD)
        most = PERIOD / RECHECK_SECONDS + 1
        self.assertTrue(1 <= self.calls.count(("put", EDGE4)) <= most, self.calls)
        self.assertLessEqual(self.calls.count(("apply", 4)), 0 if counts else most)
        self.successResultOf(self.manager_under_test.stopService())

    def do_label(self):
        """Move a node to the other side."""
        self.is_edge = not getattr(self, "is_edge", False)
        self.put("moving", "10.0.0.2", labels=EDGE if self.is_edge else CLOUD)

    def do_port(self):
        """Add another port."""
        self.ports = getattr(self, "ports", 9000) + 1
        self.put_ports(http_proxy_ports=str(self.ports))

    def do_flush(self):
        """Have another program remove the rules."""
        self.firewall.rules = {}
        self.firewall.changes += 1

    def do_others(self):
        """Have another program change its own rules."""
        self.firewall.changes += 1

    def do_refuse(self):
        """Have the kernel reject rules."""
        self.firewall.failure = REFUSED

    def do_allow(self):
        """Have the kernel accept them again."""
        self.firewall.failure = None

    def do_restart(self):
        """Stop and start."""
        hold, self.firewall.failure = self.firewall.failure, None
        self.successResultOf(self.manager_under_test.stopService())
        self.firewall.failure = hold
        self.manager_under_test.startService()
        self.clock.advance(0)

    def do_passes(self, seconds):
        """Let time pass."""
        self.clock.pump([CHECK_SECONDS] * round(seconds / CHECK_SECONDS))

    def do_leaps(self, seconds):
        """Have the clock leap, as after a suspend."""
        self.clock.advance(seconds)

    def do_hangs(self, seconds):
        """Have requests to the kernel take long."""
        self.firewall.hold = hold = Deferred()
        self.firewall.changes += 1
        self.do_passes(RECHECK_SECONDS)
        self.clock.advance(seconds)
        self.firewall.hold = None
        hold.callback(None)
