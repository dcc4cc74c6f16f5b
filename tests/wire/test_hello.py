"""The first frame of a connection."""

from __future__ import annotations

import dataclasses
import struct

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import limits
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code, Refused
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import (
    Hello,
    HelloReader,
    Limits,
    decode_hello,
    held_processes,
    kept_sessions,
)

HELLO = Hello(
    limits=Limits(),
    session=b"0123456789abcdef",
    process=b"fedcba9876543210",
    received=77,
    properties={"software": "yurttunnel/0.1.0", "node": "edge-ü"},
)
FIXED = 72
"""The length of a HELLO's payload without properties."""


def decode(frame: bytes) -> Hello:
    """Decode a whole frame."""
    return decode_hello(frame[frames.HEADER_SIZE :])


def prop(name: bytes, value: bytes) -> bytes:
    """Encode one property without any check."""
    return struct.pack("!BH", len(name), len(value)) + name + value


PRINTED = st.text(st.characters(exclude_categories=["C"]), max_size=8)
"""Text without control characters, for names and values of properties."""


class HelloTests(SynchronousTestCase):
    """The content of a HELLO."""

    def setUp(self) -> None:
        """Encode a HELLO without properties, for tests that change it."""
        self.payload = dataclasses.replace(HELLO, properties={}).encode()[frames.HEADER_SIZE :]

    def code_of(self, payload: bytes) -> Code:
        """Return the code with which ``payload`` is rejected."""
        return self.assertRaises(Violation, decode_hello, payload).code

    @conformance("C-001")
    def test_round_trip(self) -> None:
        """A HELLO is a frame of type 0xC0 on stream 0, and is decoded to the encoded one."""
        encoded = HELLO.encode()
        self.assertEqual(b"\xc0\0\0\0\0", encoded[4:9])
        self.assertEqual(HELLO, decode(encoded))

    @conformance("C-005")
    def test_too_short(self) -> None:
        """A HELLO that ends within its fixed part is rejected."""
        self.assertEqual(FIXED, len(self.payload))
        for end in range(FIXED):
            self.assertEqual(Code.PROTOCOL, self.code_of(self.payload[:end]))

    @conformance("C-006")
    def test_no_version_in_common(self) -> None:
        """A HELLO whose versions exclude 1 is rejected with VERSION, regardless of the rest."""
        for versions in (b"\x02\x09", b"\0\0", b"\x05\x00"):
            self.assertEqual(Code.VERSION, self.code_of(versions))
            self.assertEqual(Code.VERSION, self.code_of(versions + self.payload[2:] + b"more"))

    @conformance("C-007")
    def test_versions_around(self) -> None:
        """A range of versions that contains 1 is accepted."""
        self.assertEqual((0, 255), decode_hello(b"\x00\xff" + self.payload[2:]).versions)

    @conformance("C-008", "C-009", "C-010", "C-011")
    def test_limits(self) -> None:
        """Limits at the ends of their ranges are accepted, and those beyond are rejected."""
        for good in (
            limits(max_frame=4096),
            limits(max_frame=1024 * 1024),
            limits(max_streams=1),
            limits(session_window=1),
            limits(stream_window=1),
            limits(ping_interval=1),
            limits(ping_interval=60_000),
            limits(resume_window=0),
            Limits(1 << 20, 0xFFFFFFFF, (1 << 64) - 1, 0xFFFFFFFF, 60_000, 0xFFFFFFFF),
        ):
            hello = dataclasses.replace(HELLO, limits=good)
            self.assertEqual(good, decode(hello.encode()).limits)
        for bad in (
            limits(max_frame=4095),
            limits(max_frame=1024 * 1024 + 1),
            limits(max_streams=0),
            limits(session_window=0),
            limits(stream_window=0),
            limits(ping_interval=0),
            limits(ping_interval=60_001),
        ):
            payload = dataclasses.replace(HELLO, limits=bad).encode()[frames.HEADER_SIZE :]
            self.assertEqual(Code.PROTOCOL, self.code_of(payload))

    @conformance("C-012")
    def test_capabilities(self) -> None:
        """Unknown capabilities are ignored."""
        hello = dataclasses.replace(HELLO, capabilities=0xFFFF)
        self.assertEqual(0xFFFF, decode(hello.encode()).capabilities)

    @conformance("C-013")
    def test_properties(self) -> None:
        """Unknown properties are decoded like known ones; of two of one name the last counts."""
        payload = self.payload + prop(b"x", b"1") + prop(b"", b"") + prop(b"x", b"2")
        self.assertEqual({"x": "2", "": ""}, decode_hello(payload).properties)

    @conformance("C-014")
    def test_properties_cut(self) -> None:
        """A HELLO that ends within a property is rejected."""
        property_ = prop(b"name", b"value")
        for end in range(1, len(property_)):
            self.assertEqual(Code.PROTOCOL, self.code_of(self.payload + property_[:end]))

    @conformance("C-015")
    def test_properties_not_text(self) -> None:
        """A property that is not UTF-8 is rejected."""
        self.assertEqual(Code.PROTOCOL, self.code_of(self.payload + prop(b"\xff", b"")))
        self.assertEqual(Code.PROTOCOL, self.code_of(self.payload + prop(b"", b"\xff")))

    @conformance("C-016")
    def test_properties_with_control_characters(self) -> None:
        """A property with control characters is rejected, and cannot be encoded."""
        for name, value in ((b"a\n", b""), (b"", b"\x1b[2J")):
            self.assertEqual(Code.PROTOCOL, self.code_of(self.payload + prop(name, value)))
            hello = dataclasses.replace(HELLO, properties={name.decode(): value.decode()})
            self.assertRaises(ValueError, hello.encode)

    @conformance("C-017")
    def test_received_out_of_range(self) -> None:
        """A count of received bytes above 2**63 is rejected."""
        most = dataclasses.replace(HELLO, received=2**63)
        self.assertEqual(2**63, decode(most.encode()).received)
        more = dataclasses.replace(HELLO, received=2**63 + 1).encode()
        self.assertEqual(Code.PROTOCOL, self.code_of(more[frames.HEADER_SIZE :]))

    def test_held_processes(self) -> None:
        """The server processes and sessions that an agent has are decoded from its HELLO."""
        first, second = bytes(range(16)), b"\xff" * 16
        for text, held in (
            ("", set()),
            (first.hex(), {first}),
            (f"{first.hex()},{second.hex()}", {first, second}),
        ):
            hello = dataclasses.replace(HELLO, properties={"held": text, "kept": text})
            self.assertEqual(held, held_processes(decode(hello.encode())))
            self.assertEqual(held, kept_sessions(decode(hello.encode())))
        self.assertEqual((set(), set()), (held_processes(HELLO), kept_sessions(HELLO)))

    @conformance("C-133")
    def test_held_processes_that_are_none(self) -> None:
        """A list of anything other than sixteen bytes each is rejected."""
        for text in (",", "00" * 15, f"{'00' * 16},", f"{'00' * 16};{'00' * 16}", "no digits"):
            hello = dataclasses.replace(HELLO, properties={"held": text, "kept": text})
            for read in (held_processes, kept_sessions):
                violation = self.assertRaises(Violation, read, hello)
                self.assertEqual(Code.PROTOCOL, violation.code)

    def test_too_long_to_send(self) -> None:
        """A HELLO above the maximum length cannot be encoded."""
        for properties in (
            {"x" * 256: ""},
            {"x": "y" * 0x10000},
            {"x": "y" * (16 * 1024 - FIXED - 3)},
        ):
            hello = dataclasses.replace(HELLO, properties=properties)
            self.assertRaises(ValueError, hello.encode)
        longest = {"x": "y" * (16 * 1024 - FIXED - 4)}
        dataclasses.replace(HELLO, properties=longest).encode()

    @given(st.binary(max_size=200))
    def test_any_payload(self, tail: bytes) -> None:
        """Any payload is decoded, or rejected with a code."""
        for payload in (tail, self.payload + tail):
            try:
                decode_hello(payload)
            except Violation as violation:
                self.assertIn(violation.code, (Code.PROTOCOL, Code.VERSION))

    @given(st.dictionaries(PRINTED, PRINTED, max_size=4))
    def test_any_properties(self, properties: dict[str, str]) -> None:
        """Any valid properties are decoded to the encoded ones."""
        hello = dataclasses.replace(HELLO, properties=properties)
        self.assertEqual((hello, b""), HelloReader().feed(hello.encode()))


