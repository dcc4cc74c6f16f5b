"""Tests of the quickstart with ``--firewall``: Services have addresses on its machine only."""

from __future__ import annotations

import signal
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.kubectl import CHECK_TIMEOUT, Kubectl, Quickstart, find_kubectls
from tests.e2e.proxy.objects import Pod
from tests.e2e.proxy.support import ProxyTestCase
from tests.e2e.proxy.traffic import REFUSED, StreamEndpoint

HERE = Pod(0, local=True, at="127.0.0.1")

CLUSTER_IP = "10.96.0.20"

MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", protocol: TCP, port: PORT}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
"""


class FirewallTests(ProxyTestCase):
    """The effects of its rules, and their removal."""

    def quickstart(self, *flags: str) -> Quickstart:
        """Start one on the node."""
        started = Quickstart(reactor, self.directory, "--firewall", *flags)
        self.addCleanup(started.kill)
        started.start()
        return started

    async def test_check(self) -> None:
        """The check connects to a Service at its address; in the end no rule remains."""
        before = self.all_rules()
        checked = self.quickstart("--check")
        self.assertEqual(await checked.ended(CHECK_TIMEOUT), 0, checked.log)
        self.assertIn(" 6 calls of 10.96.0.10:80, past an endpoint that refuses\n", checked.log)
        self.assertEqual(checked.forbidden_log_lines(), [])
        self.assertEqual(self.all_rules(), before)

    async def test_other_machines(self) -> None:
        """Services for programs of this machine are refused to clients elsewhere."""
        versions = find_kubectls()
        if not versions:
            raise SkipTest("kubectl is not installed")
        listening = reactor.listenTCP(0, StreamEndpoint(), interface="127.0.0.1")
        self.addCleanup(listening.stopListening)
        before = self.all_rules()
        started = self.quickstart()
        await started.wait_for_instructions()
        manifest = Path(self.directory, "web.yaml")
        manifest.write_text(MANIFEST.replace("PORT", str(listening.getHost().port)))
        kubectl = Kubectl(reactor, [*versions.values()][-1], started)
        await kubectl.output("create", "-f", str(manifest))
        await self.eventually_by([HERE], CLUSTER_IP, machine="node")
        self.assertEqual((await self.call(CLUSTER_IP, machine="clients")).problem, REFUSED)
        self.assertIn(await started.stop(20), (0, -signal.SIGTERM))
        self.assertEqual(started.forbidden_log_lines(), [])
        self.assertEqual(self.all_rules(), before)
