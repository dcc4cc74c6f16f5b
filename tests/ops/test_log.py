"""Logs of libraries, and rate limits of warnings."""

from __future__ import annotations

import logging

from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.log import RateLimitedLog, forward_standard_logging


class ForwardingTests(SynchronousTestCase):
    """Records of stdlib logging are forwarded to twisted.logger."""

    def setUp(self) -> None:
        """Forward warnings and above during the test."""
        self.addCleanup(forward_standard_logging())
        self.library = logging.getLogger("urllib3.connectionpool")

    def test_message(self) -> None:
        """A forwarded record has the formatted message, the logger's name and its level."""
        with capturedLogs() as events:
            self.library.warning("pool of %s is {full}", "edge-1")
        [event] = events
        self.assertEqual("pool of edge-1 is {full}", formatEvent(event))
        self.assertEqual("urllib3.connectionpool", event["log_namespace"])
        self.assertEqual(LogLevel.warn, event["log_level"])

    def test_levels(self) -> None:
        """A level is mapped to its counterpart, and a custom level to the next lower one."""
        with capturedLogs() as events:
            for level in (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.ERROR + 5):
                self.library.log(level, "x")
        self.assertEqual(
            [LogLevel.critical, LogLevel.error, LogLevel.warn, LogLevel.error],
            [event["log_level"] for event in events],
        )

    def test_low_levels_are_dropped(self) -> None:
        """Records below the level are not forwarded."""
        self.library.setLevel(logging.DEBUG)
        self.addCleanup(self.library.setLevel, logging.NOTSET)
        with capturedLogs() as events:
            self.library.info("x")
            self.library.debug("x")
        self.assertEqual([], events)

    def test_requested_level(self) -> None:
        """Records are forwarded from the requested level, down to debug."""
        self.library.setLevel(logging.DEBUG)
        self.addCleanup(self.library.setLevel, logging.NOTSET)
        self.addCleanup(forward_standard_logging(logging.DEBUG))
        with capturedLogs() as events:
            self.library.info("x")
            self.library.debug("x")
        self.assertEqual([LogLevel.info, LogLevel.debug], [event["log_level"] for event in events])

    def test_traceback(self) -> None:
        """An exception that a library logs is forwarded with its traceback."""
        with capturedLogs() as events:
            try:
                raise ZeroDivisionError("in the library")
            except ZeroDivisionError:
                self.library.exception("it failed")
        self.assertIn("in the library", events[0]["log_failure"].getTraceback())
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))

    def test_broken_record(self) -> None:
        """A record that cannot be formatted raises nothing in the library."""
        self.patch(logging, "raiseExceptions", False)
        with capturedLogs() as events:
            self.library.warning("%d", "not a number")
        self.assertEqual([], events)

    def test_end_of_forwarding(self) -> None:
        """The returned function stops the forwarding."""
        before = list(logging.getLogger().handlers)
        stop = forward_standard_logging()
        stop()
        self.assertEqual(before, logging.getLogger().handlers)


class RateLimitedLogTests(SynchronousTestCase):
    """Warnings that strangers can cause are rate limited."""

    def setUp(self) -> None:
        """Make a log that shows one warning in ten seconds."""
        self.clock = Clock()
        self.log = RateLimitedLog(self.clock, Logger(namespace="test"), seconds=10)

    def warnings(self, *nodes: str) -> list[str]:
        """Log a warning for each node; return what was shown."""
        with capturedLogs() as events:
            for node in nodes:
                self.log.warn("{node} was refused", node=node)
        for event in events:
            self.assertEqual(LogLevel.warn, event["log_level"])
        return [formatEvent(event) for event in events]

    def test_first_is_shown(self) -> None:
        """Of several warnings with the same format only the first is shown."""
        self.assertEqual(["a was refused"], self.warnings("a", "b", "c"))

    def test_count(self) -> None:
        """The first warning of the next period has the number of suppressed warnings."""
        self.warnings("a", "b", "c")
        self.clock.advance(9.9)
        self.assertEqual([], self.warnings("d"))
        self.clock.advance(0.1)
        self.assertEqual(["e was refused (3 more like this were not shown)"], self.warnings("e"))
        self.clock.advance(10)
        self.assertEqual(["f was refused"], self.warnings("f"))

    def test_errors(self) -> None:
        """Errors are limited in the same way, at their own level."""
        with capturedLogs() as events:
            for node in "abc":
                self.log.error("{node} is broken", node=node)
        self.assertEqual(
            [("a is broken", LogLevel.error)],
            [(formatEvent(event), event["log_level"]) for event in events],
        )

    def test_different_messages(self) -> None:
        """Different messages do not suppress each other."""
        self.warnings("a")
        with capturedLogs() as events:
            self.log.warn("something else")
        self.assertEqual(1, len(events))
