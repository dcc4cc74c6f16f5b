"""The open streams, and the used stream numbers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import LIMITS, REQUEST, limits
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.stream import Stream
from yurttunnel.wire.stream_table import Side, StreamTable


class StreamTableTests(SynchronousTestCase):
    """The table of either side, with a budget for four streams."""

    def setUp(self) -> None:
        """Create a table for each side."""
        self.budget = MemoryBudget(4 * LIMITS.stream_window)
        self.tables = {
            side: StreamTable(side, LIMITS, limits(stream_window=7, max_frame=5), self.budget)
            for side in Side
        }

    def begin(self, table: StreamTable) -> Stream:
        """Open a stream for which there is memory."""
        stream = table.begin(REQUEST, 0.0)
        assert stream is not None
        return stream

    def assert_unknown(self, table: StreamTable, number: int) -> None:
        """Check that ``number`` was never used."""
        violation = self.assertRaises(Violation, table.find, number)
        self.assertEqual(Code.PROTOCOL, violation.code)

    @conformance("C-043")
    def test_begin(self) -> None:
        """Each side starts with its own number and increments by two."""
        for side, table in self.tables.items():
            begun = [self.begin(table).number for _ in range(2)]
            self.assertEqual([side, side + 2], begun)
            self.assertEqual((2, 0), (table.opened_here, table.opened_by_peer))

    def test_limits(self) -> None:
        """The peer's limits apply to sending, this side's to receiving."""
        stream = self.begin(self.tables[Side.SERVER])
        self.assertEqual((7, 5), (stream.send_limit, stream.max_frame))
        self.assertEqual(LIMITS.stream_window, stream.window.size)

    @conformance("C-074")
    def test_find_by_parity(self) -> None:
        """Numbers of either side are known up to its last one; 0 never is."""
        for side, table in self.tables.items():
            peer = 3 - side
            for number in (0, 1, 2, 3, 4):
                self.assert_unknown(table, number)
            own = self.begin(table)
            table.take_number(peer + 4)
            other = table.admit(peer + 4, REQUEST, 0.0)
            self.assertIs(own, table.find(side))
            self.assertIs(other, table.find(peer + 4))
            # The peer has skipped these: they count as closed.
            self.assertIsNone(table.find(peer))
            self.assertIsNone(table.find(peer + 2))
            for number in (0, side + 2, side + 4, peer + 6, 0xFFFFFFFF, 0xFFFFFFFE):
                self.assert_unknown(table, number)
            table.remove(own)
            self.assertIsNone(table.find(side))

    @conformance("C-044", "C-045")
    def test_take_number(self) -> None:
        """The peer may only use its own numbers, in increasing order."""
        for side, table in self.tables.items():
            peer = 3 - side
            table.take_number(peer + 2)
            for number in (peer, peer + 2, side, side + 8, 0):
                self.assertRaises(Violation, table.take_number, number)
            table.take_number(peer + 4)
            self.assertEqual(peer + 4, table.last_peer_number)

    @conformance("C-088")
    def test_memory(self) -> None:
        """Without memory no stream is created and no number used; removing one releases it."""
        table = self.tables[Side.AGENT]
        streams = [self.begin(table) for _ in range(3)]
        table.admit(1, REQUEST, 0.0)
        self.assertIsNone(table.begin(REQUEST, 0.0))
        self.assertIsNone(table.admit(3, REQUEST, 0.0))
        self.assertEqual((8, 3, 1), (table.next_number, table.opened_here, table.opened_by_peer))
        for stream in [*streams, table.open[1]]:
            table.remove(stream)
            self.assertTrue(stream.closed)
        self.assertEqual((0, {}, {}), (self.budget.used, table.open, table.openings))
        self.assertEqual((0, 0), (table.opened_here, table.opened_by_peer))
        self.assertEqual(8, self.begin(table).number)
