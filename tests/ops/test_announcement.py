"""What is said when a process is ready for the first time."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.announcement import INTERVAL, Announcement
from yurttunnel.ops.readiness import Readiness


class AnnouncementTests(SynchronousTestCase):
    """It is said once, and not before."""

    def setUp(self) -> None:
        """Make a process that is not ready."""
        self.clock, self.said = Clock(), 0
        self.problem: str | None = "port 10262 is not bound"
        readiness = Readiness()
        readiness.add("listeners", lambda: self.problem)
        readiness.add("disk", lambda: "it is full", required=False)
        self.announcement = Announcement(self.clock, readiness, self.announce)
        self.announcement.startService()

    def announce(self) -> None:
        """Count."""
        self.said += 1

    def test_once(self) -> None:
        """It waits until what is required is in order, and is over then."""
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(0, self.said)
        self.problem = None
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(1, self.said)
        self.problem = "it is gone"
        self.clock.pump([INTERVAL] * 3)
        self.problem = None
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(1, self.said)
        self.announcement.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_never(self) -> None:
        """A process that is stopped before says nothing."""
        self.announcement.stopService()
        self.problem = None
        self.assertEqual([], self.clock.getDelayedCalls())
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(0, self.said)
