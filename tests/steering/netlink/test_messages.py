"""Tests of netlink messages, byte by byte."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.netlink.messages import NESTED, attribute, attributes, raw_request


class MessagesTests(SynchronousTestCase):
    """Encoding and parsing."""

    def test_attributes(self):
        """An attribute has the length in its header; the next one starts at a multiple of four."""
        content = attribute(2, b"edge") + attribute(5, b"\6") + attribute(7 | NESTED, b"")
        self.assertEqual(20, len(content))
        self.assertEqual([(2, b"edge"), (5, b"\6"), (7, b"")], list(attributes(content)))

    def test_attributes_behind_a_header(self):
        """What precedes them is skipped."""
        self.assertEqual([(2, b"x")], list(attributes(b"head" + attribute(2, b"x"), 4)))

    def test_an_attribute_without_an_end(self):
        """An invalid length is an error, and no endless loop."""
        with self.assertRaises(ValueError):
            list(attributes(bytes(8)))

    def test_a_request(self):
        """The header has the total length, the kind and the flags."""
        self.assertEqual(
            b"\x14\0\0\0" + b"\x34\x12" + b"\5\0" + bytes(8) + b"body",
            raw_request(b"body", 0x1234, 5),
        )
