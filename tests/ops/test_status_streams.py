"""Streams of real sessions on the status page."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.protocol import Protocol
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import PageUnderTest
from tests.tunnel.memory import SessionPair
from yurttunnel.ops.slices import at_once
from yurttunnel.ops.status.peers import MAX_STREAMS
from yurttunnel.ops.status.streams import StreamReport, oldest_streams
from yurttunnel.tunnel.session import TunnelSession


class StreamTests(SynchronousTestCase):
    """A session between a server and an agent, in memory."""

    def setUp(self) -> None:
        """Make a pair of sessions without streams."""
        self.pair = SessionPair()

    def used(
        self,
        session: TunnelSession,
        maximum: int,
        desired: Callable[[StreamReport], bool] = lambda report: True,
    ) -> list[StreamReport]:
        """Return the oldest streams in use."""
        used, _ = at_once(oldest_streams([session], maximum, desired))
        return used.shown

    def test_a_stream(self) -> None:
        """A stream has its request, node, destination, state, age and bytes in each direction."""
        near, _ = self.pair.joined(Protocol(), Protocol())
        near.write(b"x" * 5)
        self.pair.pump()
        self.pair.clock.advance(3)
        [report] = self.used(self.pair.server, 10)
        self.assertEqual(
            ("request", "edge-1", "192.0.2.80:80", "open", 3.0, 0, 5),
            (
                report.request_id,
                report.peer,
                report.destination,
                report.state,
                report.age,
                report.bytes_received,
                report.bytes_sent,
            ),
        )
        self.assertEqual(("other", False), (report.kind, report.idle))
        [report] = self.used(self.pair.agent, 10)
        self.assertEqual(("server", 5, 0), (report.peer, report.bytes_received, report.bytes_sent))

    def test_streams_that_are_shared(self) -> None:
        """A pooled stream has its current caller; idle streams have a table of their own."""
        busy, _ = self.pair.joined(Protocol(), Protocol())
        idle, _ = self.pair.joined(Protocol(), Protocol())
        pooled = [(busy, "10.0.0.1"), (idle, "")]
        status = PageUnderTest(pooled_streams=lambda: pooled)
        status.sessions = [self.pair.server]
        page = status.render()
        [used], [unused] = page.rows["streams"], page.rows["idle"]
        self.assertEqual(["10.0.0.1 other", "other"], [used[3], unused[3]])
        self.assertIn("Streams 1Streams", page.sections["streams"])
        pooled[1] = (idle, "10.0.0.2")
        page = status.render()
        self.assertEqual(2, len(page.rows["streams"]))
        self.assertNotIn("idle", page.sections)

    def test_caller_is_known_at_the_opening_end(self) -> None:
        """Only the end that opens a stream knows the caller; the other has no such column."""
        self.pair.joined(Protocol(), Protocol())
        status = PageUnderTest()
        status.sessions = [self.pair.agent]
        [row] = status.render().rows["streams"]
        self.assertEqual(["request", "server", "192.0.2.80:80", "open"], row[:4])

    def test_the_oldest_come_first(self) -> None:
        """A limited number of the oldest matching streams is shown."""
        for number in range(6):
            _ = self.pair.dial(request_id=f"r{number}").addErrback(lambda _: None)
            self.pair.pump()
            self.pair.clock.advance(1)
        found = self.used(self.pair.server, 3, lambda report: report.request_id != "r1")
        self.assertEqual(["r0", "r2", "r3"], [report.request_id for report in found])
        self.assertEqual("opening", found[0].state)

    def test_on_the_page(self) -> None:
        """The page shows a limited number of streams, and the filter searches them all."""
        status = PageUnderTest()
        status.sessions = [self.pair.server]
        for number in range(MAX_STREAMS + 5):
            _ = self.pair.dial(request_id=f"<r{number}>").addErrback(lambda _: None)
        self.pair.pump()
        status.snapshots = [self.pair.server.snapshot()]
        page = status.render()
        self.assertEqual(MAX_STREAMS, len(page.rows["streams"]))
        self.assertIn(f"{MAX_STREAMS} of {MAX_STREAMS + 5}", page.sections["streams"])
        [row] = status.render("<R7>").rows["streams"]
        self.assertEqual(
            ["<r7>", "edge-1", "192.0.2.80:80", "other", "opening", "0 s", "0 B", "0 B"], row
        )
