"""The list of nodes: writing and reading."""

from __future__ import annotations

import json

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession, FakeStream, Recorder
from yurttunnel.pki.identity import Identifiers, parse_identifiers
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings import feed
from yurttunnel.server.siblings.feed import (
    MAX_LINE,
    BadEntry,
    FeedReader,
    FeedWriter,
    NodeEntry,
    decode_line,
    encode_entry,
    encode_removal,
)
from yurttunnel.tunnel.interfaces import StreamFailed
from yurttunnel.wire.codes import Code


class LineTests(SynchronousTestCase):
    """One line of the list."""

    def test_round_trip(self):
        """A written line is read again."""
        text = "host=edge-1&ipv4=192.0.2.7&ipv6=2001:db8::1&cidr=10.0.0.0/8&default-route=true"
        for entry in (
            NodeEntry(1, "edge-1", parse_identifiers(text), False),
            NodeEntry(2**32 - 1, "n" * 63, Identifiers(frozenset()), True),
        ):
            line = encode_entry(entry)
            self.assertEqual(b"\n", line[-1:])
            self.assertEqual(1, line.count(b"\n"))
            self.assertEqual(entry, decode_line(line[:-1]))
        self.assertEqual(7, decode_line(encode_removal(7)[:-1]))

    def test_as_specified(self):
        """A line is as specified in docs/protocol.md, and unknown fields are ignored."""
        line = (
            b'{"number":7,"node":"edge-1","identifiers":"host=edge-1&ipv4=192.0.2.7",'
            b'"draining":false}\n'
        )
        entry = NodeEntry(7, "edge-1", parse_identifiers("host=edge-1&ipv4=192.0.2.7"), False)
        self.assertEqual(line, encode_entry(entry))
        self.assertEqual(entry, decode_line(line.replace(b"}", b',"new":[1]}')))
        self.assertEqual(b'{"number":7}\n', encode_removal(7))

    def test_bad_lines(self):
        """Other lines are rejected with a reason."""
        good = {"number": 1, "node": "edge-1", "identifiers": "host=edge-1", "draining": False}
        bad = [{**good, "number": number} for number in (0, -1, 2**32, "1", True, None, 1.0)]
        bad += [{**good, "node": node} for node in ("", "Edge", "a b", "x" * 254, 7, None)]
        bad += [{**good, "identifiers": text} for text in ("host", "x=y", 7, None)]
        for line in [b"", b"{", b"[]", b"7", b"\xff", b"[" * 30000, *map(_encoded, bad)]:
            self.assertRaises(BadEntry, decode_line, line)


def _encoded(fields):
    return json.dumps(fields).encode()


