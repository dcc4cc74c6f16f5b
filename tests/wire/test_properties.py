"""Two sessions, with any splitting of the bytes and any loss of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import LIMITS, End, Pair, examples, limits, user_of
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.session import Side
from yurttunnel.wire.stream import Stream

BLOCK = bytes((i * i * 7 + i // 251) % 256 for i in range(60_000))
SMALL = limits(stream_window=3000, max_frame=4096)


class Transfer:
    """Several streams opened from both sides that transfer data in both directions, then end."""

    def __init__(self, pair: Pair, sizes: list[tuple[int, int]]) -> None:
        self.pair = pair
        self.sizes = sizes
        self.left: dict[tuple[Side, int], int] = {}
        self.streams: dict[tuple[Side, int], Stream] = {}
        for index, (up, down) in enumerate(sizes):
            opener = Side.SERVER if index % 3 else Side.AGENT
            other = Side(3 - opener)
            stream = pair.ends[opener].open(OpenRequest("h", 1, 1_000_000, str(index)))
            self.join(opener, index, stream, up)
            self.left[other, index] = down

    def join(self, side: Side, index: int, stream: Stream, size: int) -> None:
        """Start reading and writing at one end of a stream."""
        self.streams[side, index] = stream
        self.left[side, index] = size
        self.pair.ends[side].session.resume(stream, 0.0)

    def step(self) -> None:
        """Accept requests, write what is accepted, and end what is written."""
        for side, end in self.pair.ends.items():
            for stream in end.log.requested:
                index = int(stream.request.request_id)
                if (side, index) not in self.streams:
                    end.session.accept(stream)
                    self.join(side, index, stream, self.left[side, index])
        for (side, index), stream in self.streams.items():
            session = self.pair.ends[side].session
            while self.left[side, index] > 0 and not stream.full:
                start = self.size(side, index) - self.left[side, index]
                piece = BLOCK[start : start + min(2500, self.left[side, index])]
                session.send(stream, piece)
                self.left[side, index] -= len(piece)
            if not self.left[side, index]:
                session.finish(stream)

    def size(self, side: Side, index: int) -> int:
        """Return how much a side sends on a stream."""
        opener = Side.SERVER if index % 3 else Side.AGENT
        return self.sizes[index][0 if side is opener else 1]

    @property
    def done(self) -> bool:
        """Whether all streams have ended at both ends."""
        ended = [stream.closed for stream in self.streams.values()]
        return len(ended) == 2 * len(self.sizes) and all(ended)

    def check(self, test: SynchronousTestCase) -> None:
        """Check that every stream has transferred exactly what was written, and nothing is left."""
        for (side, index), stream in self.streams.items():
            expected = BLOCK[: self.size(Side(3 - side), index)]
            test.assertEqual(expected, user_of(stream).data)
            calls = [call for call in user_of(stream).calls if call != "writable"]
            opened = ["opened"] if stream.opened_here else []
            test.assertEqual([*opened, "ended", (Code.DONE, "")], calls)
        for end in self.pair.ends.values():
            test.assertEqual([], end.log.calls)
            test.assertEqual((0, {}), (end.session.memory.used, end.session.streams))


def events_of(end: End) -> tuple[Any, ...]:
    """Return all events of an end."""
    users = {number: (user.calls, bytes(user.data)) for number, user in end.log.users.items()}
    return end.log.calls, users, end.session.received, end.session.bytes_received


def record(side: Side) -> tuple[bytes, Limits]:
    """Return the bytes that one end sends in a transfer."""
    pair = Pair(SMALL, SMALL)
    transfer = Transfer(pair, [(5000, 800), (0, 7000), (9000, 1)])
    recorded = b""
    while not transfer.done:
        transfer.step()
        for sender in Side:
            pair.move(sender, 0)
            pair.wires[sender] += pair.ends[sender].sent_bytes()
            if sender is side:
                recorded += pair.wires[sender]
            pair.move(sender, len(pair.wires[sender]))
    return recorded, SMALL


class CuttingTests(SynchronousTestCase):
    """The same bytes, split differently."""

    DATA, LIMITS = record(Side.AGENT)

    def replay(self, feed: Callable[[End], None]) -> tuple[Any, ...]:
        """Receive the bytes at a server whose own streams were opened as in the recording."""
        end = End(Side.SERVER, LIMITS, self.LIMITS)

        def accept() -> None:
            end.session.accept(end.log.requested[-1])
            end.session.resume(end.log.requested[-1], 0.0)

        end.log.on["requested"] = accept
        # As in the recording: streams that the agent answers were opened before.
        for _ in range(2):
            stream = end.open()
            end.log.users[stream.number] = user_of(stream)
            end.session.resume(stream, 0.0)
        end.sent()
        feed(end)
        return events_of(end)

    @conformance("C-023")
    @examples(100)
    @given(st.lists(st.integers(1, 6000), min_size=1, max_size=40))
    def test_any_cutting(self, sizes: list[int]) -> None:
        """Any splitting of the bytes results in the same events."""

        def in_pieces(end: End) -> None:
            position = turn = 0
            while position < len(self.DATA):
                size = sizes[turn % len(sizes)]
                end.feed(self.DATA[position : position + size])
                position += size
                turn += 1

        self.assertEqual(self.replay(lambda end: end.feed(self.DATA)), self.replay(in_pieces))

    @conformance("C-023")
    def test_byte_by_byte(self) -> None:
        """Single bytes result in the same events."""
        whole = self.replay(lambda end: end.feed(self.DATA))
        self.assertEqual(
            whole, self.replay(lambda end: end.feed(*[bytes([byte]) for byte in self.DATA]))
        )
        self.assertGreater(whole[3], 5000)


class LossTests(SynchronousTestCase):
    """The connection is lost repeatedly."""

    @conformance("C-105", "C-106")
    @examples(100)
    @given(
        st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=4),
        st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000), st.booleans()), max_size=12),
        st.integers(300, 5000),
    )
    def test_any_loss(
        self, sizes: list[tuple[int, int]], losses: list[tuple[int, int, bool]], piece: int
    ) -> None:
        """After losses at any byte in either direction no data is lost, duplicated or reordered."""
        pair = Pair(SMALL, SMALL)
        transfer = Transfer(pair, sizes)
        for from_agent, from_server, noticed_by_one in losses:
            transfer.step()
            pair.move(Side.AGENT, from_agent, 4096)
            pair.move(Side.SERVER, from_server, 4096)
            if noticed_by_one:
                # The agent reconnects before the server detects the loss; data in flight is lost.
                pair.agent.session.detach(0.0, 30.0)
                for wire in pair.wires.values():
                    wire.clear()
                transfer.step()
            else:
                pair.lose()
            pair.connect()
        for _ in range(2000):
            transfer.step()
            moved = pair.move(Side.AGENT, piece) + pair.move(Side.SERVER, piece)
            if not moved and transfer.done:
                break
        transfer.check(self)

    @conformance("C-105")
    def test_loss_at_every_byte(self) -> None:
        """A loss after any single byte of a dialogue does no harm in either direction."""
        for side in Side:
            byte = 0
            more = True
            while more:
                pair = Pair(SMALL, SMALL)
                transfer = Transfer(pair, [(60, 50), (20, 3)])
                left = byte
                more = False
                lost = False
                while not transfer.done:
                    transfer.step()
                    pair.move(Side(3 - side), 1 << 20)
                    moved = pair.move(side, (1 << 20) if lost else left)
                    left -= moved
                    if not lost and left == 0:
                        pair.lose()
                        pair.connect()
                        lost = more = True
                transfer.check(self)
                byte += 1
            self.assertGreater(byte, 100)
