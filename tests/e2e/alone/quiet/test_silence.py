"""Silent peers: partitions of each kind, and a frozen process."""

from __future__ import annotations

import signal

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Echo, RequestClient
from tests.e2e.outages.site import SERVER, MachineAgent, SiteTestCase
from tests.e2e.programs import Program

DETECTION = 25.0
"""The seconds within which a dead peer is detected without streams; with streams it is 7.5 s
(protocol.md)."""

BUSY_DETECTION = 7.5
SLACK = 2.0
"""Additional seconds on a machine that runs similar tests at the same time."""

RESUME_WINDOW = "120s"

DEADLINE = 30.0
"""The seconds within which each dial succeeds or fails."""

NODES = {"edge-1": "partition", "edge-2": "deaf", "other": "mute", "cloud-2": "frozen"}
"""The nodes and their faults. The first node has no stream."""


class SilenceTests(SiteTestCase):
    """Four nodes, each disconnected in its own way at the same moment.

    Both ends must notice within the time that the protocol promises.
    """

    # The streams must survive the detection time of the node without streams.
    server_extra = ("--resume-window", RESUME_WINDOW)

    async def test_silence_is_detected_on_both_sides_and_streams_continue(self) -> None:
        """In each case dials fail with a reason, and no stream is lost."""
        agents = {
            machine: self.make_agent(machine, "--resume-window", RESUME_WINDOW) for machine in NODES
        }
        for agent in agents.values():
            agent.start()
        await gatherResults([Deferred.fromCoroutine(one.ready(60)) for one in agents.values()])
        await self.watch(self.server, *agents.values())
        targets = {machine: self.listen_on(machine, Echo) for machine in NODES}
        clients = {}
        for machine in list(NODES)[1:]:
            clients[machine] = await self.echo(machine, targets[machine])

        self.cut(agents["cloud-2"])
        cut = reactor.seconds()
        answers = [Deferred.fromCoroutine(client.round_trip()) for client in clients.values()]
        due = cut + BUSY_DETECTION + SLACK
        for machine in clients:
            await self.missed_by(due, machine)
        for machine in ("edge-2", "other"):
            await self.notices_by(due, agents[machine], machine)
        print(f"\nwith a stream: noticed after {reactor.seconds() - cut:.1f} s")
        dials = [
            Deferred.fromCoroutine(self.status_through(machine, targets[machine], RequestClient()))
            for machine in clients
        ]
        due = cut + DETECTION + SLACK
        await self.missed_by(due, "edge-1")
        await self.notices_by(due, agents["edge-1"], "edge-1")
        print(f"without: noticed after {reactor.seconds() - cut:.1f} s")
        statuses = await self.within(DEADLINE, gatherResults(dials), "the dials are answered")
        self.assertEqual(statuses, [503] * len(dials))

        self.heal(agents["cloud-2"])
        await self.within(60, gatherResults(answers), "each echo gets its answer")
        for machine in NODES:
            await self.eventually(
                lambda machine=machine: self.is_back(machine), f"{machine} is back", 60
            )
            (await self.echo(machine, targets[machine])).drop()
        self.assertEqual(len(await self.server.agents()), len(NODES))
        lost = await self.server.metric(
            "yurttunnel_server_stream_ends_total", reason="session_lost"
        )
        self.assertEqual(lost, 0)

    def cut(self, frozen: Program) -> None:
        """Disconnect all four."""
        for rule in self.rules():
            self.gateway.add(*rule)
        self.network.run("cloud", "iptables", "-A", "INPUT", *self.mute)
        frozen.signal(signal.SIGSTOP)
        self.addCleanup(frozen.signal, signal.SIGCONT)

    def heal(self, frozen: Program) -> None:
        """Reconnect all four."""
        frozen.signal(signal.SIGCONT)
        for rule in self.rules():
            self.gateway.remove(*rule)
        self.network.run("cloud", "iptables", "-D", "INPUT", *self.mute)

    mute = ("-s", "10.77.0.61", "-d", SERVER, "-j", "DROP")
    """A rule that drops the packets of ``other``."""

    def rules(self) -> list[tuple[str, ...]]:
        """Drop packets to and from ``edge-1``, and packets to ``edge-2``."""
        first, second = (self.network.addresses[name][0] for name in ("edge-1", "edge-2"))
        return [
            ("-s", first, "-j", "DROP"),
            ("-d", first, "-j", "DROP"),
            ("-d", second, "-j", "DROP"),
        ]

    async def missed_by(self, due: float, node: str) -> None:
        """Require that the server reports by a deadline that a node's session has no connection."""

        async def missed() -> bool:
            return not await self.is_back(node)

        await self.eventually(missed, f"the server misses {node}", due - reactor.seconds())

    async def is_back(self, node: str) -> bool:
        """Whether the server reports that the node's session has a connection."""
        agents = await self.server.agents()
        return any(entry["node"] == node and entry["connected"] for entry in agents)

    async def notices_by(self, due: float, agent: MachineAgent, machine: str) -> None:
        """Require that an agent detects by a deadline that its connection is dead."""

        async def noticed() -> bool:
            return await agent.metric("yurttunnel_agent_connections_lost_total") > 0

        what = f"the agent of {machine} misses its server"
        await self.eventually(noticed, what, due - reactor.seconds())
