"""Encoding and decoding of frames."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import OpenRequest, Violation

REQUEST = OpenRequest("edge", 80, 1000, "id")


def payload_of(frame: bytes) -> bytes:
    """Remove the header."""
    return frame[frames.HEADER_SIZE :]


def open_payload(
    timeout: int = 1, port: int = 1, host: bytes = b"h", request_id: bytes = b"", extra: bytes = b""
) -> bytes:
    """Encode a payload of OPEN without any check."""
    head = struct.pack("!IHBB", timeout, port, len(host), len(request_id))
    return head + host + request_id + extra


PAYLOADS_OF_OPEN = st.binary(max_size=700) | st.builds(
    open_payload,
    timeout=st.integers(0, 2**32 - 1),
    port=st.integers(0, 2**16 - 1),
    host=st.text(min_size=1, max_size=60).map(str.encode) | st.binary(max_size=255),
    request_id=st.text("az09-", max_size=255).map(str.encode) | st.binary(max_size=255),
    extra=st.just(b"") | st.binary(max_size=2),
)


def payloads_with_text(size: int) -> st.SearchStrategy[bytes]:
    """Generate payloads of ``size`` bytes, or some other number, followed by a text."""
    text = st.text(max_size=400).map(str.encode) | st.binary(max_size=64)
    long = st.integers(1000, 1100).map(lambda length: b"x" * length)
    begin = st.binary(min_size=size, max_size=size) | st.binary(max_size=size)
    return st.tuples(begin, text | long).map(b"".join)


class FrameTests(SynchronousTestCase):
    """Headers, and the payloads of all frames but HELLO."""

    def assert_violation(self, decode: Callable[[bytes], object], payload: bytes) -> None:
        """Check that decoding ``payload`` is a protocol violation."""
        violation = self.assertRaises(Violation, decode, payload)
        self.assertEqual(Code.PROTOCOL, violation.code)

    @conformance("C-022")
    def test_header(self) -> None:
        """A header is the payload's length, the type and the stream in network byte order."""
        self.assertEqual(
            bytes.fromhex("00000003 83 01020304 616263"),
            frames.frame(frames.DATA, 0x01020304, b"abc"),
        )

    def test_open_round_trip(self) -> None:
        """OPEN is decoded to the encoded request, at the minimum and maximum of its fields."""
        for request in (
            OpenRequest("h", 1, 1, ""),
            OpenRequest("ü" * 127 + "x", 0xFFFF, 0xFFFFFFFF, "~" * 255),
            OpenRequest("fd00::1", 10250, 30_000, "0 1"),
        ):
            encoded = frames.open_frame(7, request)
            self.assertEqual(request, frames.decode_open(payload_of(encoded)))

    @conformance("C-047", "C-048")
    def test_open_cut(self) -> None:
        """OPEN that is truncated or has extra bytes is a violation."""
        payload = payload_of(frames.open_frame(1, REQUEST))
        for end in range(len(payload)):
            self.assert_violation(frames.decode_open, payload[:end])
        self.assert_violation(frames.decode_open, payload + b"x")

    @conformance("C-049")
    def test_open_empty_fields(self) -> None:
        """OPEN without a timeout, port or host is a violation."""
        self.assert_violation(frames.decode_open, open_payload(timeout=0))
        self.assert_violation(frames.decode_open, open_payload(port=0))
        self.assert_violation(frames.decode_open, open_payload(host=b""))

    @conformance("C-050")
    def test_open_not_text(self) -> None:
        """OPEN with a host that is not UTF-8 or a request id that is not ASCII is a violation."""
        self.assert_violation(frames.decode_open, open_payload(host=b"\xff"))
        self.assert_violation(frames.decode_open, open_payload(request_id="é".encode()))

    @conformance("C-051")
    def test_open_control_characters(self) -> None:
        """OPEN with control characters in its texts is a violation, and cannot be encoded."""
        for character in "\x00\n\x1f\x7f\x85\u2028\u2029":
            self.assert_violation(frames.decode_open, open_payload(host=character.encode()))
            self.assertRaises(
                ValueError, frames.open_frame, 1, OpenRequest(f"a{character}", 1, 1, "")
            )
        self.assert_violation(frames.decode_open, open_payload(request_id=b"\n"))
        self.assertRaises(ValueError, frames.open_frame, 1, OpenRequest("a", 1, 1, "\n"))

    def test_open_out_of_range(self) -> None:
        """OPEN with a field out of range cannot be encoded."""
        for request in (
            OpenRequest("", 1, 1, ""),
            OpenRequest("ü" * 128, 1, 1, ""),
            OpenRequest("h", 0, 1, ""),
            OpenRequest("h", 0x10000, 1, ""),
            OpenRequest("h", 1, 0, ""),
            OpenRequest("h", 1, 0x100000000, ""),
            OpenRequest("h", 1, 1, "x" * 256),
            OpenRequest("h", 1, 1, "é"),
            OpenRequest("\ud800", 1, 1, ""),
        ):
            self.assertRaises(ValueError, frames.open_frame, 1, request)

    def test_coded_round_trip(self) -> None:
        """A reason is decoded to the encoded one."""
        for text in ("", "refused", "gesperrt ☂ ohne Grund", "x" * 1024):
            for kind in (frames.FAIL, frames.RESET, frames.CLOSE):
                encoded = frames.coded_frame(kind, 5, Code.DENIED, text)
                self.assertEqual((Code.DENIED, text), frames.decode_coded(payload_of(encoded)))

    @conformance("C-035")
    def test_unknown_code(self) -> None:
        """An unknown code is decoded as INTERNAL."""
        self.assertEqual((Code.INTERNAL, ""), frames.decode_coded(b"\xff\xff"))
        self.assertEqual((0, Code.INTERNAL, ""), frames.decode_goaway(bytes(4) + b"\x01\x00"))

    @conformance("C-036")
    def test_text_too_long(self) -> None:
        """A reason's text of more than 1024 bytes is a violation."""
        self.assertEqual(1024, len(frames.decode_coded(b"\0\1" + b"x" * 1024)[1]))
        self.assert_violation(frames.decode_coded, b"\0\1" + b"x" * 1025)
        self.assert_violation(frames.decode_goaway, bytes(6) + b"x" * 1025)

    @conformance("C-037")
    def test_text_is_cut(self) -> None:
        """A text is truncated to 1024 bytes when encoded, but not within a character."""
        payload = payload_of(frames.coded_frame(frames.FAIL, 1, Code.REFUSED, "x" + "ü" * 600))
        self.assertEqual(b"\0\1x" + "ü".encode() * 511, payload)

    @conformance("C-038")
    def test_text_that_is_none(self) -> None:
        """Bytes that are not UTF-8 and control characters are replaced in a reason's text."""
        self.assertEqual("a\ufffdb", frames.decode_coded(b"\0\1a\xffb")[1])
        self.assertEqual("a\ufffdb\ufffd", frames.decode_coded(b"\0\1a\nb\x1b")[1])

    @conformance("C-039")
    def test_coded_too_short(self) -> None:
        """A reason of less than two bytes is a violation."""
        self.assert_violation(frames.decode_coded, b"")
        self.assert_violation(frames.decode_coded, b"\0")

    @conformance("C-041")
    def test_goaway(self) -> None:
        """GOAWAY is decoded to the encoded one; less than six bytes are a violation."""
        payload = payload_of(frames.goaway_frame(9, Code.GOING_AWAY, "upgrade"))
        self.assertEqual((9, Code.GOING_AWAY, "upgrade"), frames.decode_goaway(payload))
        for end in range(6):
            self.assert_violation(frames.decode_goaway, payload[:end])

    @conformance("C-136")
    def test_servers(self) -> None:
        """SERVERS is one number of four bytes, which is not 0."""
        for servers in (1, 2, 2**32 - 1):
            payload = payload_of(frames.servers_frame(servers))
            self.assertEqual(servers, frames.decode_servers(payload))
        for payload in (b"", bytes(3), bytes(4), b"\0\0\0\1\0"):
            self.assert_violation(frames.decode_servers, payload)

    @conformance("C-040")
    def test_offset(self) -> None:
        """An offset has eight bytes, and may have any value."""
        for offset in (0, 1, 2**63, 2**64 - 1):
            payload = payload_of(frames.offset_frame(frames.CREDIT, 1, offset))
            self.assertEqual(offset, frames.decode_offset(payload))
        self.assert_violation(frames.decode_offset, bytes(7))
        self.assert_violation(frames.decode_offset, bytes(9))

    @conformance("C-028")
    def test_control_limit(self) -> None:
        """Every control frame is within the size limit if each field has its maximum length."""
        longest = OpenRequest("x" * 255, 1, 1, "x" * 255)
        for frame in (
            frames.open_frame(1, longest),
            frames.coded_frame(frames.CLOSE, 0, Code.INTERNAL, "x" * 9999),
            frames.goaway_frame(1, Code.INTERNAL, "x" * 9999),
        ):
            self.assertLessEqual(len(payload_of(frame)), frames.CONTROL_LIMIT)

    def test_violation_is_readable(self) -> None:
        """A violation is displayed with its text and its code."""
        self.assertEqual("no (FLOOD)", str(Violation(Code.FLOOD, "no")))

    def test_any_open(self) -> None:
        """Any payload of OPEN is a violation, or encoded again to the same bytes."""

        def encoded(payload: bytes) -> bytes:
            return payload_of(frames.open_frame(1, frames.decode_open(payload)))

        self.check_any(PAYLOADS_OF_OPEN, encoded, lambda payload: payload)

    def test_any_other_payload(self) -> None:
        """Any other payload is a violation, or encoded again except for invalid characters."""

        def coded(payload: bytes) -> bytes:
            return payload_of(frames.coded_frame(frames.FAIL, 1, *frames.decode_coded(payload)))

        def goaway(payload: bytes) -> bytes:
            return payload_of(frames.goaway_frame(*frames.decode_goaway(payload)))

        def offset(payload: bytes) -> bytes:
            number = frames.decode_offset(payload)
            return payload_of(frames.offset_frame(frames.ACK, 0, number))

        offsets = st.binary(max_size=16) | st.binary(min_size=8, max_size=8)
        self.check_any(offsets, offset, lambda payload: payload)
        for size, to_retransmit in ((2, coded), (6, goaway)):
            # After one decoding and encoding nothing changes any more.
            self.check_any(payloads_with_text(size), to_retransmit, to_retransmit)

    def check_any(
        self,
        payloads: st.SearchStrategy[bytes],
        to_retransmit: Callable[[bytes], bytes],
        expected: Callable[[bytes], bytes],
    ) -> None:
        """Decode and encode many payloads, of which many are valid and many are not."""
        found: Counter[str] = Counter()

        @given(payloads)
        def check(payload: bytes) -> None:
            try:
                encoded = to_retransmit(payload)
            except Violation as violation:
                self.assertEqual(Code.PROTOCOL, violation.code)
                found["violations"] += 1
            else:
                self.assertEqual(to_retransmit(encoded), encoded)
                self.assertEqual(expected(payload), encoded)
                found["decoded"] += 1

        check()
        self.assertGreater(found["decoded"], 0.05 * found.total(), found)
        self.assertGreater(found["violations"], 0.05 * found.total(), found)


class CodeTests(SynchronousTestCase):
    """The numbers of the codes."""

    def test_numbers(self) -> None:
        """Each code has a fixed number, since peers rely on it."""
        self.assertEqual(
            {
                0: "DONE",
                1: "REFUSED",
                2: "UNREACHABLE",
                3: "TIMEOUT",
                4: "NAME_NOT_RESOLVED",
                5: "DENIED",
                6: "OVERLOADED",
                7: "BAD_DESTINATION",
                16: "CANCELLED",
                17: "CONNECTION_LOST",
                32: "GOING_AWAY",
                33: "SESSION_LOST",
                34: "REPLACED",
                35: "REVOKED",
                36: "NOT_AUTHORIZED",
                37: "ALREADY_CONNECTED",
                48: "PROTOCOL",
                49: "FLOW_CONTROL",
                50: "FRAME_TOO_LARGE",
                51: "VERSION",
                52: "UNKNOWN_CRITICAL",
                53: "FLOOD",
                54: "INTERNAL",
            },
            {code.value: code.name for code in Code},
        )
