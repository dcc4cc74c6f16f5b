"""Reboots of the quickstart's edge node."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurtlab.node.node import HEARTBEAT_SECONDS
from yurttunnel.quickstart import composition, edge
from yurttunnel.quickstart.edge import RESTART_SECONDS, EdgeNode
from yurttunnel.quickstart.options import Ports, Settings


class Run(Service):
    """A run of the node, whose stop the test completes."""

    def __init__(self, *_):
        self.ended = Deferred()
        self.running_pods = []
        self.node = SimpleNamespace(runs=lambda *pod: pod in self.running_pods)

    def stopService(self):
        """Stop when ``ended`` fires."""
        super().stopService()
        return self.ended


class EdgeNodeTests(SynchronousTestCase):
    """A running node."""

    def setUp(self):
        """Start the node."""
        self.runs = []
        self.patch(edge, "_Run", self.record_run)
        self.clock = Clock()
        self.node = EdgeNode(self.clock, "http://127.0.0.1:10261", None)
        self.node.startService()

    def record_run(self, *arguments):
        """Record the run."""
        self.runs.append(Run(*arguments))
        return self.runs[-1]

    def test_heartbeat(self):
        """The hub's grace period is longer than two heartbeats of the node."""
        settings = Settings(
            None, Ports.from_first(10260), "edge-1", None, firewall=False, check=False
        )
        hub = composition._hub_settings(settings, Path("state"))
        self.assertGreater(hub.health.kubelet_grace, 2 * HEARTBEAT_SECONDS)

    def test_reboot(self):
        """A reboot starts the node when the previous run has stopped completely."""
        rebooted = Deferred.fromCoroutine(self.node.reboot())
        [former] = self.runs
        self.assertFalse(former.running)
        former.ended.callback(None)
        self.successResultOf(rebooted)
        self.assertEqual([False, True], [each.running for each in self.runs])

    def test_stopped_while_it_reboots(self):
        """A node that is stopped during a reboot is not started again."""
        rebooted = Deferred.fromCoroutine(self.node.reboot())
        stopped = self.node.stopService()
        [former] = self.runs
        former.ended.callback(None)
        self.successResultOf(rebooted)
        self.successResultOf(stopped)
        self.assertEqual([False], [each.running for each in self.runs])

    def test_a_pod_that_runs_again(self):
        """Waiting for a pod to run again has a timeout."""
        waited = [Deferred.fromCoroutine(self.node.runs("default", name)) for name in ("web", "no")]
        self.clock.pump([1] * 5)
        self.runs[0].running_pods.append(("default", "web"))
        self.clock.advance(1)
        self.successResultOf(waited[0])
        self.clock.pump([1] * int(RESTART_SECONDS - 6))
        self.assertNoResult(waited[1])
        self.clock.advance(1)
        error = self.failureResultOf(waited[1], TimeoutError).value
        self.assertIn("pod default/no did not run", str(error))
        self.assertEqual([], self.clock.getDelayedCalls())
