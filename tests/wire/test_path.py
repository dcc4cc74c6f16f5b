"""Whole sessions over a path with a rate and a delay: windows and limits adapt to it."""

from __future__ import annotations

from collections import deque

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import LIMITS, Pair, user_of
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.session import Side
from yurttunnel.wire.stream import Stream

KIB = 1024
MIB = KIB * KIB
BLOCK = bytes(128 * KIB)

SEGMENT = 1448
"""The size of a packet in bytes; on a slow path packets arrive one by one."""


class Download:
    """A stream whose user at the server always has more to send; the agent reads everything."""

    def __init__(self, path: Path, idle: bool = False) -> None:
        server, agent = path.pair.server, path.pair.agent
        self.received = 0
        self.near = server.open()
        path.run_until_requested(self.near.number)
        self.far: Stream = agent.log.requested[-1]
        self.far.deliver = self.deliver
        agent.session.accept(self.far)
        agent.session.resume(self.far, agent.now)
        user_of(self.near).on["writable"] = lambda: server.session.send(self.near, BLOCK)
        if not idle:
            server.session.send(self.near, BLOCK)

    def deliver(self, piece: bytes) -> None:
        """Count the received bytes."""
        self.received += len(piece)


class Path:
    """An agent and a server, ``round_trip`` seconds apart, with ``rate`` bytes a second.

    The buffers along the path are unlimited: only the sender bounds what is in them.
    """

    STEP = 0.001

    def __init__(self, round_trip: float, rate: float, agent: Limits = LIMITS) -> None:
        self.pair = Pair(agent)
        self.now = 0.0
        self.delay = round_trip / 2
        self.rate = rate
        self.free = dict.fromkeys(Side, 0.0)
        self.wires: dict[Side, deque[tuple[float, bytes]]] = {side: deque() for side in Side}
        # The first PING and its PONG: both ends know the round trip.
        self.run(2 * round_trip + 0.01)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / self.STEP)):
            self.now += self.STEP
            for side, end in self.pair.ends.items():
                end.advance(self.now - end.now)
                self.send(side)
            for side, wire in self.wires.items():
                while wire and wire[0][0] <= self.now:
                    self.pair.ends[Side(3 - side)].feed(wire.popleft()[1])

    def send(self, side: Side) -> None:
        """Put all bytes to be sent by an end into the buffer before the path."""
        session = self.pair.ends[side].session
        segment = max(SEGMENT, int(self.rate * self.STEP))
        while chunk := session.data_to_send(session.chunk):
            for start in range(0, len(chunk), segment):
                piece = chunk[start : start + segment]
                self.free[side] = max(self.now, self.free[side]) + len(piece) / self.rate
                self.wires[side].append((self.free[side] + self.delay, piece))

    def run_until_requested(self, number: int) -> None:
        """Let time pass until the agent has the OPEN of stream ``number``."""
        while number not in self.pair.agent.log.users:
            self.run(self.STEP)

    def throughput(self, download: Download, seconds: float) -> float:
        """Return the fraction of the path's rate that a stream gets in the next ``seconds``."""
        before = download.received
        self.run(seconds)
        return (download.received - before) / (seconds * self.rate)

    @property
    def queued(self) -> float:
        """Return the seconds that bytes from the server wait in the buffer before the path."""
        return max(0.0, self.free[Side.SERVER] - self.now)


