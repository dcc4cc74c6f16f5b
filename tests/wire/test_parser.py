"""Parsing of frames, however the bytes are split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.parser import FrameParser

MAX_FRAME = 4096


class Parsed:
    """A parser and its results; adjacent pieces of a stream's data are joined."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, bytes]] = []
        self.parser = FrameParser(MAX_FRAME, self._data, self._control)
        self.pieces = 0

    def _data(self, stream: int, piece: bytes) -> None:
        self.pieces += 1
        if self.events and self.events[-1][:2] == (frames.DATA, stream):
            piece = self.events.pop()[2] + piece
        self.events.append((frames.DATA, stream, piece))

    def _control(self, kind: int, stream: int, payload: bytes) -> None:
        self.events.append((kind, stream, payload))


SEQUENCE = (
    frames.frame(frames.OPEN, 1, b"x" * 20),
    frames.frame(frames.DATA, 1, b"hello"),
    frames.frame(frames.PING, 0, bytes(8)),
    frames.frame(frames.DATA, 3, b"y" * MAX_FRAME),
    frames.frame(frames.FIN, 1),
    frames.frame(0x07, 9, b"unknown"),
    frames.frame(0x47, 9, b"unknown to the connection"),
    frames.frame(frames.RESET, 3, b"\0\x10" + b"z" * 1024),
)
EVENTS = [
    (frame[4], int.from_bytes(frame[5:9], "big"), frame[frames.HEADER_SIZE :]) for frame in SEQUENCE
]
SESSION_BYTES = sum(len(frame) for frame in SEQUENCE if not frame[4] & frames.LINK)


class FrameParserTests(SynchronousTestCase):
    """What a parser delivers, counts, buffers and rejects."""

    @conformance("C-023", "C-096")
    def test_cut_anywhere(self) -> None:
        """The frames and their count are the same wherever the bytes are split."""
        data = b"".join(SEQUENCE)
        for cut in range(len(data) + 1):
            parsed = Parsed()
            parsed.parser.feed(data[:cut])
            parsed.parser.feed(data[cut:])
            self.assertEqual(EVENTS, parsed.events)
            self.assertEqual(SESSION_BYTES, parsed.parser.received)

    @conformance("C-023")
    @given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
    def test_many_cuts(self, sizes: list[int]) -> None:
        """The frames are the same however many splits there are."""
        data = b"".join(SEQUENCE)
        parsed = Parsed()
        position = turn = 0
        while position < len(data):
            size = sizes[turn % len(sizes)]
            parsed.parser.feed(data[position : position + size])
            position += size
            turn += 1
        self.assertEqual(EVENTS, parsed.events)

    @conformance("C-024")
    def test_data_before_the_end_of_the_frame(self) -> None:
        """The payload of DATA is delivered before the frame is complete."""
        parsed = Parsed()
        parsed.parser.feed(frames.HEADER.pack(100, frames.DATA, 1) + b"now")
        self.assertEqual([(frames.DATA, 1, b"now")], parsed.events)
        parsed.parser.feed(b"x" * 97 + frames.frame(frames.FIN, 1))
        self.assertEqual(
            [(frames.DATA, 1, b"now" + b"x" * 97), (frames.FIN, 1, b"")], parsed.events
        )
        self.assertEqual(2, parsed.pieces)

    def test_no_bytes(self) -> None:
        """Empty input has no effect, within DATA or elsewhere."""
        parsed = Parsed()
        parsed.parser.feed(b"")
        parsed.parser.feed(frames.HEADER.pack(3, frames.DATA, 1) + b"a")
        parsed.parser.feed(b"")
        self.assertEqual((1, 10), (parsed.pieces, parsed.parser.received))

    @conformance("C-025", "C-026")
    def test_data_too_long(self) -> None:
        """DATA above the maximum is rejected from its header; the maximum is accepted."""
        header = frames.HEADER.pack(MAX_FRAME + 1, frames.DATA, 1)
        parsed = Parsed()
        parsed.parser.feed(header[:8])
        violation = self.assertRaises(Violation, parsed.parser.feed, header[8:])
        self.assertEqual(Code.FRAME_TOO_LARGE, violation.code)
        parsed = Parsed()
        parsed.parser.feed(frames.frame(frames.DATA, 1, b"x" * MAX_FRAME))
        self.assertEqual([(frames.DATA, 1, b"x" * MAX_FRAME)], parsed.events)

    @conformance("C-027")
    def test_data_empty(self) -> None:
        """Empty DATA is rejected."""
        violation = self.assertRaises(Violation, Parsed().parser.feed, frames.frame(frames.DATA, 1))
        self.assertEqual(Code.PROTOCOL, violation.code)

    @conformance("C-028")
    def test_control_too_long(self) -> None:
        """Any other frame above 2048 bytes is rejected from its header, whatever its type."""
        for kind in set(range(256)) - {frames.DATA}:
            header = frames.HEADER.pack(2049, kind, 0)
            violation = self.assertRaises(Violation, Parsed().parser.feed, header)
            self.assertEqual(Code.FRAME_TOO_LARGE, violation.code)
            parsed = Parsed()
            parsed.parser.feed(frames.frame(kind, 0, bytes(2048)))
            self.assertEqual([(kind, 0, bytes(2048))], parsed.events)

    @conformance("C-031")
    def test_unknown_frames_are_counted_by_their_bit(self) -> None:
        """An unknown session frame is counted, an unknown link frame is not."""
        parsed = Parsed()
        parsed.parser.feed(frames.frame(0x3F, 0, b"12345"))
        self.assertEqual(14, parsed.parser.received)
        parsed.parser.feed(frames.frame(0x7F, 0, b"12345"))
        self.assertEqual(14, parsed.parser.received)

    @conformance("C-102", "C-103")
    def test_restart_anywhere(self) -> None:
        """After a loss at any byte, the bytes from the count on result in the same frames."""
        session = b"".join(frame for frame in SEQUENCE if not frame[4] & frames.LINK)
        expected = [event for event in EVENTS if not event[0] & frames.LINK]
        for lost in range(len(session) + 1):
            parsed = Parsed()
            parsed.parser.feed(session[:lost])
            parsed.parser.restart()
            parsed.parser.feed(session[parsed.parser.received :])
            self.assertEqual(expected, parsed.events)

    @conformance("C-109")
    def test_restart_within_a_link_frame(self) -> None:
        """The start of a link frame is discarded with its connection."""
        parsed = Parsed()
        parsed.parser.feed(frames.frame(frames.PING, 0, bytes(8))[:12])
        parsed.parser.restart()
        parsed.parser.feed(frames.frame(frames.FIN, 1))
        self.assertEqual([(frames.FIN, 1, b"")], parsed.events)
