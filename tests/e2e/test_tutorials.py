"""The commands of guides, run unchanged on machines that are network namespaces.

The info string of a block of shell commands has, after ``sh``, the machine, and ``stays`` if the
block is a program in the foreground. Other blocks are repeated until they succeed, as a reader
would do, or fail if the page shows a failure (``fails``). The status of a block with ``finds`` is
ignored: it reports problems of the machine, such as its clock. The output must contain the block of
text that follows. Blocks that a machine of the tests cannot run have other marks: see `NOT_RUN`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.guides import CLUSTER, Block, blocks, code
from tests.e2e.kubelets import Kubelet, hello, serving_identity
from tests.e2e.network.sites import Sites
from tests.e2e.programs import ROOT, SHELL_READY_SECONDS, STOP_SECONDS
from tests.e2e.support import EndToEndTestCase

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))

GUIDES = {
    path.stem: path
    for path in [
        *TUTORIALS,
        *(ROOT / "docs" / f"{name}.md" for name in ("standalone", "interception", "admin")),
        *(ROOT / "docs" / f"{name}.md" for name in ("configuration", "middlewares", "operations")),
        *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "steering")),
    ]
}
"""The pages whose commands are run, by name."""

MACHINES = {
    "server": ("cloud-2", "203.0.113.10/32"),
    "node": ("edge-1", "192.168.1.20/24"),
    "neighbor": ("edge-2", "192.168.1.30/24"),
}
"""The namespaces for the machines of the tutorials, and the address that each has there."""

NOT_RUN = {
    "install": "the README's lines, which CI runs, install it in the same way",
    "copy": "the token is copied without ssh",
    "by-hand": "it needs a program or a kind of objects that no cluster of the tests has",
    "newcomer": "tests.e2e.alone.test_new_user types it",
    "elsewhere": "another test has the same flags, from end to end",
    "ci": "CI does it",
    "long": "it measures for minutes",
    CLUSTER: "tests.e2e.cluster.test_guides types it, where there is a cluster",
}
"""The marks of blocks that are not run, and the reason."""

FIRST_PART = 5
"""The number of blocks of standalone.md up to the response on one machine."""


def any_directory(text: str) -> str:
    """Return a text without the random part of a temporary directory's name."""
    return re.sub(r"(?<=/yurttunnel-quickstart-)\w+", "...", text)


