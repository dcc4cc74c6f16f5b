"""SIGKILL of either program in each state of connections, sessions and streams.

The fault proxy stops a handshake at any point, and silent targets keep streams pending.
"""

from __future__ import annotations

import signal

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import (
    AnswerAfterEnd,
    Download,
    Echo,
    EchoClient,
    HalfClosingTarget,
    Incomplete,
    Peer,
    RequestClient,
    Source,
)
from tests.e2e.faults import FullQueue
from tests.e2e.leaks import LeakTestCase, resource_counts
from tests.e2e.programs import Program

BEGINNING = {"TCP, nothing said": 0, "TLS, the agent has begun": 1}
HELLO = {"TLS, the server has answered": 2, "TLS done, HELLO of the agent sent": 3}
"""States by the number of changes of the sender; then an end waits for a message that is held."""

RETURN_GRACE = 0.8
"""Seconds after which a dead agent's streams end; here it does not return in time."""

ENDED = RETURN_GRACE + 1.2
"""Seconds in which the other end releases everything."""

DRAIN = 5.0
"""Seconds for which a draining program waits for a stream whose other end is gone."""

BACK = 15.0
"""Seconds within which everything works after both ends run; pauses between attempts are random."""


class KillTestCase(LeakTestCase):
    """A tunnel through a fault proxy, one end of which is killed and restarted."""

    async def setUp(self) -> None:
        """Start the tunnel."""
        await super().setUp()

        def proxied(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        self.echo = self.listen(Echo)
        self.tunnel = await self.start_tunnel(
            proxied=proxied, drain=DRAIN, server_extra=("--return-grace", f"{RETURN_GRACE}s")
        )
        self.server, self.agent = self.tunnel.server, self.tunnel.agent

    async def hold_after(self, turns: int) -> None:
        """Close the connection, and stop the next one after that many messages."""
        self.proxy.turns = turns
        self.assertTrue(self.proxy.for_all("reset"))
        await self.eventually(
            lambda: any(link.held for link in self.proxy.links), "a connection is held"
        )

    async def assert_released(self, survivor: Program, before: int) -> None:
        """Require that the survivor has no stream, and no more descriptors than ``before``."""

        async def is_released() -> bool:
            now = await resource_counts(survivor)
            return now.streams == 0 and now.descriptors <= before

        await self.eventually(is_released, f"{survivor.arguments[0]} has let go of all", ENDED)

    async def restart(self, victim: Program) -> None:
        """Restart the killed program, and require that new dials work."""
        began = reactor.seconds()
        victim.start()
        await victim.ready()

        async def works() -> bool:
            client = EchoClient(reactor)
            answer = await self.connect(self.tunnel, f"127.0.0.1:{self.echo.port}", client)
            if answer.peer is None:
                return False
            await client.round_trip()
            client.drop()
            return True

        await self.eventually(works, "new dials work", BACK, 0.1)
        print(f"{reactor.seconds() - began:.1f} s", end=" ")


class HandshakeKillTests(KillTestCase):
    """A killed handshake leaves nothing behind, and the next one succeeds."""

    async def test_the_agent_as_it_begins(self) -> None:
        """The server closes the connection, and the session that was to be resumed."""
        await self.killed(self.agent, self.server, BEGINNING)

    async def test_the_agent_before_it_has_a_hello(self) -> None:
        """The same after the server's response, and after the TLS handshake."""
        await self.killed(self.agent, self.server, HELLO)

    async def test_the_server_as_the_agent_begins(self) -> None:
        """The agent closes the connection, retries, and reaches the new process."""
        await self.killed(self.server, self.agent, BEGINNING)

    async def test_the_server_before_its_hello_arrives(self) -> None:
        """The same after the server's response, and after the TLS handshake."""
        await self.killed(self.server, self.agent, HELLO)

    async def killed(self, victim: Program, survivor: Program, states: dict[str, int]) -> None:
        """Kill one of them in each state, with a stream that waits for its session."""
        before = (await resource_counts(survivor)).descriptors
        for state, turns in states.items():
            print(f"\n{victim.arguments[0]} killed at {state}: ", end="")
            stream = await self.connected(self.tunnel, self.echo, EchoClient(reactor))
            await stream.round_trip()
            await self.hold_after(turns)
            victim.kill()
            await self.within(ENDED, stream.when_ended(), "the stream ends")
            self.proxy.turns = None
            if survivor is self.server:
                await self.assert_released(survivor, before)
            await self.restart(victim)
            # An agent does not end its streams at once, because the server may be only unreachable.
            await self.assert_released(survivor, before)


class StreamKillTests(KillTestCase):
    """Every stream ends once, whatever its state."""

    async def setUp(self) -> None:
        """Start targets for each state of a stream."""
        await super().setUp()
        self.queue = FullQueue()
        self.addCleanup(self.queue.close)
        self.targets = {
            "asked": self.listen(AnswerAfterEnd),
            "ended": self.listen(HalfClosingTarget),
            "half": self.listen(Peer),
            "download": self.listen(lambda: Source(None, hashed=False)),
            "upload": self.listen(Download),
        }

    async def in_each_state(self) -> tuple[Deferred, list]:
        """Open streams in all states: a pending dial, and open ones."""
        dial = Deferred.fromCoroutine(
            self.connect(self.tunnel, f"127.0.0.1:{self.queue.port}", RequestClient())
        )
        # This one never finishes its question, or it would be answered.
        asked = await self.connected(self.tunnel, self.targets["asked"], RequestClient(b"and"))
        ended = await self.connected(self.tunnel, self.targets["ended"], RequestClient())
        await self.within(5, ended.when_read_ended(), "the target has ended its direction")
        half = await self.connected(self.tunnel, self.targets["half"], RequestClient(b"x", True))
        [target] = self.targets["half"].peers
        await self.within(5, target.when_read_ended(), "the caller has ended its direction")
        down = await self.connected(self.tunnel, self.targets["download"], Download(hashed=False))
        up = await self.connected(self.tunnel, self.targets["upload"], Source(None, hashed=False))
        await self.eventually(
            lambda: down.received > 1_000_000 and up.payload.sent > 1_000_000, "data flow"
        )
        self.assertFalse(dial.called)
        return dial, [asked, half, ended, down, up]

    async def test_the_agent(self) -> None:
        """Dials fail and streams end within the grace period; the server keeps nothing."""
        before = (await resource_counts(self.server)).descriptors
        dial, streams = await self.in_each_state()
        self.agent.kill()
        answer = await self.within(ENDED, dial, "the dial is answered")
        self.assertIn(answer.status, (502, 503))
        await self.within(ENDED, gatherResults([s.when_ended() for s in streams]), "all end")
        for stream in streams:
            stream.drop()
        await self.assert_released(self.server, before)
        await self.restart(self.agent)

    async def test_the_server(self) -> None:
        """The agent closes its dialed connections when it has connected to the new process."""
        before = (await resource_counts(self.agent)).descriptors
        dial, streams = await self.in_each_state()
        # It ends with the server, without an answer.
        dial.addErrback(lambda failure: failure.trap(Incomplete))
        # A peer that has read to the end, and does not write, does not notice a lost connection.
        targets = [target for name, target in self.targets.items() if name != "half"]
        peers = [peer for target in targets for peer in target.peers]
        self.server.kill()
        await self.within(ENDED, gatherResults([s.when_ended() for s in streams]), "all end")
        await self.restart(self.server)
        await self.within(ENDED, gatherResults([p.when_lost() for p in peers]), "targets are left")
        await self.assert_released(self.agent, before)


class DrainingKillTests(KillTestCase):
    """One of them is draining with an open stream, when one of them is killed."""

    async def start_drain(self, leaving: Program) -> EchoClient:
        """Let one of them drain with an open stream."""
        stream = await self.connected(self.tunnel, self.echo, EchoClient(reactor))
        await stream.round_trip()
        leaving.signal(signal.SIGTERM)

        async def drains() -> bool:
            status, body = await leaving.get("/readyz")
            return status == 503 and "draining" in body

        await self.eventually(drains, "it drains")
        await stream.round_trip()
        return stream

    async def test_the_draining_program(self) -> None:
        """The stream ends, the other end keeps nothing, and a new process is used at once."""
        for leaving, staying in ((self.agent, self.server), (self.server, self.agent)):
            before = (await resource_counts(staying)).descriptors
            stream = await self.start_drain(leaving)
            leaving.kill()
            print(f"\n{leaving.arguments[0]} killed while it drains: ", end="")
            await self.within(ENDED, stream.when_ended(), "the stream ends")
            await self.restart(leaving)
            await self.assert_released(staying, before)

    async def test_the_other_program(self) -> None:
        """The draining program has nothing to wait for any more, and exits."""
        for leaving, staying in ((self.agent, self.server), (self.server, self.agent)):
            stream = await self.start_drain(leaving)
            staying.kill()
            stream.drop()
            self.assertIn(await leaving.ended(ENDED + DRAIN), (0, -signal.SIGTERM))
            print(f"\n{staying.arguments[0]} killed while the other one drains: ", end="")
            staying.start()
            if staying is self.server:
                await staying.ready()
            await self.restart(leaving)
