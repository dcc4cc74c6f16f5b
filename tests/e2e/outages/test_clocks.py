"""Wrong clocks, and clocks that are changed while streams run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.clients import Echo, EchoClient, RequestClient, Sink, Source
from tests.e2e.faults import FullQueue
from tests.e2e.leaks import LeakTestCase
from tests.e2e.outages.clocks import WallClock
from tests.e2e.support import TwistedTransports

HOUR = 3600
DAY = 24 * HOUR

YEARS = 20 * 365 * DAY
"""So far in the future all certificates have expired."""

MOMENT = 1.5
"""Seconds for which each wrong time lasts: a PING is sent in that time."""

SOON = 10.0
"""The timeout for operations that can continue; most take less than a second."""

DETECTION = 7.5
"""Seconds in which silence is noticed while there are streams (protocol.md)."""

SLACK = 4.0
"""Additional seconds on a loaded machine."""

RATE = 8_000_000.0
"""Bytes per second of the line: it is always full, and leaves the processors to other tests."""

WRONG = ((-2 * DAY, "not valid yet: compare"), (YEARS, "expired"))
"""Times at which no certificate is valid, and the agent's message about the server's."""


class ClockTests(LeakTestCase):
    """Each program has a simulated clock, which the test sets."""

    async def setUp(self) -> None:
        """Start a tunnel through a proxy, with certificates issued yesterday."""
        await super().setUp()
        self.clocks = {name: WallClock(self.directory, name) for name in ("server", "agent")}

        def proxied(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        self.tunnel = self.make_tunnel(proxied=proxied)
        self.programs = {"server": self.tunnel.server, "agent": self.tunnel.agent}
        for name, clock in self.clocks.items():
            clock.advance(-DAY)
            self.programs[name].run_under(*clock.prefix())
        await self.tunnel.start()
        for clock in self.clocks.values():
            clock.advance(0)
        await self.watch(*self.programs.values())
        self.echo, self.sink = self.listen(Echo), self.listen(Sink)

    async def lost(self) -> list[float]:
        """Count the lost connections of each program."""
        return [
            await program.metric(f"yurttunnel_{name}_connections_lost_total")
            for name, program in self.programs.items()
        ]

    async def dial(self) -> EchoClient:
        """Make one round trip on a new stream, which must succeed."""
        client = EchoClient(reactor, 0.02)
        await self.connected(self.tunnel, self.echo, client)
        await self.within(SOON, client.round_trip(), "an echo answers")
        return client

    async def waiting_dial_survives(self, change) -> None:
        """Require that a pending dial gets its result after ``change()``."""
        queue = FullQueue()
        self.addCleanup(queue.close)
        client = RequestClient()
        dial = Deferred.fromCoroutine(self.connect(self.tunnel, f"127.0.0.1:{queue.port}", client))
        await self.pause(MOMENT / 2)
        change()
        await self.pause(MOMENT)
        self.assertFalse(dial.called, dial.result if dial.called else None)
        queue.make_room()
        answer = await self.within(SOON, dial, "the dial is answered")
        self.assertEqual(answer.status, 200, answer.body)
        client.drop()

    async def assert_both_detect_silence(self, lost: int) -> None:
        """Require that both ends notice a silent peer in time, and continue afterwards."""
        await self.proxy.refuse()
        self.assertEqual(self.proxy.for_all("black_hole"), 1)
        cut = reactor.seconds()

        async def noticed() -> bool:
            return await self.lost() == [lost, lost]

        await self.eventually(noticed, "both miss each other", DETECTION + SLACK)
        print(f"\nsilence was noticed after {reactor.seconds() - cut:.1f} s", end="")
        self.proxy.start()

    async def test_timers_and_streams_are_unaffected(self) -> None:
        """Clocks that jump by an hour, at either end, do not affect timers and streams.

        A pending dial keeps waiting when the clock is advanced; silence after it was set back is
        detected in time; and no byte is lost.
        """
        self.proxy.up.bandwidth = self.proxy.down.bandwidth = RATE
        upload = await self.connected(self.tunnel, self.sink, Source())
        client = await self.dial()
        idle = await self.dial()
        running = True
        echoes = Deferred.fromCoroutine(client.run(lambda: running))
        for number, clock in enumerate(self.clocks.values()):
            await self.waiting_dial_survives(partial(clock.advance, HOUR))
            self.assertEqual(await self.lost(), [number, number])
            clock.advance(-HOUR)
            await self.pause(MOMENT)
            self.assertEqual(await self.lost(), [number, number])
            await self.assert_both_detect_silence(number + 1)
            await self.within(SOON, idle.round_trip(), "an idle stream goes on")
            (await self.dial()).drop()
            clock.advance(0)
        running = False
        print(f"\necho: {await self.within(SOON, echoes, 'the echo ends')}")
        upload.payload.finish()
        await self.within(30, upload.when_read_ended(), "the upload ends")
        self.assertEqual(upload.answer.decode(), upload.payload.digest)

    async def test_an_agent_that_starts_ahead_waits_for_the_time(self) -> None:
        """It keeps its certificate, reports the problem, and needs no token afterwards."""
        idle = await self.dial()
        idle.drop()
        await idle.when_lost()
        await self.tunnel.agent.stop()
        clock = self.clocks["agent"]
        clock.advance(200 * DAY)
        agent = self.tunnel.another_agent(
            token_path=None, prefix=clock.prefix(), server_port=self.proxy.port
        )
        node = Path(agent.state, "node.pem").read_bytes()
        agent.start()
        complaint = "If the clock is wrong, set it"
        await self.eventually(lambda: complaint in agent.log, "it says so", SOON)
        status, body = await agent.get("/readyz")
        self.assertEqual((status, complaint in body), (503, True), body)
        await self.pause(3 * MOMENT)
        self.assertTrue(agent.running)
        clock.advance(0)
        await agent.ready()
        (await self.dial()).drop()
        self.assertEqual(Path(agent.state, "node.pem").read_bytes(), node)

    async def test_certificates_are_affected(self) -> None:
        """Streams continue, but a new connection fails until the clock is right again."""
        idle = await self.dial()
        for number, (seconds, complaint) in enumerate(WRONG):
            self.clocks["agent"].advance(seconds)
            await self.pause(MOMENT)
            await idle.round_trip()
            self.assertEqual(await self.lost(), [number, number])
            self.assertTrue(self.proxy.for_all("reset"))
            answer = Deferred.fromCoroutine(idle.round_trip())
            agent = self.tunnel.agent
            await self.eventually(
                lambda agent=agent, complaint=complaint: complaint in agent.log, complaint, SOON
            )
            self.clocks["agent"].advance(0)
            await self.within(10, answer, "the stream goes on")


class TwistedClockTests(TwistedTransports, ClockTests):
    """The same over Twisted's own transports."""