class RateTests(SynchronousTestCase):
    """The limit on unacknowledged data follows the rate, without throttling it."""

    @conformance("C-106")
    def test_long_and_fast(self) -> None:
        """One stream fills a path of 60 ms and 100 MB/s half a second after it began."""
        path = Path(0.06, 100e6)
        download = Download(path)
        path.run(0.5)
        self.assertGreater(path.throughput(download, 0.5), 0.97)
        self.assertGreater(path.pair.server.session.unacknowledged, 6_000_000)

    @conformance("C-106")
    def test_queue(self) -> None:
        """The data in flight queues for little more than another round trip."""
        path = Path(0.02, 60e6)
        download = Download(path)
        path.run(1.0)
        self.assertGreater(path.throughput(download, 0.2), 0.97)
        for _ in range(20):
            path.run(0.01)
            self.assertLess(path.queued, 0.04)
            self.assertLess(path.pair.server.session.unacknowledged, 3.5 * MIB)

    @conformance("C-106")
    def test_slow(self) -> None:
        """On a slow path only the necessary data is in flight, and the path is filled."""
        path = Path(0.06, 2e6)
        download = Download(path)
        path.run(1.0)
        self.assertGreater(path.throughput(download, 1.0), 0.97)
        for _ in range(20):
            path.run(0.01)
            self.assertLess(path.queued, 0.25)
            self.assertLess(path.pair.server.session.unacknowledged, 600_000)

    @conformance("C-106")
    def test_thin(self) -> None:
        """On a path of 256 kbit/s nothing queues for a second, and the path is filled."""
        path = Path(0.1, 32e3)
        download = Download(path)
        path.run(4.0)
        self.assertGreater(path.throughput(download, 4.0), 0.97)
        for _ in range(100):
            path.run(0.02)
            self.assertLess(path.queued, 0.8)

    @conformance("C-135")
    def test_thin_and_short(self) -> None:
        """On a thin and short path no probe overestimates the rate, and the queue stays short."""
        path = Path(0.01, 32e3)
        Download(path)
        path.run(5.0)
        for _ in range(2500):
            path.run(0.01)
            self.assertLess(path.queued, 0.6)

    @conformance("C-135")
    def test_longer(self) -> None:
        """A path that becomes 600 ms longer is detected, and filled again ten seconds later."""
        path = Path(0.001, 20e6)
        download = Download(path)
        path.run(2.0)
        path.delay, path.rate = 0.3, 1e6
        path.run(10.0)
        self.assertAlmostEqual(0.6, path.pair.server.session.round_trip or 0.0, 1)
        self.assertGreater(path.throughput(download, 3.0), 0.97)
        self.assertLess(path.queued, 1.0)

    @conformance("C-135")
    def test_long_copy(self) -> None:
        """The queue before the path does not grow over time, and probes cost little."""
        path = Path(0.06, 2e6)
        download = Download(path)
        path.run(1.0)
        for _ in range(4):
            self.assertGreater(path.throughput(download, 8.0), 0.98)
            self.assertLess(path.queued, 0.25)
        self.assertAlmostEqual(0.06, path.pair.server.session.round_trip or 0.0, 2)

    def test_beginning(self) -> None:
        """A long and fast path is filled three round trips after the first byte has arrived."""
        path = Path(0.06, 125e6)
        download = Download(path)
        began = path.now
        while download.received < 100e6:
            path.run(0.01)
        # The answer to OPEN arrives with the first window.
        self.assertLess(path.now - began - 100e6 / path.rate, 0.06 + 3 * 0.06)


class ShareTests(SynchronousTestCase):
    """The windows of several fast streams."""

    @conformance("C-088", "C-089", "C-090")
    def test_idle_neighbors(self) -> None:
        """Idle streams do not reduce the share of a busy one."""
        path = Path(0.02, 200e6)
        for _ in range(100):
            Download(path, idle=True)
        busy = Download(path)
        path.run(0.7)
        self.assertEqual(16 * MIB, busy.far.window.size)

    def test_even_share(self) -> None:
        """A single stream gets a large window; eight later ones get the same share as it."""
        path = Path(0.02, 200e6)
        memory = path.pair.agent.session.memory
        first = Download(path)
        path.run(0.7)
        self.assertEqual(16 * MIB, first.far.window.size)
        later = [Download(path) for _ in range(8)]
        path.run(2.5)
        share = memory.limit // 2 // 9
        windows = [download.far.window for download in (first, *later)]
        for window in windows:
            self.assertTrue(share // 2 <= window.size <= share)
            self.assertLessEqual(window.limit - window.consumed, window.size)
        self.assertLessEqual(memory.used, memory.limit // 2)
