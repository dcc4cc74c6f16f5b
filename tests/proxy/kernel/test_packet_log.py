"""The kernel's log of packets, as it comes."""

from __future__ import annotations

import os
import socket

from twisted.internet.testing import MemoryReactor

from tests.steering.netlink.support import KernelTestCase, command
from yurttunnel.proxy.kernel.packet_log import PacketLog

GROUP, COPIED = 31099, 64
OWN = "10.20.0.9"
PORT, CALLED = 4000, 4001
MANY = 500


def rule(port, prefix=""):
    """Return the command for a rule that logs what is sent to a port."""
    return (
        f"add rule ip logs output udp dport {port} log {prefix} group {GROUP} snaplen {COPIED}"
        " queue-threshold 1"
    )


class PacketLogTests(KernelTestCase):
    """A machine that logs what is sent to a port."""

    addresses = (OWN,)

    def setUp(self):
        """Make the rule, and begin to read."""
        super().setUp()
        command(
            "nft",
            "add table ip logs; add chain ip logs output { type filter hook output"
            f" priority 0; }}; {rule(PORT)}; {rule(CALLED, 'prefix called')}",
        )
        self.told = []
        self.reactor = MemoryReactor()
        self.log = PacketLog(self.reactor, GROUP, COPIED, lambda *packet: self.told.append(packet))
        self.log.start()
        self.addCleanup(self.log.stop)
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.client.close)

    def send(self, text, count=1, port=PORT):
        """Send datagrams."""
        for _ in range(count):
            self.client.sendto(text, (OWN, port))

    def read(self):
        """Read until nothing more has come; return how much that was."""
        before = -1
        while before < len(self.told):
            before = len(self.told)
            self.log.doRead()
        found, self.told[:] = list(self.told), []
        return found

    def test_packets(self):
        """Each is told from the header of IP on, as far as was asked for."""
        self.send(b"x" * 100)
        ((prefix, payload),) = self.read()
        self.assertEqual((b"", COPIED), (prefix, len(payload)))
        self.assertEqual((0x45, socket.inet_aton(OWN)), (payload[0], payload[16:20]))
        self.assertEqual([], self.read())

    def test_a_prefix(self):
        """It is told with what its rule calls it."""
        self.send(b"x", port=CALLED)
        ((prefix, payload),) = self.read()
        self.assertEqual((b"called", 0x45), (prefix, payload[0]))

    def test_more_than_the_kernel_keeps(self):
        """What comes too fast is lost in part (ENOBUFS), and later packets are told as before."""
        buffer = socket.socket(fileno=os.dup(self.log.fileno()))
        buffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        buffer.close()
        self.send(b"many", MANY)
        self.assertLess(len(self.read()), MANY)
        self.send(b"later")
        self.assertEqual(1, len(self.read()))

    def test_the_end(self):
        """Nobody waits for it any more, and nothing is read."""
        self.log.stop()
        self.send(b"late")
        self.assertEqual([], self.read())
        self.assertEqual([], self.reactor.getReaders())
