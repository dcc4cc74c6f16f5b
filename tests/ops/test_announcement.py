"""The announcement of a process's first readiness."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.announcement import INTERVAL, Announcement
from yurttunnel.ops.readiness import Readiness


class AnnouncementTests(SynchronousTestCase):
    """A process announces its readiness once, and not before it is ready."""

    def setUp(self) -> None:
        """Make a process that is not ready."""
        self.clock, self.announcements = Clock(), 0
        self.problem: str | None = "port 10262 is not bound"
        readiness = Readiness()
        readiness.add("listeners", lambda: self.problem)
        readiness.add("disk", lambda: "it is full", required=False)
        self.announcement = Announcement(self.clock, readiness, self.announce)
        self.announcement.startService()

    def announce(self) -> None:
        """Count the announcement."""
        self.announcements += 1

    def test_once(self) -> None:
        """The announcement waits until all required checks pass, and is never repeated."""
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(0, self.announcements)
        self.problem = None
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(1, self.announcements)
        self.problem = "it is gone"
        self.clock.pump([INTERVAL] * 3)
        self.problem = None
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(1, self.announcements)
        self.announcement.stopService()
        self.assertEqual([], self.clock.getDelayedCalls())

    def test_never(self) -> None:
        """A process that is stopped before it is ready announces nothing."""
        self.announcement.stopService()
        self.problem = None
        self.assertEqual([], self.clock.getDelayedCalls())
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(0, self.announcements)
