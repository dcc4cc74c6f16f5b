"""A NAT that loses its mappings, sends resets or drops large packets."""

from __future__ import annotations

import socket
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Download, Echo, EchoClient, Latencies, RequestClient, Sink, Source
from tests.e2e.outages.gateway import (
    RESET,
    disable_segmentation_offload,
    set_min_rto,
)
from tests.e2e.outages.site import SERVER, SiteTestCase
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import which
from yurttunnel.server.node_session import RECONNECT_TIMEOUT

DIALS = 50
"""The number of dials, all of which must succeed."""

BULK = 3_000_000
"""Bytes in each direction through a NAT that drops packets of full size."""

LOSSY_BULK = 1_000_000
"""Bytes in each direction through a NAT with packet loss: 700 full packets, 7 of which are 1%."""

ALLOWED = 0.2
"""The maximum p99 of an echo in seconds; the network's latency is a millisecond."""

ECHOES = 100
"""The number of concurrent round trips."""

MIN_RTO = 20
"""The kernels' minimum retransmission timeout in milliseconds, instead of 200, so that `ALLOWED`
limits the program's delay. The timeout also applies if no packet follows the lost one, and in both
directions of a round trip."""

LARGE = "1300:65535"
"""The lengths of packets that such a NAT drops, from below the 1500 that both networks carry."""

SWALLOWED = 1400
"""The size in bytes of a datagram that is dropped."""

RESUME_WINDOW = 15.0
"""The resume window in seconds, during which streams wait for an agent that cannot reconnect."""

DETECTION = 7.5
"""Seconds until a silent connection with streams is closed (protocol.md)."""

SLACK = 10.0
"""Additional seconds for a busy machine."""

ALWAYS = "2"
"""The value of tcp_mtu_probing that starts with packets of 1,024 bytes, not only after losses."""

STORM_ATTEMPTS = 3
"""The minimum number of connection attempts during a storm of resets."""


class ForgettingTests(SiteTestCase):
    """The mapping of an agent's connection is lost."""

    async def all_dials_succeed(self, target) -> None:
        """Make many concurrent dials to ``edge-1``, all of which must succeed."""
        dials = [Deferred.fromCoroutine(self.echo("edge-1", target)) for _ in range(DIALS)]
        for client in await gatherResults(dials, consumeErrors=True):
            client.drop()

    async def test_a_flushed_table_loses_no_dial(self) -> None:
        """All dials since the flush succeed, and streams continue."""
        which("conntrack")
        agent = await self.start_agent("edge-1")
        echo = self.listen_on("edge-1", Echo)
        client = await self.echo("edge-1", echo)
        port = await self.source_port("edge-1")

        with self.gateway.connections_flushed():
            await self.all_dials_succeed(echo)
            await self.within(30, client.round_trip(), "the stream goes on")
        self.assertNotEqual(await self.source_port("edge-1"), port)
        self.assertEqual(await agent.metric("yurttunnel_agent_resumptions_total"), 1)
        self.assertEqual(len(await self.server.agents()), 1)

    async def test_a_return_after_a_loss_of_power_loses_no_dial(self) -> None:
        """Once the new agent has connected, all dials succeed; the old streams end once."""
        agent = await self.start_agent("edge-1")
        echo = self.listen_on("edge-1", Echo)
        old = await self.echo("edge-1", echo)

        # No packet of the old process's end reaches the server, and no response the machine.
        self.gateway.drop_outgoing(await self.source_port("edge-1"))
        agent.kill()
        again = self.make_agent("edge-1")
        again.start()
        await again.ready()
        await self.all_dials_succeed(echo)
        await self.within(5, old.when_ended(), "the old stream ends")
        self.assertEqual(len(await self.server.agents()), 1)
        ends = await self.server.metric("yurttunnel_server_stream_ends_total", reason="replaced")
        self.assertEqual(ends, 1)


class ResetStormTests(SiteTestCase):
    """Every packet of an agent is answered with a reset."""

    async def test_attempts_and_lines_of_the_log_stay_few(self) -> None:
        """The agent retries with backoff, logs it once, and reconnects."""
        agent = await self.start_agent("edge-1")
        echo = self.listen_on("edge-1", Echo)
        client = await self.echo("edge-1", echo)
        lines = len(agent.log.splitlines())

        storm = ("-p", "tcp", "-d", SERVER, *RESET)
        self.gateway.add(*storm)
        began = reactor.seconds()
        answer = Deferred.fromCoroutine(client.round_trip())

        async def attempts() -> float:
            name = "konnectivity_network_proxy_agent_server_connection_failure_count"
            return await agent.metric(name, direction="to_server")

        async def enough() -> bool:
            return await attempts() >= STORM_ATTEMPTS

        await self.eventually(enough, "the agent has tried several times", 60, 0.2)
        lasted = reactor.seconds() - began
        tried = await attempts()
        written = len(agent.log.splitlines()) - lines
        print(f"\n{tried:.0f} attempts and {written} lines in {lasted:.1f} s")
        # A loop without backoff makes thousands; delays are random, from 1 s upwards.
        self.assertLess(tried, 10 + 4 * lasted)
        self.assertLess(written, 20)

        self.gateway.remove(*storm)
        await self.within(60, answer, "the stream goes on")


