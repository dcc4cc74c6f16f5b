"""Invalid, hostile and unlucky input has a defined result, without exceptions or leaks."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import LIMITS, REQUEST, End, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.flood import CANCELS_PER_SECOND, FRAMES_PER_SECOND, OPENINGS_PER_SECOND
from yurttunnel.wire.session import MAX_ANSWERS, Side
from yurttunnel.wire.session_events import SessionState

F = frames
_open = frames.open_frame(4, REQUEST)

MALFORMED: dict[str, tuple[bytes, Code]] = {
    "HELLO again": (F.frame(F.HELLO, 0, bytes(72)), Code.PROTOCOL),
    "OPEN too short": (F.frame(F.OPEN, 4, bytes(7)), Code.PROTOCOL),
    "OPEN longer than its fields": (
        F.frame(F.OPEN, 4, _open[F.HEADER_SIZE :] + b"x"),
        Code.PROTOCOL,
    ),
    "OPEN of this side's number": (F.open_frame(5, REQUEST), Code.PROTOCOL),
    "OPEN of an old number": (F.open_frame(2, REQUEST), Code.PROTOCOL),
    "OPEN of 0": (F.open_frame(0, REQUEST), Code.PROTOCOL),
    "OPEN too long": (F.HEADER.pack(2049, F.OPEN, 4) + b"x", Code.FRAME_TOO_LARGE),
    "OK with a payload": (F.frame(F.OK, 1, b"x"), Code.PROTOCOL),
    "OK for an open stream": (F.frame(F.OK, 2), Code.PROTOCOL),
    "OK for no stream": (F.frame(F.OK, 99), Code.PROTOCOL),
    "FAIL too short": (F.frame(F.FAIL, 1, b"x"), Code.PROTOCOL),
    "FAIL for an open stream": (F.frame(F.FAIL, 2, bytes(2)), Code.PROTOCOL),
    "FAIL with too long a text": (F.frame(F.FAIL, 1, bytes(1027)), Code.PROTOCOL),
    "DATA empty": (F.frame(F.DATA, 2), Code.PROTOCOL),
    "DATA too long": (F.HEADER.pack(LIMITS.max_frame + 1, F.DATA, 2) + b"x", Code.FRAME_TOO_LARGE),
    "DATA of the highest length": (
        F.HEADER.pack(0xFFFFFFFF, F.DATA, 2) + b"x",
        Code.FRAME_TOO_LARGE,
    ),
    "DATA for stream 0": (F.frame(F.DATA, 0, b"xy"), Code.PROTOCOL),
    "DATA for no stream": (F.frame(F.DATA, 99, bytes(3000)), Code.PROTOCOL),
    "DATA before OK": (F.frame(F.DATA, 1, bytes(3000)), Code.PROTOCOL),
    "DATA beyond the stream's credit": (F.frame(F.DATA, 2, bytes(2001)), Code.FLOW_CONTROL),
    "DATA after FIN": (F.frame(F.FIN, 2) + F.frame(F.DATA, 2, bytes(3000)), Code.PROTOCOL),
    "FIN with a payload": (F.frame(F.FIN, 2, b"x"), Code.PROTOCOL),
    "FIN twice": (F.frame(F.FIN, 2) * 2, Code.PROTOCOL),
    "FIN before OK": (F.frame(F.FIN, 1), Code.PROTOCOL),
    "RESET too short": (F.frame(F.RESET, 2), Code.PROTOCOL),
    "RESET for no stream": (F.frame(F.RESET, 6, bytes(2)), Code.PROTOCOL),
    "CREDIT too short": (F.frame(F.CREDIT, 2, bytes(7)), Code.PROTOCOL),
    "CREDIT too long": (F.frame(F.CREDIT, 0, bytes(9)), Code.PROTOCOL),
    "CREDIT for no stream": (F.offset_frame(F.CREDIT, 7, 1), Code.PROTOCOL),
    "GOAWAY too short": (F.frame(F.GOAWAY, 0, bytes(5)), Code.PROTOCOL),
    "GOAWAY for a stream": (F.frame(F.GOAWAY, 2, bytes(6)), Code.PROTOCOL),
    "ACK too short": (F.frame(F.ACK, 0, bytes(7)), Code.PROTOCOL),
    "ACK for a stream": (F.offset_frame(F.ACK, 2, 0), Code.PROTOCOL),
    "ACK of what was not sent": (F.offset_frame(F.ACK, 0, 1 << 20), Code.PROTOCOL),
    "PING too long": (F.frame(F.PING, 0, bytes(9)), Code.PROTOCOL),
    "PING for a stream": (F.offset_frame(F.PING, 2, 0), Code.PROTOCOL),
    "PONG too short": (F.frame(F.PONG, 0), Code.PROTOCOL),
    "PONG for a stream": (F.offset_frame(F.PONG, 2, 0), Code.PROTOCOL),
    "CLOSE too short": (F.frame(F.CLOSE, 0, b"x"), Code.PROTOCOL),
    "CLOSE for a stream": (F.coded_frame(F.CLOSE, 2, Code.DONE, ""), Code.PROTOCOL),
    "CLOSE too long": (F.HEADER.pack(1 << 31, F.CLOSE, 0) + b"x", Code.FRAME_TOO_LARGE),
    "unknown and critical": (F.frame(0xBF, 7, b"xyz"), Code.UNKNOWN_CRITICAL),
    "unknown, critical, of the connection": (F.frame(0xFF, 7), Code.UNKNOWN_CRITICAL),
    "unknown and too long": (F.HEADER.pack(2049, 0x01, 0) + b"x", Code.FRAME_TOO_LARGE),
    "another protocol": (b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n", Code.FRAME_TOO_LARGE),
}


def end_with_streams() -> End:
    """Return a server that is opening stream 1 and has stream 2 open, which is not read."""
    end = End(local=limits(stream_window=2000))
    end.open()
    end.session.pause(end.opened_by_peer(2))
    end.sent()
    return end


class MalformedTests(SynchronousTestCase):
    """Malformed frames, split at every byte."""

    @conformance(
        "C-020", "C-023", "C-025", "C-028", "C-030", "C-032", "C-033", "C-040", "C-074", "C-126"
    )
    def test_malformed(self) -> None:
        """Each malformed frame ends the session with its code, wherever it is split in two."""
        for name, (data, code) in MALFORMED.items():
            for cut in range(len(data)):
                end = end_with_streams()
                end.feed(data[:cut], data[cut:])
                self.assertEqual((code, False), end.log.close, (name, cut))

    @conformance("C-023")
    def test_malformed_byte_by_byte(self) -> None:
        """Each malformed frame ends the session if it arrives byte by byte, without a leak."""
        for name, (data, code) in MALFORMED.items():
            end = end_with_streams()
            end.feed(*[bytes([byte]) for byte in data])
            self.assertEqual((code, False), end.log.close, name)
            self.assertEqual((0, {}), (end.session.memory.used, end.session.streams))
            kinds = [kind for kind, _, _ in end.sent()]
            self.assertEqual([F.CLOSE], kinds)

    def test_incomplete(self) -> None:
        """The buffer for an incomplete frame is limited to the longest control frame."""
        for name, (data, _) in MALFORMED.items():
            for cut in range(len(data)):
                end = end_with_streams()
                end.feed(data[:cut])
                size = sys.getsizeof(end.session._parser._buffer)
                self.assertLess(size, F.CONTROL_LIMIT + 100, name)

    @conformance("C-029")
    def test_unknown_and_optional(self) -> None:
        """Unknown optional frames are skipped by their length."""
        end = end_with_streams()
        end.feed(F.frame(0x3F, 99, b"from the future") + F.frame(0x40, 1, bytes(2048)))
        self.assertIsNone(end.closed)
        end.feed(F.frame(F.OK, 1))
        self.assertIs(SessionState.ATTACHED, end.session.state)

    @conformance("C-027")
    def test_many_small_pieces(self) -> None:
        """A window full of one-byte frames costs little more memory than its bytes."""
        end = End(local=limits(stream_window=65536))
        stream = end.opened_by_peer()
        end.session.pause(stream)
        for second in range(2):
            end.now = float(second)
            end.feed(F.frame(F.DATA, 2, b"x") * 32768)
        cost = sum(map(sys.getsizeof, stream.backlog))
        self.assertLess(cost, 2 * 65536)
        end.session.resume(stream, 0.0)
        self.assertEqual(b"x" * 65536, user_of(stream).data)


class FloodTests(SynchronousTestCase):
    """More frames of a kind than a legitimate peer needs."""

    @conformance("C-127")
    def test_control_frames(self) -> None:
        """Control frames of any kind above the limit in one second end the session."""
        for frame in (
            F.offset_frame(F.PING, 0, 1),
            F.offset_frame(F.CREDIT, 0, 1),
            F.frame(0x01, 0),
            F.frame(F.FIN, 2),
            F.goaway_frame(0xFFFFFFFF, Code.GOING_AWAY, ""),
        ):
            end = End()
            stream = end.opened_by_peer(2)
            end.session.reset(stream, Code.CANCELLED, "")
            end.now = 10.0
            end.feed(frame * FRAMES_PER_SECOND)
            self.assertIsNone(end.closed)
            end.now = 10.999
            end.feed(frame)
            self.assertEqual(Code.FLOOD, end.closed)

    @conformance("C-127")
    def test_small_data(self) -> None:
        """A million DATA frames of one byte in a second are no flood, nor a part of one."""
        end = End(local=limits(stream_window=1 << 20))
        stream = end.opened_by_peer(2)
        end.sent()
        end.now = 10.0
        end.feed(F.offset_frame(F.PING, 0, 1))
        for _ in range(10):
            end.feed(F.frame(F.DATA, 2, b"x") * 100_000)
        end.feed(F.offset_frame(F.PING, 0, 1) * (FRAMES_PER_SECOND - 1))
        self.assertIsNone(end.closed)
        self.assertEqual(1_000_000, len(user_of(stream).data))
        end.feed(F.offset_frame(F.PING, 0, 1))
        self.assertEqual(Code.FLOOD, end.closed)

    @conformance("C-127")
    def test_many_seconds(self) -> None:
        """The maximum number of frames is accepted in every second."""
        end = End()
        for second in range(3):
            end.now = float(second)
            end.feed(F.offset_frame(F.PING, 0, 1) * FRAMES_PER_SECOND)
        self.assertIsNone(end.closed)
        self.assertEqual([(F.PONG, 0)], [frame[:2] for frame in end.sent()])

    @conformance("C-137")
    def test_openings(self) -> None:
        """Streams opened above the limit end the session, even if they are refused at once."""
        end = End(local=limits(max_streams=1))
        for number in range(2, 2 * OPENINGS_PER_SECOND + 2, 2):
            # An end whose answers are read.
            end.feed(F.open_frame(number, REQUEST))
            end.sent()
        self.assertIsNone(end.closed)
        end.feed(F.open_frame(2 * OPENINGS_PER_SECOND + 2, REQUEST))
        self.assertEqual(Code.FLOOD, end.closed)

    @conformance("C-128")
    def test_cancelled_openings(self) -> None:
        """Streams opened and reset before their answer above the limit end the session."""
        end = End()
        number = 2
        for _ in range(CANCELS_PER_SECOND + 1):
            self.assertIsNone(end.closed)
            end.feed(
                F.open_frame(number, REQUEST), F.coded_frame(F.RESET, number, Code.CANCELLED, "")
            )
            number += 2
        self.assertEqual(Code.FLOOD, end.closed)

    @conformance("C-128")
    def test_cancelled_openings_of_many_seconds(self) -> None:
        """The maximum number of cancelled streams is accepted in every second."""
        end = End()
        for number in range(2, 6 * CANCELS_PER_SECOND, 2):
            end.now = float(number // (2 * CANCELS_PER_SECOND))
            end.feed(
                F.open_frame(number, REQUEST), F.coded_frame(F.RESET, number, Code.CANCELLED, "")
            )
        self.assertIsNone(end.closed)

    @conformance("C-129")
    def test_answers_that_nobody_reads(self) -> None:
        """A peer that opens streams and reads no answers ends the session in limited memory."""
        end = End(local=limits(max_streams=1))
        end.opened_by_peer(2)
        number = 4
        while not end.closed:
            # Slowly, so that no other limit is reached.
            end.now += 0.001
            end.feed(F.open_frame(number, REQUEST))
            number += 2
            self.assertLess(end.session._send_queue.control_size, MAX_ANSWERS + 2000)
        self.assertEqual(Code.FLOOD, end.closed)

    @conformance("C-129", "C-131")
    def test_answers_that_are_not_acknowledged(self) -> None:
        """A peer that reads answers without acknowledging them does not starve other sessions."""
        process = MemoryBudget(4 << 20)
        end = End(local=limits(max_streams=1), parent_budget=process)
        end.opened_by_peer(2)
        number = 4
        while not end.closed:
            end.now += 0.001
            end.feed(F.open_frame(number, REQUEST))
            end.sent_bytes()
            number += 2
            self.assertLess(process.used, process.limit * 15 // 16)
        self.assertEqual(Code.FLOOD, end.closed)
        self.assertEqual(0, process.used)

    @conformance("C-131")
    def test_answers_that_are_acknowledged_while_memory_is_short(self) -> None:
        """Answers and credit stop at 192 KiB, and continue with each acknowledgement."""
        process = MemoryBudget(2 << 20)
        process.charge(process.limit * 9 // 10)
        end = End(local=limits(max_streams=1, stream_window=4096), parent_budget=process)
        stream = end.opened_by_peer(2)
        received, credit, data, stops = 0, 4096, 0, 0
        for number in range(4, 60_000, 2):
            end.now += 0.001
            end.feed(F.open_frame(number, REQUEST))
            if data < credit:
                end.feed(F.frame(F.DATA, 2, bytes(1024)))
                data += 1024
            frames_sent = [frame for frame in end.sent() if frame[0] not in (F.ACK, F.PING)]
            for kind, of_stream, payload in frames_sent:
                received += F.HEADER_SIZE + len(payload)
                if (kind, of_stream) == (F.CREDIT, 2):
                    credit = int.from_bytes(payload, "big")
            self.assertLess(end.session.unacknowledged, 193 * 1024)
            if not frames_sent:
                stops += 1
                end.feed(F.offset_frame(F.ACK, 0, received))
        self.assertIsNone(end.closed)
        self.assertGreater(stops, 5)
        self.assertLess(end.session._send_queue.control_size, 1024)
        self.assertGreater(len(user_of(stream).data), 10_000 * 1024)


class NoiseTests(SynchronousTestCase):
    """Random bytes."""

    FRAME = st.builds(
        lambda kind, stream, payload, lie: (
            F.HEADER.pack(len(payload) + lie, kind, stream) + payload
        ),
        st.sampled_from([*range(0x80, 0x88), *range(0xC0, 0xC5), 0x00, 0x40, 0x90]),
        st.sampled_from([0, 1, 2, 3, 4, 6, 0xFFFFFFFF]),
        st.one_of(
            st.just(b""),
            st.binary(max_size=40),
            st.integers(0, 2**64 - 1).map(lambda offset: offset.to_bytes(8, "big")),
            st.integers(0, 200).map(lambda offset: offset.to_bytes(8, "big")),
            st.just(F.open_frame(0, REQUEST)[F.HEADER_SIZE :]),
        ),
        st.sampled_from([0, 0, 0, 0, 1, 3000]),
    )

    @conformance("C-132")
    @given(st.lists(st.one_of(FRAME, st.binary(max_size=30)), max_size=30), st.sampled_from(Side))
    def test_noise(self, pieces: list[bytes], side: Side) -> None:
        """Any input at most closes the session with a code, and its memory is released."""
        end = End(side)
        end.open()
        for piece in pieces:
            end.feed(piece)
            end.sent()
            for stream in list(end.session.streams.values()):
                if stream.state.value == "answering":
                    end.session.accept(stream)
                    end.session.resume(stream, end.now)
            end.advance(0.01)
        used = sum(stream.window.size for stream in end.session.streams.values())
        self.assertEqual(used, end.session.memory.used)
        if end.closed is not None:
            self.assertIsInstance(end.closed, Code)
            self.assertEqual(0, used)

    @conformance("C-132")
    @given(st.binary(max_size=300))
    def test_random_bytes(self, data: bytes) -> None:
        """Random bytes have the same result in one piece and byte by byte."""
        whole, pieces = end_with_streams(), end_with_streams()
        whole.feed(data)
        pieces.feed(*[bytes([byte]) for byte in data])
        self.assertEqual(whole.log.calls, pieces.log.calls)
