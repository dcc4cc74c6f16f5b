"""The health of servers, and of the cloud."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.logged import Logged
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.upstream.health import Health, State
from yurttunnel.hub.upstream.node_lease import CheckFailed
from yurttunnel.hub.upstream.servers import Server


class HealthTestCase(SynchronousTestCase):
    """Servers whose checks the test controls: success, an error, or no response."""

    names = ("a",)
    settings = HealthSettings(10, 2, 3, 2, kubelet_grace=40)
    hides_cancelling = False

    def setUp(self):
        """Start with all servers healthy."""
        self.clock = Clock()
        self.servers = [Server(name, 443) for name in self.names]
        self.down = {}
        self.silent = set()
        self.checks = []
        self.lost = []
        self.turns = []
        self.lines = Logged(self, "yurttunnel.hub")
        self.health = Health(self.clock, self.servers, self.check, self.lose, self.settings)
        self.health.on_change(self.turns.append)
        self.addCleanup(self.stop)

    async def check(self, server, fresh):
        """Run the check that the test has set."""
        self.checks.append((self.clock.seconds(), server.host, fresh))
        if server in self.silent:
            try:
                await Deferred()
            except CancelledError:
                if self.hides_cancelling:
                    raise CheckFailed("the connection was given up") from None
                raise
        if server in self.down:
            raise CheckFailed(self.down[server])

    def lose(self, server, why):
        """Record that the server's connections were closed, and the state of the cloud then."""
        self.lost.append((server.host, self.health.online))

    def stop(self):
        """Stop; no timer may be left."""
        if self.health.running:
            self.successResultOf(self.health.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def start(self):
        """Begin to check."""
        self.health.startService()

    def pass_time(self, seconds, step=0.1):
        """Advance the clock."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)

    def state(self, server=None):
        """Return the state of a server."""
        return self.health.servers[server or self.servers[0]].state


class OneServerTests(HealthTestCase):
    """A single server."""

    def test_interface(self):
        """The class provides IConnectivity."""
        verifyObject(IConnectivity, self.health)

    def test_before_the_first_check(self):
        """The state is unknown, so the cloud counts as unreachable."""
        self.silent.update(self.servers)
        self.start()
        self.assertIs(State.UNKNOWN, self.state())
        self.assertFalse(self.health.online)
        self.assertFalse(self.health.known)

    def test_start(self):
        """At startup a single successful check is enough, and callbacks for it are called."""
        known = []
        self.health.on_known(lambda: known.append(self.health.online))
        self.start()
        self.assertIs(State.HEALTHY, self.state())
        self.assertTrue(self.servers[0].healthy)
        self.assertEqual([True], self.turns)
        self.assertEqual([True], known)

    def test_start_without_a_cloud(self):
        """After the first failed check the state is known, and no change is reported."""
        known = []
        self.health.on_known(lambda: known.append(self.health.online))
        self.silent.update(self.servers)
        self.start()
        self.pass_time(2.1)
        self.assertEqual([False], known)
        self.assertEqual([], self.turns)
        self.assertIn("no API server can be reached", self.lines[-1])

    def test_regular_checks(self):
        """It is checked a little more often than every ten seconds."""
        self.start()
        self.pass_time(60)
        self.assertEqual(7, len(self.checks))

    def test_black_hole(self):
        """A server that stops responding right after a check is detected within 12 seconds."""
        self.start()
        self.clock.advance(0)
        self.silent.update(self.servers)
        self.pass_time(11.9)
        self.assertIs(State.UNHEALTHY, self.state())
        self.assertEqual([("a", False)], self.lost)
        self.assertEqual([True, False], self.turns)
        problem = self.health.servers[self.servers[0]].problem
        self.assertTrue(problem in ("no response within 2 s", "the connection was given up"))

    def test_black_hole_of_connections(self):
        """The same applies if a cancelled attempt fails with another error."""
        self.hides_cancelling = True
        self.test_black_hole()

    def test_stop_while_a_check_is_canceled(self):
        """After shutdown there is no further attempt."""
        self.hides_cancelling = True
        self.silent.update(self.servers)
        self.start()
        self.stop()
        self.assertEqual(1, len(self.checks))

    def test_tries(self):
        """A check that fails at once is tried three times, on new connections."""
        self.start()
        self.checks.clear()
        self.down[self.servers[0]] = "connection refused"
        self.health.suspect(self.servers[0])
        self.pass_time(1)
        self.assertEqual([False, True, True], [fresh for _, _, fresh in self.checks[:3]])
        self.assertIs(State.UNHEALTHY, self.state())
        self.assertIn("https://a:443 is not healthy: connection refused", self.lines)

    def test_one_of_the_tries_is_good(self):
        """One successful attempt is enough."""
        self.start()
        self.pass_time(1)
        self.down[self.servers[0]] = "the connection was closed"
        self.health.suspect(self.servers[0])
        self.clock.advance(0)
        self.down.clear()
        self.pass_time(1)
        self.assertIs(State.HEALTHY, self.state())
        self.assertEqual([], self.lost)

    def test_suspicion(self):
        """A suspected server is checked at once, but not repeatedly."""
        self.start()
        self.pass_time(3)
        self.checks.clear()
        for _ in range(10):
            self.health.suspect(self.servers[0])
            self.clock.advance(0.01)
        self.assertEqual(1, len(self.checks))
        self.pass_time(0.6)
        self.assertEqual(2, len(self.checks))

    def test_two_good_checks(self):
        """A failed server is healthy after two successful checks; the second one is soon."""
        self.start()
        self.silent.update(self.servers)
        self.pass_time(12)
        self.silent.clear()
        self.checks.clear()
        while not self.checks:
            self.clock.advance(0.1)
        self.assertIs(State.UNHEALTHY, self.state())
        self.pass_time(0.6)
        self.assertIs(State.HEALTHY, self.state())
        self.assertEqual([True, False, True], self.turns)
        self.assertEqual("the cloud can be reached: requests are forwarded", self.lines[-1])

    def test_a_good_one_between(self):
        """Successful checks must be consecutive."""
        self.start()
        self.down[self.servers[0]] = "it responds with 503"
        self.pass_time(12)
        self.checks.clear()
        self.down.clear()
        while not self.checks:
            self.clock.advance(0.1)
        self.down[self.servers[0]] = "it responds with 503"
        self.pass_time(1.1)
        self.down.clear()
        self.checks.clear()
        while len(self.checks) < 2:
            self.assertIs(State.UNHEALTHY, self.state())
            self.clock.advance(0.1)

    def test_return(self):
        """However long the outage was, recovery is detected within the time of two checks."""
        self.start()
        self.silent.update(self.servers)
        self.pass_time(600)
        self.silent.clear()
        self.pass_time(12.5)
        self.assertIs(State.HEALTHY, self.state())

    def test_callbacks(self):
        """A failing callback does not prevent the others."""

        def broken(online):
            raise ValueError("broken")

        self.health = Health(self.clock, self.servers, self.check, self.lose, self.settings)
        self.health.on_change(broken)
        self.health.on_change(self.turns.append)
        self.start()
        self.assertEqual([True], self.turns)
        self.assertEqual(1, len(self.flushLoggedErrors(ValueError)))


class SeveralServersTests(HealthTestCase):
    """Servers can replace each other."""

    names = ("a", "b", "c")

    def test_one_is_enough(self):
        """The cloud is reachable as long as one server is healthy; each change is logged once."""
        self.start()
        self.silent.update(self.servers[:2])
        self.pass_time(12)
        self.assertEqual([("a", True), ("b", True)], sorted(self.lost))
        self.assertEqual([True], self.turns)
        self.assertEqual(1, sum("the cloud can be reached" in line for line in self.lines))

    def test_side_by_side(self):
        """Several servers that do not respond are detected at the same time."""
        self.start()
        self.silent.update(self.servers)
        self.pass_time(11.9)
        self.assertEqual(3, len(self.lost))
        self.assertFalse(self.health.online)

    def test_start_with_a_silent_one(self):
        """The first response shows that the cloud is reachable, without waiting for the others."""
        self.silent.update(self.servers[:2])
        self.start()
        self.assertTrue(self.health.known)
        self.assertTrue(self.health.online)

    def test_start_with_one_that_is_found_out_first(self):
        """That the cloud is not reachable is known once all servers have been checked."""
        known = []
        self.health.on_known(lambda: known.append(self.health.online))
        self.down[self.servers[0]] = "connection refused"
        self.silent.update(self.servers[1:])
        self.start()
        self.pass_time(1.5)
        self.assertIs(State.UNHEALTHY, self.state())
        self.assertEqual([], known)
        self.assertNotIn("no API server can be reached", " ".join(self.lines))
        self.pass_time(1)
        self.assertEqual([False], known)
        self.assertIn("no API server can be reached", " ".join(self.lines))


class OtherSettingsTests(HealthTestCase):
    """Flags."""

    settings = HealthSettings(4, 1, retries=1, threshold=3, kubelet_grace=40)

    def test_they_count(self):
        """Interval, timeout, attempts and threshold are those of the settings."""
        self.start()
        self.clock.advance(0)
        self.silent.update(self.servers)
        self.pass_time(4.9)
        self.assertIs(State.UNHEALTHY, self.state())
        self.silent.clear()
        self.down[self.servers[0]] = "it responds with 500"
        self.checks.clear()
        while not self.checks:
            self.clock.advance(0.1)
        self.pass_time(0.5)
        self.assertEqual(1, len(self.checks))
        self.down.clear()
        self.checks.clear()
        while self.state() is not State.HEALTHY:
            self.clock.advance(0.1)
        self.assertEqual(3, len(self.checks))
