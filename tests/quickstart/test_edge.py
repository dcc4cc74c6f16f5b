"""The edge node of the quickstart as a machine that starts anew."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.node import HEARTBEAT_SECONDS
from yurttunnel.quickstart import composition, edge
from yurttunnel.quickstart.edge import RUNS_AGAIN_SECONDS, EdgeNode
from yurttunnel.quickstart.options import Ports, Settings


class Run(Service):
    """The node between two starts; it ends when the test says."""

    def __init__(self, *_):
        self.ended = Deferred()
        self.running_pods = []
        self.node = SimpleNamespace(runs=lambda *pod: pod in self.running_pods)

    def stopService(self):
        """End later."""
        super().stopService()
        return self.ended


class EdgeNodeTests(SynchronousTestCase):
    """A node that is started."""

    def setUp(self):
        """Start it."""
        self.runs = []
        self.patch(edge, "_Run", self.run_anew)
        self.clock = Clock()
        self.node = EdgeNode(self.clock, "http://127.0.0.1:10261", None)
        self.node.startService()

    def run_anew(self, *given):
        """Note each start."""
        self.runs.append(Run(*given))
        return self.runs[-1]

    def test_heartbeat(self):
        """The hub takes a node that does nothing but beat for one that lives."""
        settings = Settings(
            None, Ports.from_first(10260), "edge-1", None, firewall=False, check=False
        )
        hub = composition._hub_settings(settings, Path("state"))
        self.assertGreater(hub.health.kubelet_grace, 2 * HEARTBEAT_SECONDS)

    def test_reboot(self):
        """It starts when nothing is left of the time before."""
        rebooted = Deferred.fromCoroutine(self.node.reboot())
        [former] = self.runs
        self.assertFalse(former.running)
        former.ended.callback(None)
        self.successResultOf(rebooted)
        self.assertEqual([False, True], [each.running for each in self.runs])

    def test_stopped_while_it_reboots(self):
        """It stays down: nobody would stop what it starts."""
        rebooted = Deferred.fromCoroutine(self.node.reboot())
        stopped = self.node.stopService()
        [former] = self.runs
        former.ended.callback(None)
        self.successResultOf(rebooted)
        self.successResultOf(stopped)
        self.assertEqual([False], [each.running for each in self.runs])

    def test_a_pod_that_runs_again(self):
        """It is waited for, in bounded time."""
        waited = [Deferred.fromCoroutine(self.node.runs("default", name)) for name in ("web", "no")]
        self.clock.pump([1] * 5)
        self.runs[0].running_pods.append(("default", "web"))
        self.clock.advance(1)
        self.successResultOf(waited[0])
        self.clock.pump([1] * int(RUNS_AGAIN_SECONDS - 6))
        self.assertNoResult(waited[1])
        self.clock.advance(1)
        error = self.failureResultOf(waited[1], TimeoutError).value
        self.assertIn("pod default/no did not run", str(error))
        self.assertEqual([], self.clock.getDelayedCalls())
