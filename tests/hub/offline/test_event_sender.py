"""Sending of an outage's Events once the cloud is reachable."""

from __future__ import annotations

import itertools

from twisted.internet.defer import Deferred, fail, succeed

from tests.hub.offline.world import OfflineTestCase


class SendingTests(OfflineTestCase):
    """Stored Events."""

    def store_events(self, count):
        """Store some Events."""
        for n in range(count):
            self.cache.store_event(f"/{n}", "application/json", b"{}", "token" if n else "")

    def stored_events(self):
        """Return the remaining Events."""
        return [event.path for event in self.successResultOf(self.cache.stored_events(999))]

    def pass_seconds(self, seconds):
        """Advance the clock."""
        self.clock.pump([0.1] * int(seconds * 10))

    def counts(self):
        """Return the numbers of sent and lost Events."""
        return self.offline.sender.sent, self.offline.sender.dropped

    def test_nothing_while_offline(self):
        """While offline nothing is sent."""
        self.store_events(3)
        self.pass_seconds(300)
        self.assertEqual([], self.sent)

    def test_in_order_and_spaced(self):
        """They are sent in order, a few per second."""
        self.store_events(50)
        self.connectivity.change(True)
        self.pass_seconds(2)
        self.assertTrue(5 <= len(self.sent) <= 12, len(self.sent))
        self.pass_seconds(15)
        self.assertEqual([f"/{n}" for n in range(50)], [event.path for event in self.sent])
        self.assertEqual(["", "token"], [event.token for event in self.sent[:2]])
        self.assertEqual(([], (50, 0)), (self.stored_events(), self.counts()))

    def test_sent_before(self):
        """An Event that exists already counts as sent."""
        self.store_events(1)
        self.send = lambda event: succeed(409)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.assertEqual(([], (1, 0)), (self.stored_events(), self.counts()))

    def test_rejected(self):
        """An Event that the API rejects is lost, and counted."""
        self.store_events(2)
        self.send = lambda event: succeed(403 if event.path == "/0" else 201)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.assertEqual(([], (1, 1)), (self.stored_events(), self.counts()))

    def test_failures(self):
        """Failures are retried in order."""
        for status in (500, 503, 429, None):
            self.setUp()
            self.store_events(2)
            self.send = lambda event, status=status: succeed(status)
            self.connectivity.change(True)
            self.pass_seconds(1)
            self.assertEqual((1, ["/0", "/1"]), (len(self.sent), self.stored_events()), status)
            self.send = lambda event: succeed(201)
            self.pass_seconds(70)
            self.assertEqual(([], (2, 0)), (self.stored_events(), self.counts()))

    def test_silence(self):
        """A missing response has a timeout."""
        self.store_events(1)
        self.send = lambda event: Deferred()
        self.connectivity.change(True)
        self.pass_seconds(11)
        self.send = lambda event: succeed(201)
        self.pass_seconds(70)
        self.assertEqual(([], (1, 0)), (self.stored_events(), self.counts()))

    def test_offline_again(self):
        """If the cloud becomes unreachable again, the rest stays."""
        self.store_events(20)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.connectivity.change(False)
        self.pass_seconds(60)
        self.assertTrue(0 < len(self.sent) < 20)
        self.assertEqual(20 - len(self.sent), len(self.stored_events()))

    def test_what_always_fails(self):
        """An Event that always fails does not block the others, and is lost after them."""
        failures = {
            "status": lambda: succeed(500),
            "silence": Deferred,
            "none": lambda: succeed(None),
        }
        for name, answer in failures.items():
            self.setUp()
            self.store_events(30)
            self.send = lambda event, answer=answer: (
                answer() if event.path == "/0" else succeed(201)
            )
            self.connectivity.change(True)
            self.pass_seconds(240)
            self.assertEqual(([], (29, 1)), (self.stored_events(), self.counts()), name)

    def test_a_failing_api(self):
        """If the API fails for all Events, none is lost."""
        self.store_events(2)
        self.send = lambda event: succeed(500)
        self.connectivity.change(True)
        self.pass_seconds(1200)
        self.assertEqual((["/0", "/1"], (0, 0)), (self.stored_events(), self.counts()))
        self.send = lambda event: succeed(201)
        # Two of the longest pauses: after the first, all may have failed and start again.
        self.pass_seconds(130)
        self.assertEqual(([], (2, 0)), (self.stored_events(), self.counts()))

    def test_an_api_that_fails_now_and_then(self):
        """Pauses grow only while every Event fails: with some failures, all are sent soon."""
        self.store_events(60)
        attempts = itertools.count()
        self.send = lambda event: succeed(201 if next(attempts) % 3 else 429)
        self.connectivity.change(True)
        self.pass_seconds(200)
        self.assertEqual(([], (60, 0)), (self.stored_events(), self.counts()))

    def test_what_cannot_be_sent(self):
        """An Event that raises an exception is lost, and logged; the others are sent."""
        self.store_events(3)

        def send(event):
            if event.path == "/0":
                raise ValueError("no target")
            return fail(ValueError("no target")) if event.path == "/1" else succeed(201)

        self.send = send
        self.connectivity.change(True)
        self.pass_seconds(2)
        self.assertEqual(([], (1, 2)), (self.stored_events(), self.counts()))

    def test_a_full_disk(self):
        """An Event that the cache cannot delete is not sent again."""
        self.store_events(50)
        forget = self.cache.delete_event
        self.patch(self.cache, "delete_event", lambda id: None)
        self.connectivity.change(True)
        self.pass_seconds(200)
        self.assertEqual([f"/{n}" for n in range(50)], [event.path for event in self.sent])
        self.cache.delete_event = forget
        self.cache.store_event("/next", "application/json", b"{}", "")
        self.pass_seconds(70)
        self.assertEqual("/next", self.sent[-1].path)
        self.assertEqual(51, len(self.sent))
