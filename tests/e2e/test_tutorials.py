"""The commands of guides, run as they stand there, on machines that are network namespaces.

A block of shell commands says behind ``sh`` on which machine it runs, and ``stays`` if it is a
program in the foreground; others are repeated until they succeed, as a reader would. What stands in
a block of text behind it has to be in what it prints. What a machine of the tests cannot do has a
mark of its own: see `NOT_RUN`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.guides import CLUSTER, Block, blocks
from tests.e2e.network.sites import Sites
from tests.e2e.programs import READY_SECONDS, ROOT, STOP_SECONDS
from tests.e2e.support import EndToEndTestCase

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

GUIDES = {
    path.stem: path
    for path in [
        *TUTORIALS,
        *(ROOT / "docs" / f"{name}.md" for name in ("standalone", "interception", "admin")),
    ]
}
"""The pages whose commands are run, by their names."""

MACHINES = {
    "server": ("cloud-2", "203.0.113.10/32"),
    "node": ("edge-1", "192.168.1.20/24"),
    "neighbor": ("edge-2", "192.168.1.30/24"),
}
"""What stands for the machines of the tutorials, and the address that each has there."""

NOT_RUN = {
    "install": "the README's lines, which CI runs, install it in the same way",
    "copy": "the token is copied without ssh",
    "by-hand": "it needs a program or a kind of objects that no cluster of the tests has",
    "newcomer": "tests.e2e.alone.test_new_user types it",
    "elsewhere": "another test has the same flags, an end-to-end one but for middlewares",
    "ci": "CI does it",
    "long": "it measures for minutes",
    CLUSTER: "tests.e2e.cluster.test_guides types it, where there is a cluster",
}
"""Marks of what is not run, and why not."""

FIRST_PART = 5
"""Blocks of standalone.md up to the answer on one machine."""


class TutorialsTests(EndToEndTestCase):
    """Who types what stands there gets what stands there."""

    async def setUp(self) -> None:
        """Make the machines."""
        await super().setUp()
        self.network = Sites()
        self.addCleanup(self.network.close)
        for machine, address in MACHINES.values():
            interface = "site" if machine.startswith("edge") else "lo"
            self.network.run(machine, "ip", "address", "add", address, "dev", interface)
        server, _ = MACHINES["server"]
        way = self.network.addresses[server][0]
        self.network.run("nat", "ip", "route", "add", "203.0.113.10/32", "via", way)
        for name in MACHINES:
            programs = Path(self.directory, name, "yurt", "bin")
            programs.mkdir(parents=True)
            command = programs / "yurttunnel"
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m yurttunnel.cli "$@"\n')
            command.chmod(0o755)

    async def follow(self, name: str, most: int | None = None) -> None:
        """Do what a page says, from its first block to its last or for ``most`` of them."""
        token = Path("S", "join-token")
        for number, block in enumerate(blocks(GUIDES[name])[:most]):
            where = block.marks[0]
            if str(token) in block.text:
                # Who is asked to use it sees that it is there.
                made = Path(self.directory, "server" if "copy" in block.marks else where, token)
                await self.eventually(made.exists, f"there is a file {token}", READY_SECONDS)
            if "copy" in block.marks:
                shutil.copy(made, Path(self.directory, where))
            elif where in NOT_RUN:
                continue
            elif "stays" in block.marks:
                self.start(where, block.text, f"{name}-{number}-{where}.log")
            else:
                await self.run_block(where, block)

    def environment(self) -> dict[str, str]:
        """Return that of the commands."""
        return {**os.environ, "PYTHONPATH": str(ROOT), "no_proxy": "*"}

    def start(self, where: str, text: str, log: str) -> None:
        """Run a program on a machine up to the end of the test."""
        machine, _ = MACHINES[where]
        with open(Path(self.directory, log), "wb") as output, self.network.inside(machine):
            process = subprocess.Popen(
                ["bash", "-euc", text],
                cwd=Path(self.directory, where),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.addCleanup(self.end, process)

    def end(self, process: subprocess.Popen) -> None:
        """End a program and what it has started."""
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    async def run_block(self, where: str, block: Block) -> None:
        """Run commands until they succeed and print what they are to print."""
        last = ""

        async def succeeds() -> bool:
            nonlocal last
            with self.network.inside(MACHINES[where][0]):
                running = getProcessOutputAndValue(
                    shutil.which("bash"),
                    ["-euo", "pipefail", "-c", block.text],
                    env=self.environment(),
                    path=str(Path(self.directory, where)),
                    reactor=reactor,
                )
            output, errors, status = await running
            printed = output.decode("utf-8", "replace")
            last = f"status {status}: {printed}{errors.decode('utf-8', 'replace')}"
            return status == 0 and all(line in printed for line in block.printed)

        try:
            await self.eventually(succeeds, block.text, READY_SECONDS)
        except self.failureException as error:
            self.fail(f"{error}; {last}")

    async def test_first_tunnel(self) -> None:
        """One machine."""
        await self.follow("first-tunnel")

    async def test_raspberry_pi(self) -> None:
        """A node behind NAT."""
        await self.follow("raspberry-pi")

    async def test_standalone(self) -> None:
        """Both ends on one machine, and then on two."""
        await self.follow("standalone")

    async def test_what_goes_on_from_there(self) -> None:
        """Server and agent of its first part are asked by HTTP, and by their socket."""
        await self.follow("standalone", FIRST_PART)
        for name in ("interception", "admin"):
            await self.follow(name)

    async def test_prometheus(self) -> None:
        """Figures of a node behind NAT."""
        await self.follow("prometheus")

    async def test_gateway(self) -> None:
        """A machine of the site that has no agent is reached, and what is not allowed is not."""
        await self.follow("gateway")
