"""An agent is replaced by another process, with an open stream and continuous dials.

Dials are made one after the other.
"""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import NamedTuple

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from tests.e2e.clients import Echo, EchoClient, Incomplete
from tests.e2e.programs import Agent, Program, Tunnel
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.support import EndToEndTestCase, copy_state
from yurttunnel.server.node_session import RECONNECT_TIMEOUT

UNREACHABLE = 1.0
"""The maximum seconds for which a replacement makes a node unreachable while an agent runs."""

PAUSE = 0.02
"""Seconds between two dials."""

ENOUGH = 50
"""The number of dials in a lasting state."""

BUSY_SECONDS = 30.0
"""The maximum seconds for that many dials on a busy machine; otherwise it is two."""


class Dial(NamedTuple):
    """The time of a successful dial, and how long programs had waited for a processor by then."""

    at: float
    waited: float


class Dials:
    """Makes dials continuously until :meth:`end`, and records which ``succeeded`` or ``failed``.

    ``cut`` are the times of streams that ended before their first echo.
    """

    def __init__(self, case: EndToEndTestCase, tunnel: Tunnel, port: int) -> None:
        self.succeeded: list[Dial] = []
        self.failed: list[Dial] = []
        self.cut: list[float] = []
        self._watch = Stopwatch(reactor)
        self._case = case
        self._tunnel = tunnel
        self.port = port
        self._running = True
        self._done = Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        while self._running:
            client = EchoClient(reactor)
            answer = await self._case.connect(self._tunnel, f"127.0.0.1:{self.port}", client)
            dials = self.failed if answer.peer is None else self.succeeded
            dials.append(Dial(reactor.seconds(), self._watch.waited()))
            if answer.peer is not None:
                try:
                    await client.round_trip()
                except Incomplete:
                    self.cut.append(reactor.seconds())
                client.drop()
            await deferLater(reactor, PAUSE)

    async def more(self) -> None:
        """Wait until more dials have succeeded."""
        desired = len(self.succeeded) + ENOUGH
        await self._case.eventually(
            lambda: len(self.succeeded) >= desired, "dials succeed", BUSY_SECONDS
        )

    async def soon(self, after: float) -> Dial:
        """Wait for the first success after a time, which must be soon; return it."""
        await self._case.eventually(
            lambda: self.succeeded and self.succeeded[-1].at > after, "a dial succeeds", UNREACHABLE
        )
        return min(dial for dial in self.succeeded if dial.at > after)

    async def end(self) -> None:
        """Stop, and wait for the last dial."""
        self._running = False
        await self._case.within(10, self._done, "the last dial is answered")


