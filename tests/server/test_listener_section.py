"""The listeners and their traffic on the status page."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import NOW, ParsedPage
from tests.tunnel.memory import SessionPair
from yurttunnel.ops.slices import at_once
from yurttunnel.ops.status.sections import PageContext, live
from yurttunnel.server.listener_section import ListenerInfo, ListenerSection, format_address
from yurttunnel.tunnel.shares import Holder, Kind
from yurttunnel.tunnel.statistics import TunnelCounters

FORWARD = "--forward 9000=edge-1/127.0.0.1:80"


class EntryTests(SynchronousTestCase):
    """A forward, and the port for agents."""

    def setUp(self) -> None:
        """Start without streams."""
        self.pair = SessionPair()
        self.counters = TunnelCounters()
        self.listed = [
            ListenerInfo(FORWARD, "127.0.0.1:9000", "edge-1/127.0.0.1:80", Kind.FORWARD),
            ListenerInfo("--tunnel-agent-connect-port", "0.0.0.0:10262", "this server, for agents"),
        ]

    def rows(self, desired: str = "") -> list[list[str]]:
        """Return the rows of the table."""
        listener_section = ListenerSection(
            self.counters, lambda: [self.pair.server], lambda: self.listed
        )
        section = at_once(listener_section.section(PageContext(NOW, desired)))
        return ParsedPage("".join(live("entries", section.content)).encode()).rows["entries"]

    def test_entries(self) -> None:
        """Each entry has its address and its target, and those with streams have their number."""
        forward, agents = self.rows()
        self.assertEqual(["--forward", "127.0.0.1:9000", "edge-1/127.0.0.1:80"], forward[:3])
        self.assertEqual(["0", "0", "0 B", "0 B"], forward[3:])
        self.assertEqual(["", "", "", ""], agents[3:])
        self.assertEqual([agents], self.rows("agent-connect"))

    def test_traffic(self) -> None:
        """Ended and open streams count, by their entry."""
        holder = Holder.of(Kind.FORWARD, FORWARD, "192.0.2.1")
        self.counters.count_stream(holder, 1024, 7)
        self.counters.count_stream(Holder.of(Kind.FORWARD, "another", "192.0.2.1"), 10**9, 10**9)
        opening = self.pair.server.open_stream("192.0.2.80", 80, 15.0, "r", holder)
        self.pair.pump()
        self.assertEqual(["1", "2", "1.0 KiB", "7 B"], self.rows()[0][3:])
        opening.addErrback(lambda _: None)

    def test_addresses(self) -> None:
        """Addresses are in readable form."""
        for address, text in (
            (IPv4Address("TCP", "127.0.0.1", 80), "127.0.0.1:80"),
            (IPv6Address("TCP", "::1", 80), "[::1]:80"),
            (UNIXAddress("/run/x"), "unix:/run/x"),
        ):
            self.assertEqual(text, format_address(address))
