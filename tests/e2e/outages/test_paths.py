"""One upload, one download and one echo survive every fault that they can, on each path.

Paths differ in what is between a caller and an agent: a server of one process or of several, IPv4
or IPv6 between it and the agent, and whether the server parses requests or passes connections
through. Segmentation offload is disabled here, so that losses are of packets as on real networks.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import ConnectError

from tests.e2e.clients import (
    Download,
    Echo,
    EchoClient,
    Incomplete,
    Peer,
    RequestClient,
    Sink,
    Source,
    Stalled,
    Target,
    connect_directly,
)
from tests.e2e.cluster.world import AGENT_PORT, API
from tests.e2e.network.namespaces import run
from tests.e2e.network.sites import Sites
from tests.e2e.outages.clocks import WallClock
from tests.e2e.outages.gateway import (
    RESET,
    Gateway,
    disable_segmentation_offload,
    set_min_rto,
)
from tests.e2e.outages.site import SERVER, SERVER_6, SiteTestCase, source_port
from tests.e2e.programs import Program
from tests.e2e.steering.support import EDGE_4, EDGE_6, FAMILIES, SteeringTestCase
from tests.e2e.stopwatch import DeadlineExceeded
from tests.e2e.support import which
from yurttunnel.steering.probe_schedule import MIN_PAUSE

Fault = Callable[[], Awaitable[None]]

NODE = "edge-1"

PACE = 0.1
"""Seconds between two chunks of 256 KiB: so the transfers last as long as the test."""

LOSS = 0.03
"""The fraction of packets that is lost."""

LOST = 20
"""The number of packets that must be lost, or queued, before a fault counts as effective."""

MIN_RTO = 20
"""The kernels' minimum retransmission timeout in milliseconds. Smaller packets are tried with the
first retransmission after 3 s, and timeouts double: starting at 200 ms, or at more after losses,
that may be after 12 s, and twice within one handshake."""

NARROW = 1300
"""The reduced path MTU in bytes; IPv6 requires 1280."""

SLOW = "2mbit"
"""The rate of a slow link in bits per second; the transfers could use ten times as much."""

PROBE_ON_SILENCE = "1"
"""The value of tcp_mtu_probing that tries smaller packets once a black hole is detected."""

STEPS = tuple(sign * size for size in (30, 3600, 400 * 24 * 3600) for sign in (1, -1))
"""Seconds by which the clock is stepped: more than any timeout, a wrong time zone, no battery."""

FAULT_SECONDS = 0.3
"""Seconds for which a wrong time lasts, and between two samples of what must not change."""

FROZEN = 1.5
"""Seconds for which a process is stopped: less than the time until a silent peer is detected."""

DIALS = 100
"""The number of concurrent callers."""

SOON = 10.0
"""Seconds within which transfers must make progress."""

DETECTION = 7.5
"""Seconds until silence is detected while there are streams (protocol.md)."""

SLACK = 10.0
"""Additional seconds for a busy machine."""

FIRST_PORT, PORTS = 17001, 6
"""The first port of targets that are passed through, and the number of ports; none is the API's."""

PASSTHROUGH_PORT = "10270"

STEERING = "yurttunnel_server_steering"

DRAIN = "90s"
"""The drain timeout of programs."""

GARBAGE = 4096
"""The number of bytes to send that are not TLS."""

BEGINNING = bytes([22, 3, 1])
"""The first bytes of a ClientHello."""

REPAIR = MIN_PAUSE + SLACK
"""Seconds within which removed nft rules are repaired."""

READY = 60.0
"""Seconds within which a program of a cluster is ready on a busy machine."""


class Paced(Source):
    """A rate-limited source of unlimited data."""

    def resumeProducing(self) -> None:
        """Write the next chunk after a pause."""
        self._next = reactor.callLater(PACE, super().resumeProducing)

    def connectionLost(self, reason) -> None:
        """Stop writing."""
        if self._next.active():
            self._next.cancel()
        super().connectionLost(reason)


