"""The exact error messages of the real commands for invalid command lines."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from twisted.internet import reactor
from twisted.internet.defer import DeferredSemaphore, gatherResults
from twisted.internet.error import ConnectError
from twisted.trial.unittest import SkipTest

from benchmarks.ports import free_ports
from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.hub.programs import Hub
from tests.e2e.outages.clocks import WallClock
from tests.e2e.programs import READY_SECONDS, Agent, Program
from tests.e2e.support import EndToEndTestCase, which

META_PORT = 10265
"""Of a server, unless flags say otherwise."""

_AGENT = "yurttunnel-agent --standalone --state-dir A --node-name edge-1 --node-ip 10.0.0.5"

_UNKNOWN = "there is no such flag"

REPORTED = {
    # An unknown flag, of each command.
    "yurttunnel-server --stat-dir S": f"--stat-dir: {_UNKNOWN}: did you mean --state-dir?",
    "yurttunnel-agent --tunnel-server-addr a": (
        f"--tunnel-server-addr: {_UNKNOWN}: did you mean --tunnelserver-addr?"
    ),
    "yurttunnel-quickstart --chek": f"--chek: {_UNKNOWN}: did you mean --check?",
    "yurthub --nodename=edge-1": f"--nodename: {_UNKNOWN}: did you mean --node-name?",
    "yurtproxy --zzz": f"--zzz: {_UNKNOWN}: --help-all shows all there are",
    # A flag of twist behind the command.
    "yurttunnel-server --log-level debug": (
        "--log-level: it is a flag of twist itself: write it before the command, twist --log-level"
        " LEVEL yurttunnel-server, or give --v=4 here for debug messages"
    ),
    "yurttunnel-agent --log-file x": (
        "--log-file: it is a flag of twist itself: write it before the command, twist --log-file"
        " FILE yurttunnel-agent"
    ),
    # A URL in place of an address.
    f"{_AGENT} --tunnelserver-addr http://192.0.2.7:10262": (
        "--tunnelserver-addr: 'http://192.0.2.7:10262' is a URL: write 192.0.2.7:10262"
    ),
    "yurttunnel-server --standalone --state-dir S --bind-address http://192.0.2.7": (
        "--bind-address: 'http://192.0.2.7' is a URL: write 192.0.2.7"
    ),
}


_IN_USE = "is in use by process {pid}, which has to be stopped first; or use another directory"


REPORTED_BY_COMMAND = {
    "server --stat-dir S": REPORTED["yurttunnel-server --stat-dir S"],
    "quickstart --chek": REPORTED["yurttunnel-quickstart --chek"],
    "server --log-level debug": (
        f"--log-level: {_UNKNOWN}: give --v=2 for each request, --v=4 for debug messages"
    ),
    "agent": (
        "--node-name is missing: give it or set NODE_NAME, or add --standalone where there is no"
        " cluster"
    ),
    "agent --standalone": (
        "--tunnelserver-addr is missing: give it; the server prints the whole command for a node"
        " when it is started, and so does yurttunnel token create there"
    ),
    "agent --standalone --tunnelserver-addr 192.0.2.7 --node-ip 10.0.0.5 --join-token id.secret": (
        "--join-token: the join token is not of the form id.secret.sha256:pin: copy it whole"
    ),
    "server --log-file x": (
        f"--log-file: {_UNKNOWN}: the log goes to standard error: 2> FILE puts it into a file"
    ),
    "server --standalone --meta-port x": (
        "--meta-port: 'x' is not a port: write a number from 1 to 65535"
    ),
}
"""Messages of ``yurttunnel``, which is not a command of ``twist``."""


class CommandLineTests(EndToEndTestCase):
    """Each error is one line on standard error, and status 64."""

    async def test_messages(self) -> None:
        """For all commands, with ``twist`` and with ``yurttunnel``."""
        semaphore = DeferredSemaphore(2)
        for module, all_expected in (
            ("twisted", REPORTED),
            ("yurttunnel.cli", REPORTED_BY_COMMAND),
        ):
            ended = await gatherResults(
                [semaphore.run(self.run_module, module, *line.split()) for line in all_expected],
                consumeErrors=True,
            )
            for (line, expected), (output, errors, status) in zip(
                all_expected.items(), ended, strict=True
            ):
                self.assertEqual(
                    (b"", f"{expected}\n", 64), (output, errors.decode(), status), line
                )


class StateDirectoryTests(EndToEndTestCase):
    """An unusable state directory gives one line, too, and status 1."""

    async def refused(self, expected: str, arguments: Sequence[str], *prefix: str) -> None:
        """Require that a command fails with this line."""
        _, errors, status = await self.run_module("twisted", *arguments, prefix=prefix)
        self.assertEqual((f"{expected}\n", 1), (errors.decode(), status))

    async def test_a_second_process(self) -> None:
        """Server, agent and hub name the process that uses the directory."""
        tunnel = await self.start_tunnel()
        hub = Hub(reactor, self.directory, "https://127.0.0.1:1")
        tunnel.others.append(hub)
        hub.start()

        async def serves() -> bool:
            try:
                return (await hub.get("/healthz"))[0] == 200
            except ConnectError:
                return False

        await self.eventually(serves, "the hub serves its pages", READY_SECONDS)
        for flag, directory, program in (
            ("--state-dir", tunnel.server.state, tunnel.server),
            ("--state-dir", tunnel.agent.state, tunnel.agent),
            ("--root-dir", f"{hub.state}/pki", hub),
        ):
            message = f"{flag}: {directory} {_IN_USE.format(pid=program.pid)}"
            await self.refused(message, program.arguments)

    async def test_a_parent_that_cannot_be_written(self) -> None:
        """The line has the command that creates the directory."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give up its privileges")
        above = os.path.join(self.directory, "above")
        os.mkdir(above, 0o555)
        await self.refused(
            f"--state-dir: {above}/S does not exist, and user id 0 may not create it in {above}:"
            f" make it as root, install -d -m 0700 -o 0 {above}/S, or choose another directory",
            ["yurttunnel-server", "--standalone", "--state-dir", f"{above}/S"],
            *(which("setpriv"), "--bounding-set=-dac_override,-dac_read_search"),
        )


