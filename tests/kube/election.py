"""Processes that elect a leader, with an API in memory."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.lease import RETRY_SECONDS, LeaderElection
from yurttunnel.kube.resources import LEASES

UNREACHABLE = ApiUnreachable("GET https://api:6443/: connection refused")
MAX_PAUSE = 2.2 * RETRY_SECONDS
NAMESPACE, NAME = "kube-system", "yurt-tunnel-approver"


class LeaderService(Service):
    """A service to lead; it counts its starts, and stops when the test says so."""

    def __init__(self):
        self.starts = 0
        self.active = False
        self.slow = False
        self.stopping = None
        self.broken = False

    def startService(self):
        """Start."""
        if self.broken:
            raise ValueError("cannot start")
        super().startService()
        self.starts += 1
        self.active = True

    def stopService(self):
        """Stop, now or when :meth:`end` is called."""
        super().stopService()
        if self.slow:
            self.stopping = Deferred()
            return self.stopping
        self.active = False
        return None

    def end(self):
        """Complete a slow stop."""
        self.active = False
        stopping, self.stopping = self.stopping, None
        stopping.callback(None)


@implementer(IKubeClient)
class Link:
    """The connection of one process to the API: it may be cut, silent, late, or lose responses."""

    def __init__(self, client):
        self.client = client
        self.cut = False
        self.silent = False
        self.lose_answers_of = ()
        self.late = None
        self.calls = []

    def _call(self, verb, *arguments):
        self.calls.append(verb)
        if self.cut:
            return fail(UNREACHABLE)
        if self.silent:
            return Deferred()
        ask = getattr(self.client, verb)
        if self.late is not None and verb in ("create", "update"):
            self.late.append(lambda: ask(*arguments).addErrback(lambda _: None))
            return Deferred()
        answer = ask(*arguments)
        if verb in self.lose_answers_of:
            return answer.addBoth(lambda _: fail(UNREACHABLE))
        return answer

    def get(self, resource, name, namespace=None):
        """Read."""
        return self._call("get", resource, name, namespace)

    def create(self, resource, body, namespace=None):
        """Create."""
        return self._call("create", resource, body, namespace)

    def update(self, resource, body, subresource=None):
        """Replace."""
        return self._call("update", resource, body, subresource)


class Process:
    """A candidate."""

    def __init__(self, clock, client, identity):
        self.identity = identity
        self.link = Link(client)
        self.led = LeaderService()
        self.election = LeaderElection(clock, self.link, NAMESPACE, NAME, identity, self.led)


class ElectionTestCase(SynchronousTestCase):
    """Two processes and an API in memory."""

    def setUp(self):
        """Create them; they are not started."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.client = FakeKubeClient(self.clock)
        self.a, self.b = (Process(self.clock, self.client, name) for name in "ab")
        self.lines = Logged(self)

    def spec(self):
        """Return the spec of the lease."""
        return self.client.look(LEASES, NAME, NAMESPACE)["spec"]

    def edit(self, **spec):
        """Edit the lease as an operator does."""
        lease = self.client.look(LEASES, NAME, NAMESPACE)
        self.client.put(LEASES, {**lease, "spec": {**lease["spec"], **spec}})

    def pass_time(self, seconds):
        """Advance the clock; assert that the two never lead at once."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.assertFalse(self.a.led.active and self.b.led.active, "two lead")

    def start(self, *processes):
        """Start the elections of some processes."""
        for process in processes:
            process.election.startService()

    def both(self):
        """Start both, so that a leads."""
        self.start(self.a, self.b)
        self.pass_time(5)
        self.assertEqual((True, False), (self.a.led.active, self.b.led.active))
