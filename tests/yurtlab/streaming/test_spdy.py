"""Frames of SPDY/3.1 are encoded and decoded as in moby/spdystream, strictly."""

from __future__ import annotations

import contextlib
import itertools
import struct
import zlib

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.streaming.support import SPDYCodec, control, data, ping, reset
from yurtlab.node.streaming import spdy
from yurtlab.node.streaming.spdy import FrameReader, FrameWriter, SPDYError

# Written by moby/spdystream v0.5.1, spdy.Framer, one after the other with one framer.
GOLDEN = [
    (
        "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a"
        "6800000000ffff",
        spdy.SynStream(1, {b"streamtype": b"error"}, False, False),
    ),
    (
        "800300010000001700000003000000000000c22e555c92929907000000ffff",
        spdy.SynStream(3, {b"streamtype": b"stdin"}, False, False),
    ),
    (
        "800300010100001900000005000000000000c22ac5565c92925f5a02000000ffff",
        spdy.SynStream(5, {b"streamtype": b"stdout"}, True, False),
    ),
    ("000000030000000568656c6c6f", spdy.Data(3, b"hello", False)),
    ("0000000301000000", spdy.Data(3, b"", True)),
    ("800300060000000400000001", spdy.Ping(1)),
    ("80030003000000080000000300000005", spdy.RstStream(3, spdy.ResetStatus.CANCEL)),
    # SETTINGS, and WINDOW_UPDATE
    ("80030004000000140000000201000007000100000000000400000064", None),
    ("80030009000000080000000300001000", None),
    (
        "80030008000000160000000382cab155e8e6e61781c4190d01000000ffff",
        spdy.StreamHeaders(3, {b"x-more": b"1"}, False, False),
    ),
    ("80030007000000080000000000000000", spdy.GoAway(0, 0)),
    ("800300020000000e000000076260606000000000ffff", spdy.StreamHeaders(7, {}, False, True)),
]
STREAM = b"".join(bytes.fromhex(text) for text, _ in GOLDEN)
FRAMES = [frame for _, frame in GOLDEN if frame is not None]


def joined(frames):
    """Join split DATA frames: the result does not depend on the splits."""
    whole = []
    for frame in frames:
        last = whole[-1] if whole else None
        if (
            isinstance(frame, spdy.Data)
            and isinstance(last, spdy.Data)
            and frame.stream_id == last.stream_id
            and not last.fin
        ):
            whole[-1] = spdy.Data(last.stream_id, last.payload + frame.payload, frame.fin)
            continue
        whole.append(frame)
    return whole


def read(*pieces):
    """Parse pieces with one reader."""
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)]


class GoldenTests(SynchronousTestCase):
    """Frames written by spdystream are decoded."""

    def test_dictionary(self):
        """The dictionary is that of the SPDY/3 specification, by its length and checksum."""
        self.assertEqual(1423, len(spdy.DICTIONARY))
        self.assertEqual(0xE3C6A7C2, zlib.adler32(spdy.DICTIONARY))

    def test_frames(self):
        """Every frame of spdystream is decoded, with one compression context for all.

        SETTINGS and WINDOW_UPDATE are ignored.
        """
        reader = FrameReader()
        for text, frame in GOLDEN:
            expected = [] if frame is None else [frame]
            self.assertEqual(expected, list(reader.feed(bytes.fromhex(text))))

    def test_every_cut(self):
        """The same frames are decoded wherever the bytes are split."""
        expected = joined(FRAMES)
        for cut in range(len(STREAM) + 1):
            self.assertEqual(expected, joined(read(STREAM[:cut], STREAM[cut:])), cut)

    def test_byte_by_byte(self):
        """The same frames are decoded from single bytes."""
        pieces = [STREAM[index : index + 1] for index in range(len(STREAM))]
        self.assertEqual(joined(FRAMES), joined(read(*pieces)))

    @given(st.lists(st.integers(0, len(STREAM))))
    def test_any_cuts(self, cuts):
        """The same frames are decoded however the bytes are split."""
        edges = [0, *sorted(cuts), len(STREAM)]
        pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
        self.assertEqual(joined(FRAMES), joined(read(*pieces)))


