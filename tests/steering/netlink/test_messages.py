"""Tests of netlink messages, byte by byte."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.netlink.messages import (
    NESTED,
    attribute,
    attributes,
    netfilter_attributes,
    netfilter_request,
    raw_request,
)


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

    def test_a_request_to_netfilter(self):
        """The subsystem is in the kind, and the family and the resource precede the attributes."""
        content = attribute(1, b"edge")
        made = netfilter_request(6, 2, 5, content, 10, 0x1234)
        self.assertEqual(
            b"\x1c\0\0\0" + b"\x02\x06" + b"\5\0" + bytes(8) + b"\x0a\0\x12\x34" + content, made
        )
        self.assertEqual({1: b"edge"}, netfilter_attributes(made[16:]))
