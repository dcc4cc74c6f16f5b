"""Settings of a server that change while it runs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.server.expectations import nothing_expected
from tests.server.test_process import settings
from yurttunnel.ops.configuration.reloading import ChangeRejected
from yurttunnel.server.frontends.admission import parse_permission
from yurttunnel.server.listeners import agent_listener
from yurttunnel.server.process import LiveSettings, ServerProcess


class LiveSettingsTests(SynchronousTestCase):
    """``LiveSettings`` passes each change to its subscribers."""

    def setUp(self):
        """Subscribe to the settings of a command line."""
        self.first = settings()
        self.live = LiveSettings(self.first)
        self.used = []

    def change(self, **values):
        """Change the settings."""
        return Deferred.fromCoroutine(self.live.apply(replace(self.live.current, **values)))

    def test_subscribers_are_called_in_order(self):
        """Subscribers are called in their order; ``current`` is the latest change."""
        self.assertIs(self.first, self.live.current)
        self.live.follow(lambda now: self.used.append(("first", now.drain_timeout)))
        self.live.follow(lambda now: self.used.append(("second", now.drain_timeout)))
        self.successResultOf(self.change(drain_timeout=7.0))
        self.assertEqual([("first", 7.0), ("second", 7.0)], self.used)
        self.assertEqual(7.0, self.live.current.drain_timeout)

    def test_rejected_change(self):
        """A change that a subscriber rejects is not applied by the others."""

        async def refuse(now):
            raise ChangeRejected("the port is taken")

        self.live.follow(refuse)
        self.live.follow(self.used.append)
        self.failureResultOf(self.change(drain_timeout=7.0), ChangeRejected)
        self.assertEqual(([], self.first), (self.used, self.live.current))

    def test_the_last_permission_stays(self):
        """A truncated file does not open a restricted endpoint to everybody."""
        one, other = (parse_permission(f"user:{number}=*/*:*") for number in (1, 2))
        self.successResultOf(self.change(connect_permissions=(one,)))
        self.successResultOf(self.change(connect_permissions=(other,)))
        self.live.follow(self.used.append)
        failure = self.failureResultOf(self.change(connect_permissions=()), ChangeRejected)
        self.assertIn("needs a restart", str(failure.value))
        self.assertEqual(((other,), []), (self.live.current.connect_permissions, self.used))


class BeforeTheStartTests(SynchronousTestCase):
    """Changes while a server in a cluster waits for its certificates."""

    def test_times_of_sessions(self):
        """The agents' listener, which is created later, starts with them."""
        process = ServerProcess(MemoryReactorClock(), settings(), dict, nothing_expected())
        changed = replace(process.live.current, resume_window=7.0, return_grace=2.0)
        self.successResultOf(Deferred.fromCoroutine(process.live.apply(changed)))
        nobody = SimpleNamespace(identify=None)
        listener = agent_listener(process, nobody, lambda identity: False, {})
        self.assertEqual(7000, listener.settings.limits.resume_window)
        self.assertEqual(2.0, listener.settings.return_grace)
