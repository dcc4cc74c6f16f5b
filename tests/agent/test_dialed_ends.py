"""Which clients of the agent's own listeners come through the tunnel."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.dialed_ends import KEPT_SECONDS, DialedEnds

END = IPv4Address("TCP", "127.0.0.1", 40000)


class DialedEndsTests(SynchronousTestCase):
    """Ends that are opened and closed."""

    def setUp(self) -> None:
        """Begin with none."""
        self.clock = Clock()
        self.ends = DialedEnds(self.clock)

    def test_open(self) -> None:
        """An open end is known, by whatever a listener calls it, and no other one."""
        self.ends.opened(END)
        self.clock.advance(10 * KEPT_SECONDS)
        self.assertIn(END, self.ends)
        self.assertIn(IPv6Address("TCP", "::ffff:127.0.0.1", 40000), self.ends)
        self.assertNotIn(IPv4Address("TCP", "127.0.0.1", 40001), self.ends)
        self.assertNotIn(IPv6Address("TCP", "::1", 40000), self.ends)

    def test_closed(self) -> None:
        """A closed end is known until what it has sent must have been read."""
        self.ends.opened(END)
        self.ends.closed(END)
        self.clock.advance(KEPT_SECONDS - 1)
        self.assertIn(END, self.ends)
        self.clock.advance(1)
        self.assertNotIn(END, self.ends)

    def test_port_taken_again(self) -> None:
        """A port that the dialer has got again is known for as long as it has it."""
        for _ in range(2):
            self.ends.opened(END)
            self.ends.closed(END)
        self.ends.opened(END)
        self.clock.advance(KEPT_SECONDS)
        self.assertIn(END, self.ends)

    def test_other_sockets(self) -> None:
        """What is no TCP socket did not come through the tunnel."""
        address = UNIXAddress("/run/x")
        self.ends.opened(address)
        self.ends.closed(address)
        self.assertNotIn(address, self.ends)
