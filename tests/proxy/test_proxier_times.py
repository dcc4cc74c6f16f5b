"""Tests of the times of syncs, and of failures."""

from __future__ import annotations

from dataclasses import replace

from tests.proxy.proxier_world import ProxierTestCase
from tests.proxy.services import key, service
from yurttunnel.proxy.proxier import CHECK_SECONDS


class FailureTests(ProxierTestCase):
    """Rules that cannot be created."""

    def test_it_is_tried_again(self):
        """Everything stays as it was, and it is logged once."""
        self.rules.failure = "the lock is held"
        self.set(service([1]))
        self.assertEqual("the lock is held", self.proxier.problem())
        self.assertEqual(1, len(self.warnings))
        for _ in range(40):
            self.clock.advance(1)
        self.assertGreater(self.proxier.syncs["failed"], 1)
        self.assertEqual(1, len(self.warnings))
        self.rules.failure = None
        self.clock.advance(30)
        self.assertEqual({key(): 40000}, self.rules.ports)
        self.assertIsNone(self.proxier.problem())

    def test_removed_sockets_go_on_until_there_are_rules(self):
        """Rules still lead to them."""
        self.set(service([1]))
        self.clock.advance(1)
        self.rules.failure = "the lock is held"
        self.set()
        self.assertEqual([], self.sockets.opened[0].drains)
        self.rules.failure = None
        self.clock.advance(30)
        self.assertEqual([5.0], self.sockets.opened[0].drains)

    def test_a_family_is_refused(self):
        """Sockets of the other one are closed as before, and their ports can be reused; those of
        the failed one stay, since rules still lead there.
        """
        six = replace(key(), version=6)
        self.set(service([1]), service([1], key=six))
        self.clock.advance(1)
        self.rules.refused = {6}
        self.set()
        self.assertEqual([[5.0], []], [each.drains for each in self.sockets.opened])
        self.assertEqual("a family is refused", self.proxier.problem())
        self.rules.refused = set()
        self.clock.advance(30)
        self.assertEqual([[5.0], [5.0]], [each.drains for each in self.sockets.opened])
        self.assertIsNone(self.proxier.problem())

    def test_load_balancers_see_changes_that_wait_too_long(self):
        """After two sync periods."""
        self.set(service([1]))
        self.assertTrue(self.health.is_alive)
        self.clock.advance(1)
        self.rules.failure = "the lock is held"
        self.set()
        self.clock.advance(60)
        self.assertTrue(self.health.is_alive)
        self.clock.advance(0.1)
        self.assertFalse(self.health.is_alive)
        self.rules.failure = None
        for _ in range(31):
            self.clock.advance(1)
        self.assertTrue(self.health.is_alive)

    def test_a_hanging_firewall(self):
        """It is cancelled after a timeout, and retried."""
        self.rules.holds = True
        self.set(service([1]))
        self.clock.advance(60)
        self.assertIn("in time", self.proxier.problem())
        self.rules.holds = False
        self.clock.advance(30)
        self.assertIsNone(self.proxier.problem())


class TimeTests(ProxierTestCase):
    """When syncs run."""

    def test_the_first_changes_wait_for_nothing(self):
        """Two after a quiet time run at once; those that follow within a second are combined."""
        self.set(service([1]))
        self.assertEqual(1, len(self.rules.applied))
        for number in range(2, 100):
            self.set(service([1]), service([1], key=key(f"s{number}")))
            self.assertEqual(2, len(self.rules.applied))
        self.clock.advance(1)
        self.clock.advance(0)
        self.assertEqual(3, len(self.rules.applied))
        self.assertEqual({key(), key("s99")}, self.rules.ports.keys())

    def test_a_change_after_a_quiet_time(self):
        """It is not delayed, even if a periodic sync has just run."""
        self.set(service([1]))
        self.pass_period()
        self.assertEqual(2, len(self.rules.applied))
        self.set(service([2]))
        self.assertEqual(3, len(self.rules.applied))

    def test_each_period(self):
        """Rules are checked without known changes."""
        self.set(service([1]))
        self.pass_period()
        self.assertEqual(2, len(self.rules.applied))

    def test_somebody_changes_rules(self):
        """It is detected earlier."""
        self.set(service([1]))
        self.rules.number += 1
        self.clock.advance(CHECK_SECONDS)
        self.clock.advance(0)
        self.assertEqual(2, len(self.rules.applied))
        for _ in range(3):
            self.clock.advance(CHECK_SECONDS)
        self.assertEqual(2, len(self.rules.applied))

    def test_figures(self):
        """The number of successes, and their durations."""
        self.rules.holds = True
        self.set(service([1]))
        self.clock.advance(0.25)
        self.rules.release()
        self.assertEqual({"ok": 1, "repaired": 0, "failed": 0}, self.proxier.syncs)
        self.assertEqual(0.25, self.proxier.durations.total_seconds)
        self.assertEqual(0.25, self.health.last_synced)
