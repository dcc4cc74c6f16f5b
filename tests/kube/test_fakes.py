"""The API in memory fulfils the client's contract."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.contract_client import ClientContract, config_map
from tests.kube.fakes import FakeKubeClient
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import CONFIG_MAPS, TOKEN_REVIEWS


class FakeKubeClientTests(ClientContract, SynchronousTestCase):
    """The contract, and the methods for tests."""

    def setUp(self):
        """Create an API."""
        self.clock = Clock()
        self.client = FakeKubeClient(self.clock)

    def pass_time(self, seconds):
        """Advance the clock."""
        self.clock.advance(seconds)

    def forget_history(self):
        """Forget the history."""
        self.client.forget_history()

    def cut_off(self):
        """Become unreachable."""
        self.client.fail(ApiUnreachable("connection refused"))

    def test_put(self):
        """A test can put whole objects, and read them."""
        self.client.put(CONFIG_MAPS, config_map("a"))
        self.client.put(CONFIG_MAPS, {**config_map("a"), "data": {"x": "1"}})
        (found,) = self.client.objects(CONFIG_MAPS)
        self.assertEqual({"x": "1"}, found["data"])
        self.assertEqual(found, self.client.look(CONFIG_MAPS, "a", "default"))
        self.client.remove(CONFIG_MAPS, "a", "default")
        self.assertIsNone(self.client.look(CONFIG_MAPS, "a", "default"))

    def test_calls(self):
        """Calls are recorded."""
        self.add("a")
        self.done(self.client.list(CONFIG_MAPS))
        expected = [("create", "configmaps", "a"), ("list", "configmaps", None)]
        self.assertEqual(expected, self.client.calls)

    def test_hold(self):
        """Responses can be delayed, while the requests take effect."""
        self.client.hold()
        created = self.client.create(CONFIG_MAPS, config_map("a"), "default")
        cancelled = self.client.get(CONFIG_MAPS, "a", "default")
        cancelled.cancel()
        self.failureResultOf(cancelled)
        self.assertNoResult(created)
        self.assertIsNotNone(self.client.look(CONFIG_MAPS, "a", "default"))
        self.client.release()
        self.successResultOf(created)

    def test_answers(self):
        """Reviews are answered by a function of the test, and not stored."""
        status = {"status": {"authenticated": True}}
        self.client.answers["create", "tokenreviews"] = lambda body: {**body, **status}
        answer = self.done(self.client.create(TOKEN_REVIEWS, {"spec": {"token": "x"}}))
        self.assertEqual(status["status"], answer["status"])
        self.assertEqual([], self.client.objects(TOKEN_REVIEWS))
