"""The protocol of docs/testing.md: from an installation to an answer of a machine behind NAT.

What is typed is what a newcomer has been told: the first command by the README, the second by the
server, the third by the agent.
"""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet import reactor

from tests.e2e.clients import HttpTarget
from tests.e2e.installs import InstallingTestCase
from tests.e2e.network.sites import Sites
from tests.e2e.programs import READY_SECONDS, ROOT
from tests.e2e.support import which
from tests.e2e.terminals import Terminal

SECONDS = 90.0
"""From the installation to the answer."""

SERVER, NODE = "cloud-2", "edge-1"

FIRST = "yurttunnel server --standalone"


class NewUserTests(InstallingTestCase):
    """Two machines, one of them behind NAT, and three commands."""

    timeout = 240

    def sit_down(self, machine: str) -> Terminal:
        """Open a terminal on a machine, on which nothing is there but what was installed."""
        environment = {
            "PATH": f"{self.directory}/yurt/bin:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            # Who is root here keeps what root has on this machine.
            "YURTTUNNEL_STATE_DIR": f"{self.directory}/{machine}",
            "YURTTUNNEL_NODE_NAME": machine,
        }
        with self.network.inside(machine):
            terminal = Terminal(
                which("sh"), self.directory, Path(self.directory, f"{machine}.log"), environment
            )
        self.addCleanup(terminal.close)
        return terminal

    async def test_three_commands(self) -> None:
        """They lead to a page of the machine behind NAT, and no secret is seen on it."""
        which("curl")
        self.assertIn(f"\n{FIRST}\n", (ROOT / "README.md").read_text())
        self.network = Sites()
        self.addCleanup(self.network.close)
        with self.network.inside(NODE):
            self.listen(HttpTarget, 80, self.network.addresses[NODE][0])
        sources = self.copied_sources("checkout")

        began = reactor.seconds()
        await self.install(self.new_environment("yurt"), sources)
        installed = reactor.seconds()

        cloud, edge = self.sit_down(SERVER), self.sit_down(NODE)
        cloud.type(FIRST)
        second = await self.eventually(
            lambda: cloud.told(r"YURTTUNNEL_JOIN_TOKEN=\S+ yurttunnel agent .*"),
            "the server tells what to run on the node",
            READY_SECONDS,
        )
        edge.type(second)
        third = await self.eventually(
            lambda: edge.told(r"yurttunnel forward add 9000=.*"),
            "the agent tells what to run on the server",
            READY_SECONDS,
        )
        other = self.sit_down(SERVER)
        other.type(third)
        await self.eventually(
            lambda: other.told(r"127\.0\.0\.1:9000 leads to edge-1/192\.168\.50\.31:80"),
            "the port is open",
            READY_SECONDS,
        )
        other.type("curl -sS --max-time 20 http://127.0.0.1:9000/")
        await self.eventually(lambda: other.told("hello.*"), "there is an answer", READY_SECONDS)
        took = reactor.seconds() - began
        print(f"\n{took:.1f} s, {installed - began:.1f} s of it for the installation")
        self.assertLess(took, SECONDS)

        # What the server has told besides works with a node's name in the place of NODE.
        general = cloud.told(r"yurttunnel forward add 9000=NODE/NODE:80 .*")
        general = general.partition("  ")[0].replace("NODE", NODE)
        other.type(general.replace("9000", "9001") + " && curl -sS http://127.0.0.1:9001/")
        await self.eventually(
            lambda: other.screen().count("\nhello") == 2, "it leads there, too", READY_SECONDS
        )

        self.assertIn(f"as {NODE}\n", edge.log)
        secret = second.split()[0].split(".")[1]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                self.assertNotIn(secret, (process / "cmdline").read_text("utf-8", "replace"))
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended meanwhile.
