"""Clients of the agent's own listeners that come through the tunnel."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.dialed_sockets import CLOSED_SECONDS, DialedSockets

SOCKET = IPv4Address("TCP", "127.0.0.1", 40000)
LISTENER = IPv4Address("TCP", "127.0.0.1", 10266)


class DialedSocketsTests(SynchronousTestCase):
    """Ends that are opened and closed."""

    def setUp(self) -> None:
        """Start without ends."""
        self.clock = Clock()
        self.sockets = DialedSockets(self.clock)

    def test_open(self) -> None:
        """An open end is known, in whatever form a listener has its address; others are not."""
        self.sockets.opened(SOCKET, LISTENER)
        self.clock.advance(10 * CLOSED_SECONDS)
        self.assertTrue(self.sockets.contains(SOCKET, LISTENER))
        mapped = IPv6Address("TCP", "::ffff:127.0.0.1", 40000)
        self.assertTrue(
            self.sockets.contains(mapped, IPv6Address("TCP", "::ffff:127.0.0.1", 10266))
        )
        self.assertFalse(self.sockets.contains(IPv4Address("TCP", "127.0.0.1", 40001), LISTENER))
        self.assertFalse(self.sockets.contains(IPv6Address("TCP", "::1", 40000), LISTENER))

    def test_one_port_for_two_uses(self) -> None:
        """An end connected elsewhere may have the same address and port as a local client."""
        self.sockets.opened(SOCKET, IPv4Address("TCP", "127.0.0.1", 10250))
        self.assertFalse(self.sockets.contains(SOCKET, LISTENER))

    def test_other_spellings_of_the_listener(self) -> None:
        """A connection dialed as 0.0.0.0 is known to the listener on loopback."""
        self.sockets.opened(SOCKET, IPv4Address("TCP", "0.0.0.0", 10266))
        self.assertTrue(self.sockets.contains(SOCKET, LISTENER))

    def test_closed(self) -> None:
        """A closed end is known until its data must have been read."""
        self.sockets.opened(SOCKET, LISTENER)
        self.sockets.closed(SOCKET, LISTENER)
        self.clock.advance(CLOSED_SECONDS - 1)
        self.assertTrue(self.sockets.contains(SOCKET, LISTENER))
        self.clock.advance(1)
        self.assertFalse(self.sockets.contains(SOCKET, LISTENER))

    def test_port_taken_again(self) -> None:
        """A port that the dialer uses again is known as long as it is open."""
        for _ in range(2):
            self.sockets.opened(SOCKET, LISTENER)
            self.sockets.closed(SOCKET, LISTENER)
        self.sockets.opened(SOCKET, LISTENER)
        self.clock.advance(CLOSED_SECONDS)
        self.assertTrue(self.sockets.contains(SOCKET, LISTENER))

    def test_one_port_for_two_open_ends(self) -> None:
        """The kernel may use one port for two addresses of a listener; each end is known."""
        for host in ("127.0.0.1", "127.0.0.2"):
            self.sockets.opened(SOCKET, IPv4Address("TCP", host, 10266))
        self.sockets.closed(SOCKET, LISTENER)
        self.clock.advance(10 * CLOSED_SECONDS)
        self.assertTrue(self.sockets.contains(SOCKET, LISTENER))
        self.sockets.closed(SOCKET, IPv4Address("TCP", "127.0.0.2", 10266))
        self.clock.advance(CLOSED_SECONDS)
        self.assertFalse(self.sockets.contains(SOCKET, LISTENER))

    def test_other_sockets(self) -> None:
        """A socket that is not TCP did not come through the tunnel."""
        address = UNIXAddress("/run/x")
        self.sockets.opened(address, address)
        self.sockets.closed(address, address)
        self.assertFalse(self.sockets.contains(address, address))