class LossTests(SiteTestCase):
    """Packets are lost at random in both directions.

    Transfers are complete, and no session ends.
    """

    async def test_all_bytes_arrive_once_and_echoes_continue(self) -> None:
        """With five percent loss, a concurrent echo gets its responses."""
        await self.echoes_at_a_loss_of(0.05)

    async def test_few_losses_do_not_delay_an_echo(self) -> None:
        """With one percent loss, it gets them in time.

        The kernels' share of the delay is small here (`MIN_RTO`). With more loss it is larger:
        their timeout doubles each time that the same packet is lost again.
        """
        set_min_rto(self.network, MIN_RTO)
        latencies = await self.echoes_at_a_loss_of(0.01)
        self.assertLess(latencies.percentile(99), ALLOWED)

    async def echoes_at_a_loss_of(self, probability: float) -> Latencies:
        """Copy in both directions, compare the results, and measure concurrent echoes."""
        disable_segmentation_offload(self.network, "cloud", "edge-1", "nat")
        self.gateway.count_merged()
        agent = await self.start_agent("edge-1")
        source = self.listen_on("edge-1", lambda: Source(LOSSY_BULK))
        sink = self.listen_on("edge-1", Sink)
        echo = self.listen_on("edge-1", Echo)

        with self.gateway.packet_loss(probability):
            download, upload = Download(), Source(LOSSY_BULK)
            self.assertEqual(await self.status_through("edge-1", source, download), 200)
            self.assertEqual(await self.status_through("edge-1", sink, upload), 200)
            client = await self.echo("edge-1", echo)

            async def echoes() -> Latencies:
                found = Latencies()
                while len(found.samples) < ECHOES or download.lost_reason is None:
                    watch = Stopwatch(reactor)
                    await client.round_trip()
                    found.samples.append(watch.seconds())
                    await self.pause(0.005)
                return found

            latencies = await self.within(60, echoes(), "the echo goes on")
            await self.within(60, upload.when_read_ended(), "the upload ends")
            lost = self.gateway.packet_count()
        print(f"\necho at a loss of {probability:.0%}, {lost} packets to the cloud: {latencies}")
        self.assertGreater(lost, 0, "packets are lost")
        self.assertEqual(self.gateway.merged(), 0, "packets are not joined")
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        self.assertEqual(upload.answer.decode(), upload.payload.digest)
        self.assertEqual(await agent.metric("yurttunnel_agent_session_ends_total"), 0)
        return latencies


class LargePacketTests(SiteTestCase):
    """Packets of full size are dropped without an ICMP message."""

    server_extra = ("--resume-window", f"{RESUME_WINDOW:.0f}s")
    large = ("-m", "length", "--length", LARGE, "-j", "DROP")

    async def test_without_smaller_packets_dials_are_refused_and_streams_end(self) -> None:
        """While the agent cannot reconnect, pending dials fail in time; later it reconnects."""
        await self.start_agent("edge-1")
        echo = self.listen_on("edge-1", Echo)
        source = self.listen_on("edge-1", lambda: Source(None, hashed=False))
        client = await self.echo("edge-1", echo)
        await self.swallow_large_packets()
        download = Download(hashed=False)
        self.assertEqual(await self.status_through("edge-1", source, download), 200)

        async def cut_off() -> bool:
            return not any(entry["connected"] for entry in await self.server.agents())

        await self.eventually(cut_off, "closing the connection", DETECTION + SLACK)
        dial = self.status_through("edge-1", echo, RequestClient())
        self.assertEqual(
            await self.within(RECONNECT_TIMEOUT + SLACK, dial, "a dial is answered"), 503
        )
        ends = gatherResults([client.when_ended(), download.when_ended()])
        await self.within(RESUME_WINDOW + SLACK, ends, "the streams end")

        self.gateway.remove(*self.large)
        await self.eventually(lambda: self.serves(echo), "the agent is back", 60, 0.2)

    async def serves(self, target) -> bool:
        """Return whether a dial succeeds."""
        client = EchoClient(reactor)
        if await self.status_through("edge-1", target, client) != 200:
            return False
        await client.round_trip()
        client.drop()
        await client.when_lost()
        return True

    async def test_transfers_continue_with_smaller_packets(self) -> None:
        """If the kernels probe the path MTU, transfers are complete, and no session ends."""
        for machine in ("cloud", "edge-1"):
            with self.network.inside(machine):
                Path("/proc/sys/net/ipv4/tcp_mtu_probing").write_text(ALWAYS)
        await self.swallow_large_packets()
        agent = await self.start_agent("edge-1")
        source = self.listen_on("edge-1", lambda: Source(BULK))
        sink = self.listen_on("edge-1", Sink)

        download, upload = Download(), Source(BULK)
        self.assertEqual(await self.status_through("edge-1", source, download), 200)
        self.assertEqual(await self.status_through("edge-1", sink, upload), 200)
        await self.within(60, download.when_lost(), "the download ends")
        self.assertEqual(download.digest, source.peers[0].payload.digest)
        await self.within(60, upload.when_read_ended(), "the upload ends")
        self.assertEqual(upload.answer.decode(), upload.payload.digest)
        self.assertEqual(await agent.metric("yurttunnel_agent_connections_lost_total"), 0)

    async def swallow_large_packets(self) -> None:
        """Let the NAT drop large packets, and verify that it does."""
        disable_segmentation_offload(self.network, "cloud", "edge-1")
        self.gateway.add(*self.large)
        with self.network.inside("edge-1"), socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.sendto(bytes(SWALLOWED), (SERVER, 9))

        await self.eventually(self.gateway.packet_count, "a large packet is swallowed")