class TutorialsTests(EndToEndTestCase):
    """The commands of guides print what the guides show."""

    async def setUp(self) -> None:
        """Create the machines."""
        await super().setUp()
        self.network = Sites()
        self.addCleanup(self.network.close)
        for machine, address in MACHINES.values():
            interface = "site" if machine.startswith("edge") else "lo"
            self.network.run(machine, "ip", "address", "add", address, "dev", interface)
        server, _ = MACHINES["server"]
        gateway = self.network.addresses[server][0]
        self.network.run("nat", "ip", "route", "add", "203.0.113.10/32", "via", gateway)
        self.strict = {"CURL_HOME": self.directory}
        Path(self.directory, ".curlrc").write_text("fail-with-body\n")
        for name in MACHINES:
            programs = Path(self.directory, name, "yurt", "bin")
            programs.mkdir(parents=True)
            command = programs / "yurttunnel"
            command.write_text(
                f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{ROOT}"\n'
                f'exec {sys.executable} -m yurttunnel.cli "$@"\n'
            )
            command.chmod(0o755)

    async def follow(self, name: str, count: int | None = None) -> None:
        """Run the commands of a page, all blocks or the first ``count``."""
        token = Path("S", "join-token")
        for number, block in enumerate(blocks(GUIDES[name])[:count]):
            where = block.marks[0]
            if str(token) in block.text:
                # The page asks to use it, so a reader sees that it exists.
                made = Path(self.directory, "server" if "copy" in block.marks else where, token)
                await self.eventually(made.exists, f"there is a file {token}", SHELL_READY_SECONDS)
            if "copy" in block.marks:
                shutil.copy(made, Path(self.directory, where))
            elif where in NOT_RUN:
                continue
            elif "stays" in block.marks:
                await self.start(where, block, f"{name}-{number}-{where}.log")
            else:
                await self.run_block(where, block)

    def environment(self, where: str) -> dict[str, str]:
        """Return the environment of the commands installed on a machine."""
        programs = Path(self.directory, where, "yurt", "bin")
        return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "no_proxy": "*"}

    async def start(self, where: str, block: Block, log: str) -> None:
        """Run a program on a machine until the end of the test, and check its output."""
        machine, _ = MACHINES[where]
        path = Path(self.directory, log)
        with open(path, "wb") as output, self.network.inside(machine):
            process = subprocess.Popen(
                ["bash", "-euc", block.text],
                cwd=Path(self.directory, where),
                env=self.environment(where),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.addCleanup(self.end, process)
        expected = [any_directory(line) for line in block.printed]

        def printed() -> bool:
            text = any_directory(path.read_text())
            return all(line in text for line in expected)

        try:
            await self.eventually(
                printed, f"{block.text} prints what stands there", SHELL_READY_SECONDS
            )
        except self.failureException as error:
            self.fail(f"{error}; it has printed {path.read_text()}")

    def end(self, process: subprocess.Popen) -> None:
        """End a program and its descendants."""
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    async def run_block(self, where: str, block: Block) -> None:
        """Run commands until they succeed or fail as expected, and check their output."""
        last = ""

        async def succeeds() -> bool:
            nonlocal last
            with self.network.inside(MACHINES[where][0]):
                running = getProcessOutputAndValue(
                    shutil.which("bash"),
                    ["-euo", "pipefail", "-c", block.text],
                    env=self.environment(where) | ({} if block.printed else self.strict),
                    path=str(Path(self.directory, where)),
                    reactor=reactor,
                )
            output, errors, status = await running
            # The block of text that follows, or the status, identifies a result.
            fails = "fails" in block.marks
            printed = (errors if fails else output).decode("utf-8", "replace")
            last = f"status {status}: {(output + errors).decode('utf-8', 'replace')}"
            if "finds" not in block.marks and (status != 0) != fails:
                return False
            return all(line in printed for line in block.printed)

        try:
            await self.eventually(succeeds, block.text, SHELL_READY_SECONDS)
        except self.failureException as error:
            self.fail(f"{error}; {last}")

    async def test_first_tunnel(self) -> None:
        """One machine."""
        await self.follow("first-tunnel")

    async def test_raspberry_pi(self) -> None:
        """A node behind NAT."""
        await self.follow("raspberry-pi")

    async def test_standalone(self) -> None:
        """Both ends run on one machine, and then on two."""
        await self.follow("standalone")

    async def test_next_steps(self) -> None:
        """Server and agent of the first part are queried by HTTP and by socket, and diagnosed.

        The node gets a kubelet, whose certificate is self-signed.
        """
        machine, _ = MACHINES["neighbor"]
        with self.network.inside(machine):
            kubelet = Kubelet(reactor, hello, serving_identity(None, ["edge-1"]), port=10250)
        self.addCleanup(kubelet.stop)
        await self.follow("standalone", FIRST_PART)
        for name in ("interception", "admin", "operations"):
            await self.follow(name)
        self.assertEqual([b"/metrics"], [each.target for each in kubelet.requests])
        for bundle in ("running.tar.gz", "server.tar.gz"):
            with tarfile.open(Path(self.directory, "neighbor", bundle)) as archive:
                names = {member.name.partition("/")[2] for member in archive}
            self.assertIn("summary.txt", names)

    async def test_quickstart(self) -> None:
        """It continues to run, and prints what it can be used for."""
        await self.follow("quickstart")

    async def test_middlewares(self) -> None:
        """The first example is loaded from its file, and rejects requests that do not only read."""
        plugins = Path(self.directory, "server", "plugins", "twisted", "plugins")
        plugins.mkdir(parents=True)
        example = code(GUIDES["middlewares"], "python")
        (plugins / "read_only.py").write_text(example)
        await self.follow("middlewares")

    async def test_configuration(self) -> None:
        """An unknown key is reported, with the suggested one."""
        example = code(GUIDES["configuration"], "toml")
        wrong = example.replace("forward =", "forwards =")
        Path(self.directory, "server", "server.toml").write_text(wrong)
        await self.follow("configuration")

    async def test_steering(self) -> None:
        """A chain left by a previous server is removed."""
        machine, _ = MACHINES["server"]
        self.network.run(machine, "iptables", "-t", "nat", "-N", "TUNNEL-PORT")
        await self.follow("steering")
        self.assertNotIn("TUNNEL-PORT", self.network.run(machine, "iptables", "-t", "nat", "-S"))

    async def test_prometheus(self) -> None:
        """Metrics of a node behind NAT are scraped."""
        await self.follow("prometheus")

    async def test_gateway(self) -> None:
        """A machine of the site without an agent is reached, and forbidden destinations are not."""
        await self.follow("gateway")
