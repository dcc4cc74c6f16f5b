"""Clients of the agent's own listeners that come through the tunnel."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.dialed_ends import KEPT_SECONDS, DialedEnds

END = IPv4Address("TCP", "127.0.0.1", 40000)
LISTENER = IPv4Address("TCP", "127.0.0.1", 10266)


class DialedEndsTests(SynchronousTestCase):
    """Ends that are opened and closed."""

    def setUp(self) -> None:
        """Start without ends."""
        self.clock = Clock()
        self.ends = DialedEnds(self.clock)

    def test_open(self) -> None:
        """An open end is known, in whatever form a listener has its address; others are not."""
        self.ends.opened(END, LISTENER)
        self.clock.advance(10 * KEPT_SECONDS)
        self.assertTrue(self.ends.has(END, LISTENER))
        mapped = IPv6Address("TCP", "::ffff:127.0.0.1", 40000)
        self.assertTrue(self.ends.has(mapped, IPv6Address("TCP", "::ffff:127.0.0.1", 10266)))
        self.assertFalse(self.ends.has(IPv4Address("TCP", "127.0.0.1", 40001), LISTENER))
        self.assertFalse(self.ends.has(IPv6Address("TCP", "::1", 40000), LISTENER))

    def test_one_port_for_two_places(self) -> None:
        """An end connected elsewhere may have the same address and port as a local client."""
        self.ends.opened(END, IPv4Address("TCP", "127.0.0.1", 10250))
        self.assertFalse(self.ends.has(END, LISTENER))

    def test_other_spellings_of_the_listener(self) -> None:
        """A connection dialed as 0.0.0.0 is known to the listener on loopback."""
        self.ends.opened(END, IPv4Address("TCP", "0.0.0.0", 10266))
        self.assertTrue(self.ends.has(END, LISTENER))

    def test_closed(self) -> None:
        """A closed end is known until its data must have been read."""
        self.ends.opened(END, LISTENER)
        self.ends.closed(END, LISTENER)
        self.clock.advance(KEPT_SECONDS - 1)
        self.assertTrue(self.ends.has(END, LISTENER))
        self.clock.advance(1)
        self.assertFalse(self.ends.has(END, LISTENER))

    def test_port_taken_again(self) -> None:
        """A port that the dialer uses again is known as long as it is open."""
        for _ in range(2):
            self.ends.opened(END, LISTENER)
            self.ends.closed(END, LISTENER)
        self.ends.opened(END, LISTENER)
        self.clock.advance(KEPT_SECONDS)
        self.assertTrue(self.ends.has(END, LISTENER))

    def test_one_port_for_two_open_ends(self) -> None:
        """The kernel may use one port for two addresses of a listener; each end is known."""
        for host in ("127.0.0.1", "127.0.0.2"):
            self.ends.opened(END, IPv4Address("TCP", host, 10266))
        self.ends.closed(END, LISTENER)
        self.clock.advance(10 * KEPT_SECONDS)
        self.assertTrue(self.ends.has(END, LISTENER))
        self.ends.closed(END, IPv4Address("TCP", "127.0.0.2", 10266))
        self.clock.advance(KEPT_SECONDS)
        self.assertFalse(self.ends.has(END, LISTENER))

    def test_other_sockets(self) -> None:
        """A socket that is not TCP did not come through the tunnel."""
        address = UNIXAddress("/run/x")
        self.ends.opened(address, address)
        self.ends.closed(address, address)
        self.assertFalse(self.ends.has(address, address))