class ReplacedAgentTests(EndToEndTestCase):
    """SIGTERM to an agent, and a new process before or after its end."""

    async def start_with_stream(self, drain: float) -> tuple[Tunnel, EchoClient, Dials]:
        """Start a tunnel, an endless stream, and dials."""
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel(drain=drain)
        stream = await self.connected(tunnel, echo, EchoClient(reactor))
        await stream.round_trip()
        dials = Dials(self, tunnel, echo.port)
        await dials.more()
        return tunnel, stream, dials

    async def successor(self, tunnel: Tunnel, state: str = "A") -> Agent:
        """Start a further agent of the same node."""
        agent = tunnel.another_agent(token_path=None, state=state)
        agent.start()
        await agent.ready()
        return agent

    async def answered_dials(self, agent: Program) -> float:
        """Count the connections that an agent has dialed."""
        return await agent.metric("konnectivity_network_proxy_agent_dial_duration_seconds_count")

    async def test_an_agent_that_drains_serves_until_its_successor_is_there(self) -> None:
        """No dial fails; the successor gets all dials when it has connected, and the stream
        continues."""
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        tunnel.agent.signal(signal.SIGTERM)
        await dials.more()
        # As impatient people and supervisors do; its log must have no error of it.
        tunnel.agent.signal(signal.SIGTERM)
        successor = await self.successor(tunnel)
        await dials.more()
        before = await self.answered_dials(tunnel.agent)
        await dials.more()
        self.assertEqual(await self.answered_dials(tunnel.agent), before)
        self.assertGreaterEqual(await self.answered_dials(successor), ENOUGH)
        await stream.round_trip()
        await dials.end()
        self.assertEqual((dials.failed, dials.cut), ([], []))
        stream.drop()
        self.assertIn(await tunnel.agent.ended(10), (0, -signal.SIGTERM))

    async def test_a_successor_that_ends_first(self) -> None:
        """The draining agent gets all dials again; none fails."""
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        tunnel.agent.signal(signal.SIGTERM)
        await dials.more()
        successor = await self.successor(tunnel)
        await dials.more()
        successor.signal(signal.SIGTERM)
        self.assertIn(await successor.ended(10), (0, -signal.SIGTERM))
        await dials.more()
        await dials.end()
        self.assertEqual((dials.failed, dials.cut), ([], []))
        await stream.round_trip()
        stream.drop()

    async def test_a_successor_that_is_killed(self) -> None:
        """The draining agent gets all dials after a moment; none fails."""
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        await dials.end()
        tunnel.agent.signal(signal.SIGTERM)
        successor = await self.successor(tunnel)
        successor.signal(signal.SIGKILL)
        await successor.ended(10)
        dials = Dials(self, tunnel, dials.port)
        await dials.soon(after=0.0)
        await dials.more()
        await dials.end()
        self.assertEqual((dials.failed, dials.cut), ([], []))
        await stream.round_trip()
        stream.drop()

    async def test_killed_while_it_drains_before_its_successor_connects(self) -> None:
        """The streams end after the grace period for a return."""
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        await dials.end()
        tunnel.agent.signal(signal.SIGTERM)
        await self.pause(1)
        tunnel.agent.signal(signal.SIGKILL)
        await tunnel.agent.ended(10)
        await self.successor(tunnel)
        await self.within(RECONNECT_TIMEOUT + 1, stream.when_ended(), "the stream ends")

    async def test_killed_while_it_drains_with_its_successor(self) -> None:
        """They end after the same time."""
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        await dials.end()
        tunnel.agent.signal(signal.SIGTERM)
        await self.successor(tunnel)
        await stream.round_trip()
        tunnel.agent.signal(signal.SIGKILL)
        await self.within(RECONNECT_TIMEOUT + 1, stream.when_ended(), "the stream ends")

    async def test_an_agent_that_is_started_when_the_old_one_has_ended(self) -> None:
        """As in a DaemonSet: at most one second is without dials, which the old one serves while it
        drains.

        The second does not include the time that programs waited for a processor. The total time of
        a start is tested by `alone.test_start`.
        """
        drain = 3.0
        tunnel, stream, dials = await self.start_with_stream(drain)
        began, watch = reactor.seconds(), Stopwatch(reactor)
        tunnel.agent.signal(signal.SIGTERM)
        self.assertIn(await tunnel.agent.ended(drain + 10), (0, -signal.SIGTERM))
        ended, late = reactor.seconds(), watch.waited()
        self.assertGreater(ended - began, drain - 0.5, "it has waited for its stream")
        last = dials.succeeded[-1]
        self.assertGreater(last.at - began, drain - UNREACHABLE - late)
        await self.within(1, stream.when_ended(), "the stream ends")
        successor = await self.successor(tunnel)
        back = await dials.soon(after=ended)
        unreachable, busy = back.at - last.at, back.waited - last.waited
        answers = [last.at, *(dial.at for dial in dials.failed if dial.at > last.at), back.at]
        longest_pause = max(after - before for before, after in pairwise(answers))
        result = (
            f"unreachable for {unreachable:.2f} s, {ended - last.at:.2f} s of them before the end"
            f" of the old one, in which programs waited {busy:.2f} s for a processor, and no dial"
            f" was answered for {longest_pause:.2f} s"
        )
        print(f"\n{result}")
        self.assertLess(unreachable - busy, UNREACHABLE, result)
        await dials.more()
        await dials.end()
        await self.within(UNREACHABLE, successor.stop(), "an agent without streams ends")

    async def test_an_agent_that_is_started_beside_the_old_one(self) -> None:
        """It takes over at once: no dial fails, before and after the old one is stopped.

        Only streams that are open at that moment end.
        """
        tunnel, stream, dials = await self.start_with_stream(drain=4 * BUSY_SECONDS)
        # Two that run have a directory each: it is in use until its agent drains.
        copy_state(tunnel.agent.state, os.path.join(os.path.dirname(tunnel.agent.state), "B"))
        await self.successor(tunnel, state="B")
        await dials.more()
        await self.within(1, stream.when_ended(), "two agents are no drain")
        tunnel.agent.signal(signal.SIGTERM)
        self.assertIn(await tunnel.agent.ended(10), (0, -signal.SIGTERM))
        await dials.more()
        await dials.end()
        self.assertEqual(dials.failed, [])
        self.assertLessEqual(len(dials.cut), 1)