class WriterTests(SynchronousTestCase):
    """Encoded frames can be decoded by spdystream."""

    def test_replies(self):
        """Replies share one compression context, and each can be decoded at once."""
        writer, codec = FrameWriter(), SPDYCodec()
        for stream_id in (1, 3, 5):
            frames = codec.frames(writer.syn_reply(stream_id, {}))
            self.assertEqual([("reply", stream_id)], frames)

    def test_headers(self):
        """Encoded headers can be decoded."""
        writer = FrameWriter()
        frames = read(writer.syn_reply(1, {b"a": b"b", b"c": b""}))
        self.assertEqual([spdy.StreamHeaders(1, {b"a": b"b", b"c": b""}, False, True)], frames)

    def test_control_frames(self):
        """Frames without headers have exactly the bytes of the specification."""
        writer = FrameWriter()
        cancel, protocol_error = spdy.ResetStatus.CANCEL, spdy.PROTOCOL_ERROR
        self.assertEqual(reset(3), writer.rst_stream(3, cancel))
        self.assertEqual(ping(7), writer.ping(7))
        goaway = control(7, struct.pack("!II", 9, 1))
        self.assertEqual(goaway, writer.go_away(9, protocol_error))

    def test_data(self):
        """Data is one frame, with FIN if it is the last."""
        self.assertEqual(data(1, b"x"), FrameWriter.data(1, b"x"))
        self.assertEqual(data(1, b"", True), FrameWriter.data(1, b"", True))

    def test_long_data(self):
        """Data longer than a frame is sent in several, of which the last has FIN."""
        payload = bytes(spdy.MAX_DATA + 1)
        frames = SPDYCodec().frames(FrameWriter.data(1, payload, True))
        sizes = [(len(frame[2]), frame[3]) for frame in frames]
        self.assertEqual([(spdy.MAX_DATA, False), (1, True)], sizes)


class DataTests(SynchronousTestCase):
    """The payload of DATA is delivered as it arrives."""

    def test_pieces(self):
        """Pieces are delivered at once, and FIN with the last."""
        reader = FrameReader()
        whole = data(1, b"abcdef", True)
        self.assertEqual([spdy.Data(1, b"ab", False)], list(reader.feed(whole[:10])))
        self.assertEqual([spdy.Data(1, b"cdef", True)], list(reader.feed(whole[10:])))

    def test_huge(self):
        """A frame of the maximum length is accepted, without being buffered."""
        reader = FrameReader()
        list(reader.feed(struct.pack("!II", 1, spdy.MAX_DATA)))
        for _ in range(3):
            self.assertEqual([spdy.Data(1, b"x" * 1000, False)], list(reader.feed(b"x" * 1000)))


class HostileTests(SynchronousTestCase):
    """Invalid frames are rejected."""

    def refused(self, frame, reason):
        """Expect a reason when ``frame`` is decoded."""
        error = self.assertRaises(SPDYError, read, frame)
        self.assertIn(reason, str(error))

    def test_wrong_version(self):
        """Versions other than 3 are rejected."""
        self.refused(control(6, b"\0\0\0\1", version=2), "version 2")

    def test_unknown_type(self):
        """Unknown control frames are rejected, also CREDENTIAL."""
        self.refused(control(10, b""), "unknown type 10")
        self.refused(control(5, b""), "unknown type 5")

    def test_too_long(self):
        """A control frame above the limit is rejected from its head."""
        head = struct.pack("!HHI", 0x8003, 1, spdy.MAX_CONTROL + 1)
        self.refused(head, "too long")

    def test_longest(self):
        """A control frame of exactly the limit is decoded; this one then has too many headers."""
        self.assertEqual([], read(struct.pack("!HHI", 0x8003, 1, spdy.MAX_CONTROL)))

    def test_no_stream(self):
        """Frames of a stream must have a stream ID."""
        self.refused(data(0, b""), "no stream")
        self.refused(reset(0), "no number")
        self.refused(SPDYCodec().syn_stream({}, stream_id=0), "no number")
        self.refused(reset(2**31), "no number")

    def test_wrong_length(self):
        """Frames of a fixed length must have that length."""
        for kind, size in ((3, 8), (6, 4), (7, 8), (9, 8)):
            self.refused(control(kind, bytes(size - 1)), f"instead of {size}")
            self.refused(control(kind, bytes(size + 1)), f"instead of {size}")

    def test_broken_off(self):
        """Frames with headers must be long enough for the fields before them."""
        for kind, size, what in (
            (1, 10, "a SYN_STREAM frame breaks off"),
            (2, 4, "a frame with headers breaks off"),
            (8, 4, "a frame with headers breaks off"),
        ):
            self.refused(control(kind, bytes(size - 1)), what)
            self.refused(control(kind, bytes(size)), "a header block breaks off")
        self.refused(control(4, bytes(3)), "breaks off")

    def test_settings_length(self):
        """SETTINGS must have the announced number of entries."""
        self.refused(control(4, struct.pack("!III", 2, 0, 0)), "length")

    def test_reset_without_status(self):
        """RST_STREAM must have a status."""
        self.refused(reset(1, 0), "no status")

    def test_unknown_flags(self):
        """Unknown flags are rejected."""
        self.refused(struct.pack("!II", 1, 2 << 24), "unknown flags")
        for kind in (1, 2, 4, 8):
            self.refused(control(kind, bytes(10), flags=4), "unknown flags")
        for kind in (3, 6, 7, 9):
            self.refused(control(kind, bytes(8), flags=1), "unknown flags")

    def test_frames_before(self):
        """The frames before an invalid one are returned."""
        frames = FrameReader().feed(ping(1) + control(10, b""))
        self.assertEqual(spdy.Ping(1), next(frames))
        self.assertRaises(SPDYError, next, frames)


