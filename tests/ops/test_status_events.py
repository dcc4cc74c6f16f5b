"""The warnings and errors that the status page remembers."""

from __future__ import annotations

from twisted.logger import Logger, LogPublisher
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.status.events import KEPT, RecentEvents


class RecentEventsTests(SynchronousTestCase):
    """An observer of the log."""

    def setUp(self) -> None:
        """Listen to a log of our own."""
        self.publisher = LogPublisher()
        self.log = Logger("yurttunnel.part", observer=self.publisher)
        self.events = RecentEvents(self.publisher)
        self.events.startService()

    def texts(self) -> list[str]:
        """The texts that are kept, the newest first."""
        return [event.text for event in self.events.newest_first()]

    def test_what_is_kept(self) -> None:
        """Warnings, errors and worse are kept with level, source and time; the rest is not."""
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
        """The same one again is counted and moves to the front."""
        for text in ("one", "two", "one", "one"):
            self.log.warn("{text}", text=text)
        self.assertEqual(["one", "two"], self.texts())
        self.assertEqual([3, 1], [event.count for event in self.events.newest_first()])

    def test_it_is_bounded(self) -> None:
        """Only the last ones are kept, and of each not more than some lines."""
        for number in range(3 * KEPT):
            self.log.warn("{number} {text}", number=number, text="x" * 100_000)
        self.assertEqual(KEPT, len(self.texts()))
        self.assertTrue(self.texts()[0].startswith(f"{3 * KEPT - 1} "))
        self.assertLessEqual(max(map(len, self.texts())), 500)

    def test_failures(self) -> None:
        """Of a failure there is what happened, without the traceback."""
        try:
            raise OSError("no space\nleft")
        except OSError:
            self.log.failure("writing failed")
        self.assertEqual(["writing failed: OSError: no space left"], self.texts())

    def test_secrets(self) -> None:
        """What looks like a token or a key is left out, whoever wrote it into a message."""
        token = "0123456789abcdef.0123456789abcdef0123456789abcdef"
        for secret in (
            f"{token}",
            "AbCdEf123",
            "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
            "MIIEvQIBADANBg",
        ):
            self.log.warn(
                {
                    token: "refused {secret}.sha256:5e55",
                    "AbCdEf123": "Authorization: Bearer {secret}",
                    "MIIEvQIBADANBg": "-----BEGIN PRIVATE KEY-----\n{secret}\n"
                    "-----END PRIVATE KEY-----",
                }.get(secret, "got {secret}!"),
                secret=secret,
            )
            self.assertNotIn(secret, self.texts()[0])
            self.assertIn("(secret)", self.texts()[0])

    def test_the_end(self) -> None:
        """After its end it listens no more."""
        self.events.stopService()
        self.log.warn("too late")
        self.assertEqual([], self.texts())