class TunnelPath:
    """The interface of each path, and the tests for all of them."""

    network: Sites
    gateway: Gateway
    server: Program
    agent: Program
    server_address: str
    """The server's address for the agent, without the port."""
    agent_port: int

    def prepare(self, program: Program) -> None:
        """Give a program its own wall clock."""
        clock = WallClock(self.directory, program.arguments[0])
        self.clocks.append(clock)
        program.run_under(*clock.prefix())

    def break_in(self) -> None:
        """Prepare the network for the loss of single packets."""
        self.clocks: list[WallClock] = []
        disable_segmentation_offload(self.network, "cloud", NODE, "nat")
        set_min_rto(self.network, MIN_RTO)
        for machine in ("cloud", NODE):
            with self.network.inside(machine):
                Path("/proc/sys/net/ipv4/tcp_mtu_probing").write_text(PROBE_ON_SILENCE)

    def target(self, build: Callable[[], Peer]) -> Target:
        """Start a target on the node that is reachable on this path."""
        raise NotImplementedError

    async def call(self, target: Target, peer: Peer) -> Peer:
        """Connect a caller to a target on this path; fail if it is rejected."""
        raise NotImplementedError

    async def test_streams_outlive_faults(self) -> None:
        """No byte is lost or duplicated, and after each fault new streams work, too."""
        which("conntrack")
        self.gateway.count_merged()
        await self.begin()
        for fault in (
            self.losses,
            self.with_low_mtu,
            self.with_low_rate,
            self.a_forgetful_nat,
            self.resets,
            self.drop_outgoing,
            self.frozen_programs,
            self.clock_steps,
            self.with_stalled_readers,
            self.a_burst,
            self.no_descriptors,
            self.garbage,
            *self.further_faults(),
        ):
            began = reactor.seconds()
            await fault()
            await self.go_on()
            (await self.echo()).drop()
            name = fault.__name__.replace("_", " ")
            print(f"\n{name}: {reactor.seconds() - began:.1f} s", end="")
        await self.finish()
        self.assertEqual(self.gateway.merged(), 0, "packets are not joined")

    async def test_streams_end_with_a_process(self) -> None:
        """However a process ends, its streams end once, and new ones work as soon as it is back."""
        self.sources, self.sinks, self.echoes = map(self.target, (Paced, Sink, Echo))
        for victim, end in (
            (self.agent, self.killed),
            (self.agent, self.without_power),
            (self.agent, self.stopped),
            (self.server, self.killed),
        ):
            await self.open()
            ended = [peer.when_ended() for peer in (self.down, self.up, self.typist)]
            await end(victim)
            victim.start()
            await victim.ready(READY)
            # An agent's streams wait for it, until a new process has connected.
            await self.within(SOON, gatherResults(ended), "the streams end")
            await self.eventually(self.serves, "new streams work", 2 * SOON, 0.1)

    async def killed(self, victim: Program) -> None:
        """End a program with SIGKILL; the kernel closes its connections."""
        victim.kill()

    async def without_power(self, victim: Program) -> None:
        """End an agent, whose connections become silent."""
        await self.eventually(self.has_all_streams, "the server lists the session")
        self.gateway.drop_outgoing(await source_port(self.server, NODE))
        victim.kill()

    async def has_all_streams(self) -> bool:
        """Return whether the listed session is the one with the streams of :meth:`open`."""
        streams = [each["streams"] for each in await self.server.agents() if each["connected"]]
        return streams == [3]

    async def stopped(self, victim: Program) -> None:
        """End a program with SIGTERM; it waits for the last of its streams."""
        victim.signal(signal.SIGTERM)
        await self.go_on()
        (await self.echo()).drop()
        for peer in (self.down, self.up, self.typist):
            peer.drop()
        self.assertIn(await victim.ended(SOON), (0, -signal.SIGTERM))

    def further_faults(self) -> tuple[Fault, ...]:
        """Return the faults that apply to this path only."""
        return ()

    async def serves(self) -> bool:
        """Return whether a new stream works."""
        try:
            (await self.within(SOON, self.echo(), "an answer comes")).drop()
        except (self.failureException, Incomplete, ConnectError):
            return False
        return True

    async def begin(self) -> None:
        """Start the targets, and the streams that must survive all faults."""
        self.sources, self.sinks, self.echoes = map(self.target, (Paced, Sink, Echo))
        await self.open()

    async def open(self) -> None:
        """Open a stream of each kind, and wait until each has carried data."""
        self.down, self.up = Download(), Paced()
        former = len(self.sinks.peers)
        await self.call(self.sources, self.down)
        await self.call(self.sinks, self.up)
        self.typist = await self.echo()
        # With pass-through, a caller is connected before the target is dialed.
        await self.eventually(lambda: len(self.sinks.peers) > former, "the sink is reached", SOON)
        await self.go_on()

    async def echo(self) -> EchoClient:
        """Make one round trip on a new stream."""
        client = EchoClient(reactor)
        await self.call(self.echoes, client)
        await self.within(SOON, client.round_trip(), "an echo is answered")
        return client

    async def go_on(self, seconds: float = SOON) -> None:
        """Require that each stream makes progress."""
        sink = self.sinks.peers[-1]
        before = self.down.received, sink.received
        await self.within(seconds, self.typist.round_trip(), "the echo goes on")
        await self.eventually(
            lambda: self.down.received > before[0] and sink.received > before[1],
            "the transfers go on",
            seconds,
        )

    async def finish(self) -> None:
        """Let the server drain, which ends with the streams.

        Require that their data is complete, and that the session is still the first one.
        """
        self.server.signal(signal.SIGTERM)
        await self.drains()
        await self.go_on()
        ends = await self.agent.metric("yurttunnel_agent_session_ends_total")
        self.assertEqual(ends, 0)
        self.up.payload.finish()
        await self.within(SOON, self.up.when_read_ended(), "the upload ends")
        [sink], [source] = self.sinks.peers, self.sources.peers
        self.assertEqual(self.up.answer.decode(), self.up.payload.digest)
        self.assertEqual(sink.digest, self.up.payload.digest)
        source.payload.finish()
        await self.within(SOON, self.down.when_lost(), "the download ends")
        self.assertEqual(self.down.digest, source.payload.digest)
        self.assertEqual(self.down.received, source.payload.sent)
        await self.typist.round_trip()
        self.typist.drop()
        self.assertIn(await self.server.ended(2 * SOON), (0, -signal.SIGTERM))
        # The agent must not have a retry scheduled when its resources are compared.
        self.server.start()
        await self.eventually(self.serves, "the next server is used", 3 * SOON, FAULT_SECONDS)

    async def drains(self) -> None:
        """Wait until the server drains."""

        async def is_reported() -> bool:
            try:
                return (await self.server.get("/readyz"))[0] == 503
            except DeadlineExceeded:
                return False

        await self.eventually(is_reported, "the server drains", 2 * SOON)

    async def resumed(self, before: float) -> None:
        """Require that the agent has reconnected."""

        async def is_back() -> bool:
            return await self.agent.metric("yurttunnel_agent_resumptions_total") > before

        await self.eventually(is_back, "the session is resumed", DETECTION + SLACK)

    # The faults

    async def losses(self) -> None:
        """Packets are lost at random in both directions."""
        with self.gateway.packet_loss(LOSS):
            await self.eventually(
                lambda: self.gateway.packet_count() >= LOST, "packets are lost", 2 * SOON, 0.1
            )
            await self.go_on()

    async def with_low_mtu(self) -> None:
        """The path MTU drops without an ICMP message."""
        with self.gateway.drop_larger_than(NARROW):
            await self.eventually(
                lambda: self.gateway.packet_count("OUTPUT") > 0, "a large packet is swallowed", SOON
            )
            await self.go_on(3 * SOON)

    async def with_low_rate(self) -> None:
        """A link with a tenth of the required rate is full, and is not considered silent."""
        before = await self.agent.metric("yurttunnel_agent_resumptions_total")
        with self.gateway.rate_limit(SLOW):
            await self.eventually(
                lambda: self.gateway.queued_packets() >= LOST, "packets wait", 2 * SOON, 0.1
            )
            await self.go_on(3 * SOON)
        self.assertEqual(await self.agent.metric("yurttunnel_agent_resumptions_total"), before)

    async def a_forgetful_nat(self) -> None:
        """The mapping of the connection is lost, and the agent gets a reset."""
        before = await self.agent.metric("yurttunnel_agent_resumptions_total")
        with self.gateway.connections_flushed():
            await self.resumed(before)

    async def resets(self) -> None:
        """For a second, each of the agent's packets is answered with a reset."""
        before = await self.agent.metric("yurttunnel_agent_resumptions_total")
        with self.gateway.with_rules(("-p", "tcp", "-d", self.server_address, *RESET)):
            await self.pause(1)
        await self.resumed(before)

    async def drop_outgoing(self) -> None:
        """No packet reaches the agent until the silence is detected."""
        before = await self.agent.metric("yurttunnel_agent_resumptions_total")
        lost = await self.agent.metric("yurttunnel_agent_connections_lost_total")

        async def missed() -> bool:
            return await self.agent.metric("yurttunnel_agent_connections_lost_total") > lost

        with self.gateway.with_rules(("-p", "tcp", "-s", self.server_address, "-j", "DROP")):
            await self.eventually(missed, "the agent misses its server", DETECTION + SLACK)
        await self.resumed(before)

    async def frozen_programs(self) -> None:
        """Each program in turn is stopped for a while."""
        for program in (self.agent, self.server):
            program.signal(signal.SIGSTOP)
            self.addCleanup(program.signal, signal.SIGCONT)
            await self.pause(FROZEN)
            program.signal(signal.SIGCONT)
            await self.go_on()

    async def clock_steps(self) -> None:
        """The wall clock of each program is stepped forward and back, without an effect."""
        lost = await self.agent.metric("yurttunnel_agent_connections_lost_total")
        for clock in self.clocks:
            for seconds in STEPS:
                clock.advance(seconds)
                await self.pause(FAULT_SECONDS)
                await self.go_on()
            clock.advance(0)
        now = await self.agent.metric("yurttunnel_agent_connections_lost_total")
        self.assertEqual(now, lost)

    async def with_stalled_readers(self) -> None:
        """A caller and a target do not read."""
        deaf = self.target(Stalled)
        source = self.target(lambda: Source(None, hashed=False))
        stalled, sender = Stalled(), Source(None, hashed=False)
        await self.call(source, stalled)
        await self.call(deaf, sender)
        await self.eventually(lambda: source.peers, "the source is reached")
        sent: list[tuple[int, int]] = []

        def full() -> bool:
            sent.append((source.peers[0].payload.sent, sender.payload.sent))
            return len(sent) > 1 and sent[-1] == sent[-2]

        await self.eventually(full, "nothing more is taken from them", SOON, FAULT_SECONDS)
        await self.go_on()
        # A caller's FIN is behind data that the target has not read.
        for peer in (stalled, sender, *deaf.peers):
            peer.drop()

    async def a_burst(self) -> None:
        """Many callers connect at the same time; all of them are served."""
        dials = [Deferred.fromCoroutine(self.echo()) for _ in range(DIALS)]
        for client in await gatherResults(dials, consumeErrors=True):
            client.drop()

    async def no_descriptors(self) -> None:
        """The server has no free descriptor for a new caller."""
        pid, limit = self.server.pid, resource.RLIMIT_NOFILE
        former = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (max(map(int, self.server.descriptors())) + 1, former[1]))
        with ExitStack() as restored:
            restored.callback(resource.prlimit, pid, limit, former)
            # All free descriptors are used.
            connected = []
            while (client := await self.served_or_not()) is not None:
                connected.append(client)
            await self.go_on()
        for client in connected:
            client.drop()

    async def garbage(self) -> None:
        """A client that is no agent sends data to the port for agents."""
        endpoint = TCP6ClientEndpoint if ":" in self.server_address else TCP4ClientEndpoint
        stranger = RequestClient(os.urandom(GARBAGE))
        await connect_directly(
            endpoint(reactor, self.server_address, self.agent_port, timeout=SOON), stranger
        )
        self._end_peer_with_test(stranger)
        await self.within(2 * SOON, stranger.when_ended(), "it is turned away")

    async def served_or_not(self) -> EchoClient | None:
        """Make a round trip on a new stream; return `None` if the connection fails."""
        try:
            return await self.echo()
        except (self.failureException, Incomplete, ConnectError):
            return None


