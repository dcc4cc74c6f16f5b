"""``kubectl exec POD -- yurttunnel COMMAND`` on a server of a cluster."""

from __future__ import annotations

import os
import sys

from twisted.internet.utils import getProcessOutputAndValue

from benchmarks.ports import free_ports
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import SERVERS
from tests.e2e.programs import ROOT


class InPodTests(ClusterTestCase):
    """Commands for the process in the same pod, which kubectl yurttunnel recommends."""

    async def run_in_pod(self, *arguments: str) -> tuple[str, int]:
        """Run a command at the first server; return its output and status."""
        state = os.path.join(self.directory, f"pki-{SERVERS[0]}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "YURTTUNNEL_STATE_DIR": state}
        command = ["-m", "yurttunnel.cli", *arguments]
        output, errors, status = await getProcessOutputAndValue(
            sys.executable, command, environment, self.directory
        )
        return (output or errors).decode(), status

    async def test_each(self) -> None:
        """Log levels, forwards and the diagnosis work; join tokens do not exist there."""
        world = await self.make_world()
        server = await world.server(SERVERS[0])
        server.disable_fork_server()
        server.start()
        await server.ready(60)
        self.assertEqual(("info\n", 0), await self.run_in_pod("logs-level"))
        port = free_ports.take()
        await self.run_in_pod("forward", "add", f"{port}=edge-1/127.0.0.1:10250")
        listed, _ = await self.run_in_pod("forward", "ls")
        self.assertRegex(listed, rf"127\.0\.0\.1:{port} +edge-1 +127\.0\.0\.1:10250 +0 +command")
        bundle = os.path.join(self.directory, "server.tar.gz")
        printed, _ = await self.run_in_pod("diagnose", "-o", bundle)
        self.assertIn(f"{bundle}\nyurttunnel-server: ", printed)
        printed, status = await self.run_in_pod("token", "list")
        self.assertEqual(1, status)
        self.assertIn("has no /v1/tokens: it is another program, runs in a cluster", printed)
