"""Streams survive lost connections, and otherwise end at once with a reason."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import UNIXClientEndpoint

from tests.e2e.clients import (
    Download,
    Echo,
    EchoClient,
    Peer,
    RequestClient,
    Sink,
    Source,
    connect,
)
from tests.e2e.faults import FaultProxy
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import Tunnel, max_growth
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import TwistedTransports

BULK = 400_000_000
"""Bytes of the one large download and the one large upload."""

DETECTION = 25.0
"""Seconds in which a dead peer is seen: ping interval and pong deadline."""


class CutTunnelTestCase(LeakTestCase):
    """Routes the agent's connection through a fault proxy."""

    proxy: FaultProxy

    async def start_cut_tunnel(self, **options) -> Tunnel:
        """Start a tunnel whose agent reaches the server through :attr:`proxy`."""

        def proxied(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        return await self.start_tunnel(proxied=proxied, **options)


class ResumptionTests(CutTunnelTestCase):
    """Large transfers, dials and echoes whose connection is lost."""

    async def test_bulk_and_echo_survive_three_resets_and_two_silent_drops(self) -> None:
        """400 MB down, 400 MB up and an echo complete while the connection is lost five times.

        Each loss comes when a further sixth of all bytes has arrived, so all three are running.
        """
        source = self.listen(lambda: Source(BULK))
        sink = self.listen(Sink)
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel(forwards=(source.port,))
        before = {p: p.resident() for p in (tunnel.server, tunnel.agent)}
        upload = Source(BULK)
        echo_client = EchoClient(reactor, 0.02)
        await self.connected(tunnel, echo, echo_client)
        started = reactor.seconds()
        download = await self.dial(tunnel.forward_ports[0], Download())
        await self.connected(tunnel, sink, upload)

        def finished() -> bool:
            return download.lost_reason is not None and upload.read_ended

        echoing = Deferred.fromCoroutine(echo_client.run(lambda: not finished()))
        (received,) = sink.peers
        for number, fault in enumerate(("reset", "black_hole", "reset", "swallow", "reset")):
            due = (number + 1) * 2 * BULK // 6
            await self.eventually(
                lambda due=due: download.received + received.received >= due,
                f"{due} bytes have arrived, {number} cuts so far",
                60,
            )
            for program, resident in before.items():
                self.assertLess(program.resident() - resident, max_growth(3))
            accepted = self.proxy.accepted
            self.assertEqual(self.proxy.for_all(fault), 1, "one connection was there to cut")
            cut = reactor.seconds()
            await self.eventually(
                lambda accepted=accepted: self.proxy.accepted > accepted,
                f"the agent comes back after {fault} number {number + 1}",
                DETECTION + 5,
            )
            print(f"\n{fault}: back after {reactor.seconds() - cut:.1f} s")
        await self.eventually(finished, "both transfers end", 60)
        seconds = reactor.seconds() - started
        latencies = await echoing
        print(f"\n2 x {BULK} bytes with five cuts in {seconds:.1f} s; echo {latencies}")

        self.assertTrue(download.ended_cleanly, download.lost_reason)
        self.assertEqual(download.received, BULK)
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        self.assertEqual(received.received, BULK)
        self.assertEqual(upload.answer.decode(), upload.payload.digest)
        self.assertEqual(received.digest, upload.payload.digest)
        # The echo must have gone on after the last cut.
        self.assertGreater(len(latencies.samples), 20)
        self.assertIsNone(echo_client.lost_reason)
        resumptions = await tunnel.server.metric("yurttunnel_server_resumptions_total")
        self.assertEqual(resumptions, 5)
        echo_client.transport.loseConnection()
        await self.assert_nothing_retained(tunnel)

    async def assert_nothing_retained(self, tunnel: Tunnel) -> None:
        """Require that buffers, streams and sessions are those of an idle tunnel."""
        for program, prefix in (
            (tunnel.server, "yurttunnel_server"),
            (tunnel.agent, "yurttunnel_agent"),
        ):

            async def empty(program=program, prefix=prefix) -> bool:
                streams = await program.metric(f"{prefix}_open_streams")
                used = await program.metric(f"{prefix}_memory_budget_used_bytes")
                return streams == 0 and used == 0

            await self.eventually(empty, f"{prefix} keeps nothing of ended streams", 15)

    async def test_a_sliced_connection_carries_everything(self) -> None:
        """Frames split into pieces of 1 to 7 bytes have the same effect, also across a reset."""
        size = 300_000
        source = self.listen(lambda: Source(size))
        tunnel = await self.start_cut_tunnel(forwards=(source.port,))
        self.proxy.up.slice_size = self.proxy.down.slice_size = 7
        download = await self.dial(tunnel.forward_ports[0], Download())
        await self.eventually(lambda: download.received > size // 3, "a third arrives", 30)
        self.proxy.for_all("reset")
        await self.within(60, download.when_lost(), "the download ends")
        self.assertEqual(download.received, size)
        self.assertEqual(download.digest, source.peers[0].payload.digest)

    async def test_an_agent_behind_a_nat_that_forgot_it_loses_no_dial(self) -> None:
        """Dials before, during and after the server's silent loss all succeed."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        await self.ask(tunnel, echo.port)
        (link,) = self.proxy.links
        link.black_hole()
        dark = [Deferred.fromCoroutine(self.ask(tunnel, echo.port)) for _ in range(5)]
        # The OPENs have left for the dead connection when the agent finds out.
        await self.pause(0.3)
        accepted = self.proxy.accepted
        link.forget()
        meanwhile = [Deferred.fromCoroutine(self.ask(tunnel, echo.port)) for _ in range(5)]
        await self.eventually(lambda: self.proxy.accepted > accepted, "the agent comes back", 15)
        after = [Deferred.fromCoroutine(self.ask(tunnel, echo.port)) for _ in range(5)]
        await self.within(15, gatherResults(dark + meanwhile + after), "all dials succeed")

    async def test_a_new_agent_process_takes_over_from_a_silent_old_one(self) -> None:
        """When a new process of a node connects while its old session looks alive, dials work."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        await self.ask(tunnel, echo.port)
        old = await self.connected(tunnel, echo, EchoClient(reactor))
        await old.round_trip()
        self.proxy.for_all("black_hole")
        tunnel.agent.kill()
        again = tunnel.another_agent(token_path=None)
        again.start()
        await again.ready()
        await self.within(1, old.when_ended(), "the old session's stream ends")
        for _ in range(5):
            await self.ask(tunnel, echo.port)
        self.assertEqual(len(await tunnel.server.agents()), 1)

    async def ask(self, tunnel: Tunnel, port: int) -> None:
        """Make one CONNECT and one round trip; fail unless both work."""
        client = EchoClient(reactor)
        endpoint = UNIXClientEndpoint(reactor, tunnel.socket_path)
        answer = await connect(endpoint, f"127.0.0.1:{port}", client)
        self.assertEqual(answer.status, 200, answer.body)
        await client.round_trip()
        client.transport.loseConnection()
        await client.when_lost()

    async def test_streams_end_when_the_resume_window_has_passed(self) -> None:
        """If the agent does not return, streams end after the window, with ``session_lost``."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel(server_extra=("--resume-window", "2"))
        client = EchoClient(reactor)
        await self.connected(tunnel, echo, client)
        await client.round_trip()
        await self.proxy.refuse()
        self.proxy.for_all("reset")
        cut = reactor.seconds()
        await self.within(6, client.when_ended(), "the stream ends")
        self.assertGreater(reactor.seconds() - cut, 1.9)
        ends = await tunnel.server.metric(
            "yurttunnel_server_stream_ends_total", reason="session_lost"
        )
        self.assertEqual(ends, 1)
        answer = await self.connect(tunnel, f"edge-1:{echo.port}", RequestClient())
        self.assertEqual(answer.status, 503)
        self.assertIn("edge-1", answer.body)
        self.assertIn("last seen", answer.body)


class ResetTests(CutTunnelTestCase):
    """Working connections that are reset, at one end or both, while both programs run."""

    async def reset(self, fault: str, returns: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cause ``fault`` during a stream, which must continue after ``returns()``."""
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        self.assertEqual(self.proxy.for_all(fault), 1)
        answer = Deferred.fromCoroutine(client.round_trip())
        await returns()
        await self.within(DETECTION + 5, answer, "the echo goes on")
        self.assertEqual(await tunnel.server.metric("yurttunnel_server_resumptions_total"), 1)
        self.assertEqual(await tunnel.server.metric("yurttunnel_server_session_ends_total"), 0)

    async def at_once(self) -> None:
        """New connections work at once."""

    async def after_silence(self, seconds: float) -> None:
        """New connections carry nothing for a while, without an error."""
        self.proxy.turns = 0
        await self.pause(seconds)
        self.proxy.turns = None
        self.proxy.for_all("reset")

    async def after_refusals(self) -> None:
        """Connections are refused for three seconds."""
        await self.proxy.refuse()
        await self.pause(3)
        self.proxy.start()

    async def test_a_reset_that_only_the_server_sees(self) -> None:
        """The agent notices the silence after some seconds."""
        await self.reset("cut_off", self.at_once)

    async def test_a_reset_that_only_the_agent_sees(self) -> None:
        """As by a NAT that has lost the mapping: the agent reconnects at once."""
        await self.reset("forget", self.at_once)

    async def test_a_reset_and_the_first_packet_of_the_next_connection_lost(self) -> None:
        """The kernel retransmits it after a second."""
        await self.reset("reset", partial(self.after_silence, 1.2))

    async def test_a_reset_at_both_ends_and_silence(self) -> None:
        """A middlebox loses all connections, and carries no new ones for five seconds."""
        await self.reset("reset", partial(self.after_silence, 5))

    async def test_a_restarted_balancer(self) -> None:
        """It resets all connections, and does not listen for three seconds."""
        await self.reset("reset", self.after_refusals)


class SmallStreamTests(CutTunnelTestCase):
    """Many resets, with little data in flight at each."""

    async def test_cuts_at_every_stage_of_small_streams_lose_nothing(self) -> None:
        """Ten continuous echoes get all answers through twenty resets, in order and once.

        Every fourth reset comes as soon as there is a connection, at any point of its handshake;
        the others when the echoes have progressed.
        """
        echo = self.listen(Echo)
        tunnel = await self.start_cut_tunnel()
        clients = [EchoClient(reactor, 0.0) for _ in range(10)]
        for client in clients:
            await self.connected(tunnel, echo, client)
        running = True
        echoes = [Deferred.fromCoroutine(client.run(lambda: running)) for client in clients]

        def progress() -> int:
            return sum(len(client.latencies.samples) for client in clients)

        for number in range(20):
            if number % 4:
                desired = progress() + 5
                await self.eventually(
                    lambda desired=desired: progress() >= desired, f"the echoes go on, {number}", 20
                )
            await self.eventually(
                lambda: self.proxy.for_all("reset") > 0, f"a connection to cut, {number}", 20
            )
        desired = progress() + 20
        await self.eventually(lambda: progress() >= desired, "the echoes go on", 20)
        running = False
        await self.within(10, gatherResults(echoes), "each echo gets its last answer")


class TwistedSmallStreamTests(TwistedTransports, SmallStreamTests):
    """The same over Twisted's own transports."""


class KilledProgramTests(LeakTestCase):
    """The streams of a killed process end with a reason."""

    async def streams(self, tunnel: Tunnel, echo, source) -> list[Peer]:
        """Open an echo through the forward, an echo through CONNECT and an endless download."""
        first = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        second = await self.connected(tunnel, echo, EchoClient(reactor))
        third = await self.connected(tunnel, source, Download(hashed=False))
        for client in (first, second):
            await client.round_trip()
        await self.eventually(lambda: third.received > 1_000_000, "the download runs")
        return [first, second, third]

    async def test_kill_9_of_an_agent_that_never_returns_ends_streams_after_the_window(
        self,
    ) -> None:
        """Until then the server shows the remaining time."""
        await self.killed_for_good(("--resume-window", "4s"), 4.0, 5.0)

    async def test_with_a_short_grace_they_end_within_a_second(self) -> None:
        """Clients see their connections end, and the server counts the reason of each."""
        await self.killed_for_good(("--return-grace", "0.8s"), 0.8, 1.0)

    async def killed_for_good(self, options: tuple[str, ...], waits: float, limit: float) -> None:
        """Kill an agent; its streams end after ``waits`` seconds, and before ``limit``."""
        echo = self.listen(Echo)
        source = self.listen(lambda: Source(None, hashed=False))
        tunnel = await self.start_tunnel(forwards=(echo.port,), server_extra=options)
        clients = await self.streams(tunnel, echo, source)
        [session] = await tunnel.server.agents()
        self.assertIsNone(session["waits_for_seconds"])
        lost = gatherResults([client.when_ended() for client in clients])
        killed = reactor.seconds()
        # Until it has died it keeps its connections, which is no affair of the server's.
        tunnel.agent.kill()
        watch = Stopwatch(reactor)
        lost.addCallback(lambda _: watch.seconds())
        reported: list[dict] = []

        async def is_missed() -> bool:
            nonlocal reported
            reported = await tunnel.server.agents()
            return not any(each["connected"] for each in reported)

        await self.eventually(is_missed, "the server misses the agent")
        left = reported[0]["waits_for_seconds"] if reported else 0.0
        # A short grace is longer by some round trips.
        self.assertLess(left, limit)
        # It cannot have been missed before it was killed.
        self.assertGreater(reactor.seconds() + left, killed + waits - 0.1)
        self.assertLess(await self.within(limit + 5, lost, "all three streams end"), limit)
        self.assertGreater(reactor.seconds() - killed, waits - 0.1)
        ends = await tunnel.server.metric(
            "yurttunnel_server_stream_ends_total", reason="session_lost"
        )
        self.assertEqual(ends, 3, tunnel.server.log[-2000:])

    async def test_kill_9_of_the_agent_and_a_new_one_serves_at_once(self) -> None:
        """A new process of the same node serves new dials, and old streams are not revived."""
        echo = self.listen(Echo)
        source = self.listen(lambda: Source(None, hashed=False))
        tunnel = await self.start_tunnel(forwards=(echo.port,))
        clients = await self.streams(tunnel, echo, source)
        tunnel.agent.kill()
        again = tunnel.another_agent(token_path=None)
        again.start()
        await again.ready()
        for client in clients:
            await self.within(1, client.when_ended(), "the old stream ends")
        client = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        await client.round_trip()

    async def test_kill_9_of_the_server_ends_the_targets_connections(self) -> None:
        """The agent closes its dialed connections, and connects to the new server."""
        echo = self.listen(Echo)
        source = self.listen(lambda: Source(None, hashed=False))
        tunnel = await self.start_tunnel(forwards=(echo.port,))
        await self.streams(tunnel, echo, source)
        tunnel.server.kill()
        tunnel.server.start()
        await tunnel.server.ready()
        await self.eventually(tunnel.server.agents, "the agent is back", 20)
        for target in (*echo.peers, *source.peers):
            await self.within(1, target.when_lost(), "the target's connection ends")
        client = await self.dial(tunnel.forward_ports[0], EchoClient(reactor))
        await client.round_trip()
