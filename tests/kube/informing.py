"""Informers of an API in memory."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.fakes import FakeKubeClient
from yurttunnel.kube.errors import ApiUnreachable, WatchInterrupted
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.interfaces import InformerSpec
from yurttunnel.kube.resources import PODS

UNREACHABLE = ApiUnreachable("GET https://api:6443/api/v1/pods: connection refused")
CUT = WatchInterrupted("watch of https://api:6443/api/v1/pods: the connection was lost")


def whole(obj):
    """Return the object."""
    return obj


def name_of(obj):
    """Return the name."""
    return obj["metadata"]["name"]


def node_of(pod):
    """Return a pod's node; the pod must have a spec."""
    return pod["spec"].get("nodeName")


def pod(name, namespace="default", node=None, **metadata):
    """Create a pod."""
    metadata = {"name": name, "namespace": namespace, **metadata}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


PODS_SPEC = InformerSpec(PODS, node_of)


class Turns(Clock):
    """A clock that makes only the calls that are due at its start, as a reactor iteration does."""

    def advance(self, amount):
        """Advance the clock."""
        self.rightNow += amount
        self._sortCalls()
        for call in [call for call in self.calls if call.getTime() <= self.rightNow]:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)


class InformerTestCase(SynchronousTestCase):
    """Informers of pods of an API in memory."""

    def setUp(self):
        """Create both."""
        self.clock = Turns()
        self.clock.advance(1_750_000_000)
        self.client = FakeKubeClient(self.clock)
        self.informers = Informers(self.clock, self.client)

    def follow(self, spec=PODS_SPEC, start=True):
        """Return an informer, and a list of the changes that its handler gets."""
        informer = self.informers.informer(spec)
        changes = []
        informer.add_handler(lambda old, new: changes.append((old, new)))
        if start and not self.informers.running:
            self.informers.startService()
            self.addCleanup(self.informers.stopService)
        return informer, changes

    def count(self, verb):
        """Return the number of calls with a verb."""
        return [call[0] for call in self.client.calls].count(verb)

    def pass_time(self, seconds):
        """Advance the clock, a second at a time."""
        self.clock.pump([1.0] * seconds)