class WriterTests(SynchronousTestCase):
    """The writing side."""

    def setUp(self):
        """Start with two nodes."""
        self.registry = SessionRegistry(Clock())
        self.sessions = [FakeSession(f"edge-{number}", hosts=[]) for number in (1, 2)]
        for session in self.sessions:
            self.registry.add(session)
        self.near, self.far = FakeStream.pair()
        self.writer = FeedWriter(self.registry)
        self.reader = Recorder()

    def open(self):
        """Open the stream."""
        self.near.attach(self.writer)
        self.far.attach(self.reader)

    def new_entries(self):
        """Return the lines since the last call."""
        lines, self.reader.received = self.reader.received.split(b"\n"), b""
        self.assertEqual(b"", lines.pop())
        entries = [decode_line(line) for line in lines]
        return [
            entry if isinstance(entry, int) else (entry.number, entry.node, entry.draining)
            for entry in entries
        ]

    def test_changes(self):
        """First all nodes are reported, then each change; a number is never reused."""
        self.open()
        self.assertEqual([(1, "edge-1", False), (2, "edge-2", False)], self.new_entries())
        self.registry.remove(self.sessions[0])
        self.assertEqual([1], self.new_entries())
        self.registry.add(self.sessions[0])
        self.assertEqual([(3, "edge-1", False)], self.new_entries())
        self.sessions[1].draining = True
        self.registry.direct_changed("edge-2")
        self.assertEqual([(2, "edge-2", True)], self.new_entries())
        self.assertEqual([None, "edge-2", "edge-1"], list(map(self.writer.node, (1, 2, 3))))

    def test_disconnected_agent(self):
        """A node whose agent has no connection is reported as draining."""
        self.open()
        self.new_entries()
        for connected in (False, True):
            self.sessions[0].connected = connected
            self.registry.direct_changed("edge-1")
            self.assertEqual([(1, "edge-1", not connected)], self.new_entries())

    def test_reader_that_has_left(self):
        """Changes before the end of the stream are no longer written to it."""
        self.open()
        self.new_entries()
        self.writer.stopProducing()
        self.registry.remove(self.sessions[0])
        self.assertEqual([], self.new_entries())

    def test_remote_nodes(self):
        """Nodes of siblings are not reported."""
        self.open()
        self.new_entries()
        self.registry.add_remote(FakeSession("edge-9"))
        self.assertEqual([], self.new_entries())

    def test_slow_reader(self):
        """For a slow reader only names are stored, and later the current state is written."""
        for number in range(3, 3000):
            self.registry.add(FakeSession(f"edge-{number}", hosts=[]))
        self.near.attach(self.writer)
        waiting = self.near._peer._buffered
        self.assertLess(waiting, 2 * FakeStream.window)
        for _ in range(100):
            for session in self.sessions:
                self.registry.remove(session)
                self.registry.add(session)
        self.registry.remove(self.sessions[1])
        self.assertEqual(waiting, self.near._peer._buffered)
        self.far.attach(self.reader)
        new_entries = self.new_entries()
        self.assertLess(len(new_entries), 3010)
        there = {}
        for each in new_entries:
            if isinstance(each, int):
                del there[each]
            else:
                there[each[0]] = each[1]
        self.assertEqual(set(self.registry.direct_nodes()), set(there.values()))
        self.assertEqual(2998, len(there))

    def test_too_many_nodes(self):
        """Nodes above the limit are omitted, with a warning."""
        self.patch(feed, "MAX_NODES", 1)
        self.open()
        self.assertEqual([(1, "edge-1", False)], self.new_entries())

    def test_reader_that_writes(self):
        """A reader that writes to the list loses it."""
        self.open()
        self.far.write(b"x")
        self.assertEqual(Code.PROTOCOL, self.reader.ended_with[0].code)
        self.assertEqual([], self.registry.on_direct_changed)

    def test_end(self):
        """When the reader has left, changes are no longer followed."""
        self.open()
        self.far.abort(Code.CANCELLED, "enough")
        self.assertEqual([], self.registry.on_direct_changed)
        self.registry.remove(self.sessions[0])


class ReaderTests(SynchronousTestCase):
    """The reading side."""

    def setUp(self):
        """Open a stream."""
        self.listeners, self.failures = [], []
        self.near, self.far = FakeStream.pair()
        self.reader = FeedReader(self.listeners.append, self.failures.append)
        self.near.attach(self.reader)
        self.writer = Recorder()
        self.far.attach(self.writer)

    def test_cut_anywhere(self):
        """Lines are read in any fragmentation."""
        entry = NodeEntry(1, "edge-1", parse_identifiers("host=edge-1"), False)
        for byte in encode_entry(entry) + encode_removal(1):
            self.far.write(bytes([byte]))
        self.assertEqual(([entry, 1], []), (self.listeners, self.failures))

    def test_malformed(self):
        """The first malformed line ends the reading, with a reason."""
        self.far.write(encode_removal(1) + b"nonsense\n" + encode_removal(2))
        self.assertEqual(([1], 1), (self.listeners, len(self.failures)))
        self.far.write(b"more\n")
        self.assertEqual(1, len(self.failures))

    def test_long_line(self):
        """A line above the limit is rejected before its end."""
        self.far.write(b"x" * MAX_LINE)
        self.assertEqual([], self.failures)
        self.far.write(b"x")
        self.assertIn(str(MAX_LINE), self.failures[0])

    def test_end_by_the_sibling(self):
        """An unexpected end is a failure."""
        self.far.loseConnection()
        self.assertEqual(["it has ended"], self.failures)

    def test_end(self):
        """An expected end is not."""
        self.reader.end()
        self.assertEqual([], self.failures)
        self.assertIsInstance(self.writer.ended_with[0], StreamFailed)

    def test_end_before_the_beginning(self):
        """A list that has not started is not read."""
        reader = FeedReader(self.listeners.append, self.failures.append)
        reader.end()
        self.assertEqual([], self.failures)
