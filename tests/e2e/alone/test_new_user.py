"""The procedure of docs/testing.md: from an installation to a response of a machine behind NAT.

The server's machine is behind NAT, too: its router forwards the port for agents only. A newcomer
types what the README says: the installation and the first command; the second command is printed by
the server, the third by the agent.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.clients import HttpTarget
from tests.e2e.guides import blocks
from tests.e2e.installs import InstallingTestCase, can_build_here
from tests.e2e.network.sites import Sites
from tests.e2e.programs import READY_SECONDS, ROOT
from tests.e2e.support import which
from tests.e2e.terminals import Terminal

SECONDS = 90.0
"""The maximum seconds from the installation to the response."""

SERVER, NODE = "home", "edge-1"

ROUTER, AGENT_PORT = "other", 10262


def typed() -> list[list[str]]:
    """Return the commands in the README for a newcomer: the lines of each block."""
    return [
        block.text.splitlines() for block in blocks(ROOT / "README.md") if "newcomer" in block.marks
    ]


class NewUserTests(InstallingTestCase):
    """Two machines behind NAT, and three commands."""

    def sit_down(self, machine: str) -> Terminal:
        """Open a terminal on a machine, in its checkout of the repository."""
        home = f"{self.directory}/{machine}"
        environment = {
            # The Python of the tests, and otherwise the programs of a minimal system.
            "PATH": f"{Path(sys.executable).resolve().parent}:{os.defpath}",
            "LANG": "C.UTF-8",
            # No package index is reachable here; the packages of the tests are added afterwards.
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # As --no-build-isolation: pip takes it for the result.
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONPATH": self.tools,
            # Root keeps the capabilities that it has on this machine.
            "YURTTUNNEL_STATE_DIR": f"{home}/state",
            "YURTTUNNEL_NODE_NAME": machine,
        }
        with self.network.inside(machine):
            terminal = Terminal(which("sh"), f"{home}/checkout", Path(f"{home}.log"), environment)
        self.addCleanup(terminal.close)
        return terminal

    async def installed(self, machine: str, terminal: Terminal) -> None:
        """Wait until the typed commands have installed it, and add packages that no index has
        here.
        """
        terminal.type("echo status $?")
        status = await self.eventually(
            lambda: terminal.find_line(r"status \d+"), "it is installed", SECONDS
        )
        self.assertEqual("status 0", status, terminal.log)
        await self.add_packages_path(f"{self.directory}/{machine}/checkout/yurt/bin/python")

    async def test_three_commands(self) -> None:
        """They lead to a page of the node, and no secret is displayed."""
        which("curl")
        if not can_build_here():
            raise SkipTest("setuptools, with which to build, cannot be had here")
        [install], [first], later = typed()
        self.network = Sites()
        self.addCleanup(self.network.close)
        server_address = self.network.add_nat_machine(SERVER, ROUTER, AGENT_PORT)
        with self.network.inside(NODE):
            self.listen(HttpTarget, 80, self.network.addresses[NODE][0])
        self.tools = self.build_tools()
        for machine in (SERVER, NODE):
            Path(self.directory, machine).mkdir()
            self.copied_sources(f"{machine}/checkout")

        began = reactor.seconds()
        cloud, edge = self.sit_down(SERVER), self.sit_down(NODE)
        cloud.type(install)
        edge.type(install)
        await self.installed(SERVER, cloud)
        await self.installed(NODE, edge)
        installed = reactor.seconds()

        # As in the README for a server whose nodes use another address than its own.
        cloud.type(f"{first} --cert-ips {server_address}")
        second = await self.eventually(
            lambda: cloud.find_line(r"YURTTUNNEL_JOIN_TOKEN=\S+ yurttunnel agent .*"),
            "the server tells what to run on the node",
            READY_SECONDS,
        )
        self.assertIn(f"{server_address}:{AGENT_PORT}", second)
        edge.type(second)
        third = await self.eventually(
            lambda: edge.find_line(r"yurttunnel forward add 9000=.*"),
            "the agent tells what to run on the server",
            READY_SECONDS,
        )
        other = self.sit_down(SERVER)
        other.type(". yurt/bin/activate")
        other.type(third)
        await self.eventually(
            lambda: other.find_line(r"127\.0\.0\.1:9000 forwards to edge-1/192\.168\.50\.31:80"),
            "the port is open",
            READY_SECONDS,
        )
        other.type("curl -sS --max-time 20 http://127.0.0.1:9000/")
        await self.eventually(
            lambda: other.find_line("hello.*"), "there is an answer", READY_SECONDS
        )
        elapsed = reactor.seconds() - began
        print(f"\n{elapsed:.1f} s, {installed - began:.1f} s of it for the installation")
        self.assertLess(elapsed, SECONDS)

        # The server's other commands work with a node's name instead of NODE.
        general = cloud.find_line(r"yurttunnel forward add 9000=NODE/NODE:80 .*")
        general = general.partition("  ")[0].replace("NODE", NODE)
        other.type(general.replace("9000", "9001") + " && curl -sS http://127.0.0.1:9001/")
        await self.eventually(
            lambda: other.screen().count("\nhello") == 2, "it leads there, too", READY_SECONDS
        )
        # The commands that follow in the README work, too.
        for line in later:
            other.type(line.partition("#")[0].replace("9000", "9002").replace("NODE", NODE))
        other.type("curl -sS --max-time 20 http://127.0.0.1:9002/")
        await self.eventually(
            lambda: other.screen().count("\nhello") == 3, "that leads there, too", READY_SECONDS
        )
        self.assertTrue(other.find_line(rf"{NODE} .*connected.*"))

        self.assertIn(f"as {NODE}\n", edge.log)
        secret = second.split()[0].split(".")[1]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                self.assertNotIn(secret, (process / "cmdline").read_text("utf-8", "replace"))
            except (FileNotFoundError, ProcessLookupError):
                continue  # It may have ended already.
