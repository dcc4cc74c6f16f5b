"""The encoding of a command's status and of terminal sizes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.streaming.support import FAILURE, SUCCESS
from yurtlab.node.streaming.command_client import (
    MAX_SIZE_TEXT,
    SizeReader,
    error_stream_content,
)

SIZES = b'{"Width":80,"Height":24}\n{"Width":100,"Height":50}\n{"height":3, "width":4}'
READ = [(80, 24), (100, 50), (4, 3)]


class ContentTests(SynchronousTestCase):
    """The content of the error stream."""

    def test_status(self):
        """v4 and v5 send the status as JSON, in success and in failure."""
        for protocol in ("v4.channel.k8s.io", "v5.channel.k8s.io"):
            for status in (SUCCESS, FAILURE):
                self.assertEqual(status, json.loads(error_stream_content(protocol, status)))

    def test_text(self):
        """Earlier versions send the message of a failure, and nothing for success."""
        for protocol in ("v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io", ""):
            self.assertEqual(b"", error_stream_content(protocol, SUCCESS))
            self.assertEqual(FAILURE["message"].encode(), error_stream_content(protocol, FAILURE))


class SizeTests(SynchronousTestCase):
    """Sizes of a terminal are concatenated JSON objects."""

    def test_cuts(self):
        """They can be split at any byte."""
        for cut in range(len(SIZES) + 1):
            reader = SizeReader()
            self.assertEqual(READ, reader.feed(SIZES[:cut]) + reader.feed(SIZES[cut:]))

    def test_broken(self):
        """After an invalid size nothing more is parsed; earlier sizes are valid."""
        for broken in (b"x}", b"[}", b'{"Width":"80"}', b'{"Width":-1}', b'{"Height":70000}'):
            reader = SizeReader()
            self.assertEqual([(80, 24)], reader.feed(SIZES[:24] + broken + SIZES))
            self.assertEqual([], reader.feed(SIZES))

    def test_no_numbers(self):
        """Booleans and fractions are invalid."""
        for broken in (b'{"Width":true}', b'{"Width":1.5}'):
            self.assertEqual([], SizeReader().feed(broken))

    def test_bounded(self):
        """An endless object is not buffered."""
        reader = SizeReader()
        reader.feed(b"{" + b" " * MAX_SIZE_TEXT)
        self.assertEqual([], reader.feed(b"}" + SIZES))
        self.assertEqual([], SizeReader().feed(b"[" * 100_000 + b"}" + SIZES))

    @given(st.binary(max_size=100))
    def test_noise(self, noise):
        """Any input is parsed or ignored."""
        reader = SizeReader()
        for width, height in reader.feed(noise):
            self.assertTrue(0 <= width <= 65535 and 0 <= height <= 65535)