class FirstStartTests(EndToEndTestCase):
    """Messages of an agent that cannot enrol yet, and retries."""

    def sentence(self, agent: Agent) -> str:
        """Return the first log message about the missing certificate."""
        match = re.search(r"was not obtained: (.*?); \d+ attempts have failed", agent.log)
        return "" if match is None else match[1]

    async def test_missing_server(self) -> None:
        """The dialed port is named."""
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        port = free_ports.take()
        agent = tunnel.another_agent(server_port=port)
        agent.start()
        await self.eventually(lambda: bool(self.sentence(agent)), "it says so", READY_SECONDS)
        self.assertEqual(
            f"127.0.0.1:{port}: Connection was refused by other side: 111: Connection refused.",
            self.sentence(agent),
        )

    async def test_no_token(self) -> None:
        """The message names the source of the token."""
        agent = self.make_tunnel().another_agent(token_path=None)
        agent.start()
        await self.eventually(lambda: not agent.running, "it ends", READY_SECONDS)
        message = agent.log.splitlines()[0]
        self.assertEqual(
            f"yurttunnel-agent: {agent.state} has no valid certificate for edge-1,"
            ' and there is no --join-token-file or --join-token: "yurttunnel token create" on the'
            " server creates one, and prints the command to run here",
            message,
        )

    async def test_clock_behind(self) -> None:
        """The message has the difference; the agent waits, and enrols when the clock is right."""
        tunnel = self.make_tunnel()
        clock = WallClock(self.directory, "agent")
        clock.advance(-43 * 60)
        tunnel.agent.run_under(*clock.prefix())
        tunnel.server.start()
        await tunnel.server.ready()
        tunnel.agent.start()
        await self.eventually(
            lambda: bool(self.sentence(tunnel.agent)), "it says so", READY_SECONDS
        )
        self.assertRegex(
            self.sentence(tunnel.agent),
            f"^127.0.0.1:{tunnel.server.agent_port}: this machine's clock is 43 minutes behind the"
            r" server's: it says \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. The agent waits until it is"
            " set$",
        )
        clock.advance(0)
        # Attempts that fail are at most half a minute apart.
        await tunnel.agent.ready(30 + READY_SECONDS)


class OnlyIpv6Tests(EndToEndTestCase):
    """A machine that has only IPv6 addresses, besides loopback."""

    async def test_the_defaults_serve(self) -> None:
        """With defaults the server accepts agents, and its pages are at their usual addresses."""
        network = ClusterNetwork(["fd00::7"])
        self.addCleanup(network.close)
        tunnel = self.make_tunnel()
        state = tunnel.server.state
        tunnel.server = server = Program(
            reactor,
            ["yurttunnel-server", "--standalone", "--state-dir", state],
            os.path.join(self.directory, "server.log"),
            META_PORT,
        )
        tunnel.agent = agent = Agent(
            reactor, self.directory, server_port=0, token_path=os.path.join(state, "join-token"),
            extra=("--tunnelserver-addr", "fd00::7"),
        )  # fmt: skip
        server.start()
        await server.ready()
        agent.start()
        await agent.ready()