class SitePath(TunnelPath):
    """By CONNECT; a mixin for the test case of a site."""

    server_extra = ("--drain-timeout", DRAIN)

    async def setUp(self) -> None:
        """Start the server and the agent."""
        self.clocks = []
        await super().setUp()
        self.break_in()
        self.server_address = SERVER if self.version == 4 else SERVER_6
        self.agent_port = self.server.agent_port
        self.agent = await self.start_agent(NODE, "--drain-timeout", DRAIN)

    def target(self, build: Callable[[], Peer]) -> Target:
        """Start a target on the node."""
        return self.listen_on(NODE, build)

    async def call(self, target: Target, peer: Peer) -> Peer:
        """Connect a caller to a target."""
        self.assertEqual(await self.status_through(NODE, target, peer), 200)
        return peer


class PlainTests(SitePath, SiteTestCase):
    """Over IPv4."""


class IPv6Tests(SitePath, SiteTestCase):
    """The same, over IPv6."""

    version = 6


class PassThroughTests(TunnelPath, SteeringTestCase):
    """Connections to addresses of nodes, which firewall rules redirect to ``--passthrough-port``.

    Every second target is reached by the node's IPv6 address.
    """

    async def setUp(self) -> None:
        """Start a cluster, its server and the agent, and wait until the ports are redirected."""
        await super().setUp()
        self.clocks = []
        self.server_address, self.agent_port = SERVER, AGENT_PORT
        world = await self.steered_world(NODE)
        self.gateway = Gateway(self.network, 4)
        self.break_in()
        self._free = list(range(FIRST_PORT, FIRST_PORT + PORTS))
        ports = ",".join(map(str, self._free))
        await world.set_proxy_ports({"https-proxy-ports": ports})
        self.server = await world.server(
            SERVER,
            *("--enable-iptables=true", "--drain-timeout", DRAIN),
            *("--passthrough-port", PASSTHROUGH_PORT, "--passthrough-ports", f"10250,{ports}"),
        )
        await world.publish_servers()
        self.agent = await self.edge_agent(NODE, "--drain-timeout", DRAIN)
        for program in (self.server, self.agent):
            self.prepare(program)
            program.start()
        for program in (self.server, self.agent):
            await program.ready(READY)
        await self.connected([self.server], [NODE])
        last = f"TUNNEL-PORT-{self._free[-1]}"
        for program in FAMILIES:
            await self.eventually_rules(lambda rules: last in rules, "all ports are led", program)
        self._idle = self.agent.descriptors()

    def target(self, build: Callable[[], Peer]) -> Target:
        """Start a target at an address of the node."""
        port = self._free.pop()
        with self.network.inside(NODE):
            return self.listen(build, port, self.address(port))

    def address(self, port: int) -> str:
        """Return the node's address for a target's port."""
        return EDGE_6 if port % 2 else EDGE_4

    async def call(self, target: Target, peer: Peer) -> Peer:
        """Connect to the node's address from the server's machine."""
        endpoint = TCP6ClientEndpoint if target.port % 2 else TCP4ClientEndpoint
        await connect_directly(
            endpoint(reactor, self.address(target.port), target.port, timeout=SOON), peer
        )
        self._end_peer_with_test(peer)
        return peer

    def further_faults(self) -> tuple[Fault, ...]:
        """Return the faults of a cluster and of its firewall."""
        return self.no_api, self.flushed_rules

    async def no_api(self) -> None:
        """The API is unreachable."""
        port = str(self.world.api.port)
        refused = ("INPUT", "-p", "tcp", "-d", API, "--dport", port, *RESET)
        run("iptables", "-I", *refused)
        await self.pause(FAULT_SECONDS)
        await self.go_on()
        (await self.echo()).drop()
        run("iptables", "-D", *refused)

    async def flushed_rules(self) -> None:
        """All rules, and then all chains, are removed; they are repaired."""
        made = self.all_rules()
        for program in FAMILIES:
            run(program, "-t", "nat", "-F")
        await self.go_on()
        for program in FAMILIES:
            # In one command: rules that are already repaired would prevent the deletion of chains.
            run(f"{program}-restore", stdin="*nat\nCOMMIT\n")
        await self.go_on()
        await self.eventually(lambda: self.all_rules() == made, "they are repaired", REPAIR, 0.1)

    async def begin(self) -> None:
        """Also connect a caller that never sends more than the first bytes of a ClientHello."""
        await super().begin()
        self.unfinished_hello = await self.stranger(BEGINNING)

    async def stranger(self, said: bytes) -> RequestClient:
        """Send data directly to the pass-through port, without a redirection."""
        stranger = RequestClient(said)
        endpoint = TCP4ClientEndpoint(reactor, SERVER, int(PASSTHROUGH_PORT), timeout=SOON)
        await connect_directly(endpoint, stranger)
        self._end_peer_with_test(stranger)
        return stranger

    async def garbage(self) -> None:
        """A caller that sends no TLS, or too little of it, to the pass-through port is rejected."""
        garbage = await self.stranger(os.urandom(GARBAGE))
        ends = garbage.when_ended(), self.unfinished_hello.when_ended()
        await self.within(2 * SOON, gatherResults(ends), "they are turned away")
        await super().garbage()

    async def drains(self) -> None:
        """Wait until new connections are no longer redirected to the server, either."""
        await super().drains()
        for program in FAMILIES:
            await self.eventually_rules(
                lambda rules: "TUNNEL" not in rules, "the rules are gone", program
            )
        with self.assertRaises(ConnectError):
            await self.echo()

    async def finish(self) -> None:
        """Require that all data was passed through, and that nothing remains."""
        passed = await self.server.metric(f"{STEERING}_passthrough_connections_total")
        self.assertGreater(passed, DIALS)
        await super().finish()
        await self.descriptors_return(self.agent, self._idle)