class HeaderTests(SynchronousTestCase):
    """Header blocks are decoded strictly, and within limits."""

    def refused(self, plain, reason):
        """Expect a reason when the block ``plain`` is decoded."""
        compressed = zlib.compressobj(zdict=spdy.DICTIONARY)
        block = compressed.compress(plain) + compressed.flush(zlib.Z_SYNC_FLUSH)
        self.block_refused(block, reason)

    def block_refused(self, block, reason):
        """Expect a reason when a compressed block is decoded."""
        frame = control(1, struct.pack("!IIH", 1, 0, 0) + block)
        error = self.assertRaises(SPDYError, read, frame)
        self.assertIn(reason, str(error))

    def pair(self, name, value):
        """Encode a header."""
        return struct.pack("!I", len(name)) + name + struct.pack("!I", len(value)) + value

    def test_not_compressed(self):
        """Data that is not zlib is rejected."""
        self.block_refused(b"\xff" * 20, "cannot be decompressed")

    def test_other_dictionary(self):
        """Another dictionary than that of the protocol is rejected."""
        compressed = zlib.compressobj(zdict=b"another")
        block = compressed.compress(bytes(4)) + compressed.flush(zlib.Z_SYNC_FLUSH)
        self.block_refused(block, "cannot be decompressed")

    def test_bomb(self):
        """A block that becomes too long is rejected without being decompressed."""
        plain = struct.pack("!I", 1) + self.pair(b"a", bytes(10_000_000))
        self.refused(plain, "longer than")

    def test_longest(self):
        """A block of exactly the limit is accepted, one byte more is not."""
        room = spdy.MAX_BLOCK - 4 - len(self.pair(b"a", b""))
        for extra in (0, 1):
            plain = struct.pack("!I", 1) + self.pair(b"a", bytes(room + extra))
            compressed = zlib.compressobj(zdict=spdy.DICTIONARY)
            block = compressed.compress(plain) + compressed.flush(zlib.Z_SYNC_FLUSH)
            if extra:
                self.block_refused(block, "longer than")
            else:
                frames = read(control(1, struct.pack("!IIH", 1, 0, 0) + block))
                self.assertEqual(room, len(frames[0].headers[b"a"]))

    def test_ended(self):
        """A compression stream that ends is rejected: it could not continue."""
        compressed = zlib.compressobj(zdict=spdy.DICTIONARY)
        self.block_refused(compressed.compress(bytes(4)) + compressed.flush(), "ended")

    def test_too_many(self):
        """A block with too many headers is rejected by their number; the maximum is accepted."""
        self.refused(struct.pack("!I", spdy.MAX_HEADERS + 1), "more than")
        headers = {b"%d" % number: b"" for number in range(spdy.MAX_HEADERS)}
        (frame,) = read(FrameWriter().syn_reply(1, headers))
        self.assertEqual(headers, frame.headers)

    def test_broken_off(self):
        """A block that ends within a header is rejected."""
        whole = struct.pack("!I", 1) + self.pair(b"ab", b"cd")
        for end in range(len(whole)):
            self.refused(whole[:end], "breaks off")

    def test_huge_length(self):
        """An impossible length is rejected."""
        self.refused(struct.pack("!II", 1, 2**32 - 1), "breaks off")

    def test_rest(self):
        """Data after the headers of a block is rejected."""
        self.refused(struct.pack("!I", 0) + b"x", "data after its headers")

    def test_names(self):
        """Names must be in lower case, not empty, and unique."""
        self.refused(struct.pack("!I", 1) + self.pair(b"Port", b"1"), "lower case")
        self.refused(struct.pack("!I", 1) + self.pair(b"", b"1"), "lower case")
        self.refused(struct.pack("!I", 2) + self.pair(b"a", b"1") * 2, "twice")

    @given(st.binary(max_size=200))
    def test_noise(self, noise):
        """Any input is decoded or rejected, without another exception."""
        with contextlib.suppress(SPDYError):
            read(STREAM[:60], noise)