class HelloReaderTests(SynchronousTestCase):
    """The first bytes of a connection, however they are split."""

    @conformance("C-004")
    def test_cut_anywhere(self) -> None:
        """A HELLO is found however it is split, and the bytes after it are returned."""
        data = HELLO.encode() + b"rest"
        end = len(data) - 4
        for cut in range(len(data)):
            reader = HelloReader()
            hello, rest = reader.feed(data[:cut])
            if cut < end:
                self.assertEqual((None, b""), (hello, rest))
                hello, rest = reader.feed(data[cut:])
                self.assertEqual((HELLO, b"rest"), (hello, rest))
            else:
                self.assertEqual((HELLO, data[end:cut]), (hello, rest))

    @conformance("C-004")
    def test_byte_by_byte(self) -> None:
        """A HELLO is found if it arrives byte by byte."""
        reader = HelloReader()
        results = [reader.feed(bytes([byte]))[0] for byte in HELLO.encode()]
        self.assertEqual([None] * (len(results) - 1) + [HELLO], results)

    @conformance("C-002", "C-021")
    def test_something_else(self) -> None:
        """Anything but HELLO or CLOSE, both for stream 0, is rejected from the header alone."""
        for start in (
            b"GET / HTTP/1.1\r\n",
            frames.frame(frames.DATA, 1, b"x"),
            frames.frame(frames.HELLO, 1, b""),
            frames.frame(frames.CLOSE, 1, b"\0\0"),
        ):
            for cut in range(9):
                self.assertEqual((None, b""), HelloReader().feed(start[:cut]))
            violation = self.assertRaises(Violation, HelloReader().feed, start[:9])
            self.assertEqual(Code.PROTOCOL, violation.code)

    @conformance("C-003")
    def test_too_long(self) -> None:
        """A HELLO of more than 16 KiB is rejected from the header alone."""
        header = frames.HEADER.pack(16 * 1024, frames.HELLO, 0)
        self.assertEqual((None, b""), HelloReader().feed(header))
        header = frames.HEADER.pack(16 * 1024 + 1, frames.HELLO, 0)
        violation = self.assertRaises(Violation, HelloReader().feed, header)
        self.assertEqual(Code.FRAME_TOO_LARGE, violation.code)

    @conformance("C-018")
    def test_refused(self) -> None:
        """CLOSE instead of HELLO is a refusal with its code and text, however it is split."""
        data = frames.coded_frame(frames.CLOSE, 0, Code.REVOKED, "edge-1 is revoked")
        for cut in range(len(data)):
            reader = HelloReader()
            self.assertEqual((None, b""), reader.feed(data[:cut]))
            refused = self.assertRaises(Refused, reader.feed, data[cut:])
            self.assertEqual((Code.REVOKED, "edge-1 is revoked"), (refused.code, refused.text))
            self.assertEqual("edge-1 is revoked (REVOKED)", str(refused))

    @conformance("C-019")
    def test_refusal_too_long(self) -> None:
        """CLOSE of more than 2048 bytes is rejected from the header alone."""
        header = frames.HEADER.pack(2048, frames.CLOSE, 0)
        self.assertEqual((None, b""), HelloReader().feed(header))
        header = frames.HEADER.pack(2049, frames.CLOSE, 0)
        violation = self.assertRaises(Violation, HelloReader().feed, header)
        self.assertEqual(Code.FRAME_TOO_LARGE, violation.code)
