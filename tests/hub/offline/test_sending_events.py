"""The Events of an outage, once the cloud is back."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail, succeed

from tests.hub.offline.world import OfflineTestCase


class SendingTests(OfflineTestCase):
    """Events that were kept."""

    def keep_events(self, count):
        """Keep some."""
        for n in range(count):
            self.cache.keep_event(f"/{n}", "application/json", b"{}", "token" if n else "")

    def kept(self):
        """Return what is kept still."""
        return [event.path for event in self.successResultOf(self.cache.kept_events(999))]

    def pass_seconds(self, seconds):
        """Let time pass."""
        self.clock.pump([0.1] * int(seconds * 10))

    def counts(self):
        """Return how many were sent, and how many lost."""
        return self.offline.sender.sent, self.offline.sender.dropped

    def test_nothing_while_away(self):
        """Without the cloud nothing is tried."""
        self.keep_events(3)
        self.pass_seconds(300)
        self.assertEqual([], self.sent)

    def test_in_order_and_spaced(self):
        """They are sent in their order, a few in a second."""
        self.keep_events(50)
        self.connectivity.change(True)
        self.pass_seconds(2)
        self.assertTrue(5 <= len(self.sent) <= 12, len(self.sent))
        self.pass_seconds(15)
        self.assertEqual([f"/{n}" for n in range(50)], [event.path for event in self.sent])
        self.assertEqual(["", "token"], [event.token for event in self.sent[:2]])
        self.assertEqual(([], (50, 0)), (self.kept(), self.counts()))

    def test_sent_before(self):
        """What the API has already was sent."""
        self.keep_events(1)
        self.send = lambda event: succeed(409)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.assertEqual(([], (1, 0)), (self.kept(), self.counts()))

    def test_refused(self):
        """What the API does not want is lost, and counted."""
        self.keep_events(2)
        self.send = lambda event: succeed(403 if event.path == "/0" else 201)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.assertEqual(([], (1, 1)), (self.kept(), self.counts()))

    def test_failures(self):
        """What fails is tried again, first what comes first."""
        for status in (500, 503, 429, None):
            self.setUp()
            self.keep_events(2)
            self.send = lambda event, status=status: succeed(status)
            self.connectivity.change(True)
            self.pass_seconds(1)
            self.assertEqual((1, ["/0", "/1"]), (len(self.sent), self.kept()), status)
            self.send = lambda event: succeed(201)
            self.pass_seconds(70)
            self.assertEqual(([], (2, 0)), (self.kept(), self.counts()))

    def test_silence(self):
        """An answer that does not come is not waited for."""
        self.keep_events(1)
        self.send = lambda event: Deferred()
        self.connectivity.change(True)
        self.pass_seconds(11)
        self.send = lambda event: succeed(201)
        self.pass_seconds(70)
        self.assertEqual(([], (1, 0)), (self.kept(), self.counts()))

    def test_away_again(self):
        """When the cloud goes away again, the rest stays."""
        self.keep_events(20)
        self.connectivity.change(True)
        self.pass_seconds(1)
        self.connectivity.change(False)
        self.pass_seconds(60)
        self.assertTrue(0 < len(self.sent) < 20)
        self.assertEqual(20 - len(self.sent), len(self.kept()))

    def test_what_always_fails(self):
        """One that the API always fails on does not keep the others back, and is lost with them."""
        failures = {
            "status": lambda: succeed(500),
            "silence": Deferred,
            "none": lambda: succeed(None),
        }
        for name, answer in failures.items():
            self.setUp()
            self.keep_events(30)
            self.send = lambda event, answer=answer: (
                answer() if event.path == "/0" else succeed(201)
            )
            self.connectivity.change(True)
            self.pass_seconds(240)
            self.assertEqual(([], (29, 1)), (self.kept(), self.counts()), name)

    def test_an_api_in_trouble(self):
        """Where the API fails on all of them, none is lost."""
        self.keep_events(2)
        self.send = lambda event: succeed(500)
        self.connectivity.change(True)
        self.pass_seconds(1200)
        self.assertEqual((["/0", "/1"], (0, 0)), (self.kept(), self.counts()))
        self.send = lambda event: succeed(201)
        # Two of the longest pauses: after the first, all may have failed too often, and begin anew.
        self.pass_seconds(130)
        self.assertEqual(([], (2, 0)), (self.kept(), self.counts()))

    def test_what_cannot_be_sent(self):
        """One that raises is lost, and told of; the others are sent."""
        self.keep_events(3)

        def send(event):
            if event.path == "/0":
                raise ValueError("no target")
            return fail(ValueError("no target")) if event.path == "/1" else succeed(201)

        self.send = send
        self.connectivity.change(True)
        self.pass_seconds(2)
        self.assertEqual(([], (1, 2)), (self.kept(), self.counts()))

    def test_a_full_disk(self):
        """What the cache cannot forget is not sent again."""
        self.keep_events(50)
        forget = self.cache.drop_event
        self.patch(self.cache, "drop_event", lambda id: None)
        self.connectivity.change(True)
        self.pass_seconds(200)
        self.assertEqual([f"/{n}" for n in range(50)], [event.path for event in self.sent])
        self.cache.drop_event = forget
        self.cache.keep_event("/next", "application/json", b"{}", "")
        self.pass_seconds(70)
        self.assertEqual("/next", self.sent[-1].path)
        self.assertEqual(51, len(self.sent))
