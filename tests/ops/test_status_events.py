"""The recent warnings and errors on the status page."""

from __future__ import annotations

from unittest import mock

from twisted.internet.task import Clock
from twisted.logger import Logger, LogPublisher
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.diagnose.redaction import REDACTED, redact
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.status.events import MAX_KEPT, RecentEvents


class RecentEventsTests(SynchronousTestCase):
    """An observer of the log."""

    def setUp(self) -> None:
        """Observe a log of the test."""
        self.publisher = LogPublisher()
        self.log = Logger("yurttunnel.part", observer=self.publisher)
        self.events = RecentEvents(self.publisher)
        self.events.startService()

    def texts(self) -> list[str]:
        """Return the kept texts, newest first."""
        return [event.text for event in self.events.newest_first()]

    def test_stored_events(self) -> None:
        """Warnings and more severe events are kept with level, source and time."""
        self.log.debug("a detail")
        self.log.info("{node}: connected", node="edge-1")
        self.log.warn("{node}: connected twice", node="edge-1")
        self.log.error("an error")
        self.log.critical("the end")
        self.assertEqual(["the end", "an error", "edge-1: connected twice"], self.texts())
        *_, warning = self.events.newest_first()
        self.assertEqual(("warning", "yurttunnel.part"), (warning.level, warning.source))
        self.assertGreater(warning.last, 0)

    def test_repeats_are_counted(self) -> None:
        """Events of one call site are counted; the newest moves to the front with its text."""
        self.log.warn("{text} is lost", text="one")
        self.log.warn("another")
        for text in ("two", "three"):
            self.log.warn("{text} is lost", text=text)
        self.assertEqual(["three is lost", "another"], self.texts())
        self.assertEqual([3, 1], [event.count for event in self.events.newest_first()])

    def test_repeats_that_were_not_shown(self) -> None:
        """The note on suppressed warnings does not make a warning a different event."""
        clock = Clock()
        log = RateLimitedLog(clock, self.log, 60.0)
        for _ in range(3):
            log.warn("refused")
            log.warn("refused")
            clock.advance(60)
        self.assertEqual(["refused (1 more like this were not shown)"], self.texts())

    def test_errors_stay(self) -> None:
        """No number of warnings displaces an error."""
        self.log.error("the disk is full")
        for number in range(3 * MAX_KEPT):
            self.log.warn("refused {number}", number=number)
            self.log.warn(f"warning {number}")
        self.assertEqual(MAX_KEPT, len(self.texts()))
        self.assertIn("the disk is full", self.texts())
        for number in range(3 * MAX_KEPT):
            self.log.error(f"error {number}")
        self.assertEqual(MAX_KEPT, len(self.texts()))
        self.assertNotIn("the disk is full", self.texts())

    def test_it_is_bounded(self) -> None:
        """The number of events and the length of each text are limited."""
        for number in range(3 * MAX_KEPT):
            self.log.warn(f"{number} {{text}}", text="x" * 100_000)
        self.assertEqual(MAX_KEPT, len(self.texts()))
        self.assertTrue(self.texts()[0].startswith(f"{3 * MAX_KEPT - 1} "))
        self.assertLessEqual(max(map(len, self.texts())), 500)

    def test_failures(self) -> None:
        """A failure is kept with its error, without the traceback."""
        try:
            raise OSError("no space\nleft")
        except OSError:
            self.log.failure("writing failed")
        self.assertEqual(["writing failed: OSError: no space left"], self.texts())

    def test_secrets(self) -> None:
        """Text that looks like a token or a key is redacted in any message."""
        token = "0123456789abcdef.0123456789abcdef0123456789abcdef"
        for secret in (
            f"{token}",
            "AbCdEf123",
            "dXNlcjpwYXNz",
            "abcdef.0123456789abcdef",
            "p4ssw0rd",
            "h1dden",
            "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
            "MIIEvQIBADANBg",
        ):
            self.log.warn(
                {
                    token: "refused {secret}.sha256:5e55",
                    "AbCdEf123": "Authorization: Bearer {secret}",
                    "dXNlcjpwYXNz": "Authorization: Basic {secret}",
                    "p4ssw0rd": "password={secret}",
                    "h1dden": "https://user:{secret}@registry.example/ failed",
                    "MIIEvQIBADANBg": "-----BEGIN PRIVATE KEY-----\n{secret}\n"
                    "-----END PRIVATE KEY-----",
                }.get(secret, "got {secret}!"),
                secret=secret,
            )
            self.assertNotIn(secret, self.texts()[0])
            self.assertIn(REDACTED, self.texts()[0])

    def test_redaction_on_read(self) -> None:
        """A text is redacted when it is read, not when it is logged."""
        with mock.patch("yurttunnel.ops.status.events.redact", side_effect=redact) as redacted:
            for number in range(100):
                self.log.warn("refused {number}", number=number)
            self.assertEqual(0, redacted.call_count)
            self.assertEqual(["refused 99"], self.texts())
            self.assertEqual(["refused 99"], self.texts())
            self.assertEqual(1, redacted.call_count)

    def test_the_end(self) -> None:
        """A stopped observer records nothing."""
        self.events.stopService()
        self.log.warn("too late")
        self.assertEqual([], self.texts())
