"""Tests of reading the kernel's packet log."""

from __future__ import annotations

import os
import socket

from twisted.internet.testing import MemoryReactor

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy.kernel.packet_log import PacketLog

LOG_GROUP, SNAPLEN = 31099, 64
OWN = "10.20.0.9"
PORT, CALLED = 4000, 4001
MANY = 500


def rule(port, prefix=""):
    """Return the command for a rule that logs packets to a port."""
    return (
        f"add rule ip logs output udp dport {port} log {prefix} group {LOG_GROUP} snaplen {SNAPLEN}"
        " queue-threshold 1"
    )


class PacketLogTests(KernelTestCase):
    """A machine that logs packets to a port."""

    addresses = (OWN,)

    def setUp(self):
        """Create the rule, and start reading."""
        super().setUp()
        run(
            "nft",
            "add table ip logs; add chain ip logs output { type filter hook output"
            f" priority 0; }}; {rule(PORT)}; {rule(CALLED, 'prefix called')}",
        )
        self.on_packet = []
        self.reactor = MemoryReactor()
        self.log = PacketLog(
            self.reactor,
            LOG_GROUP,
            SNAPLEN,
            lambda *packet: self.on_packet.append(packet),
            lambda reason: self.fail(reason.getErrorMessage()),
        )
        self.log.start()
        self.addCleanup(self.log.stop)
        self.client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(self.client.close)

    def send(self, text, count=1, port=PORT):
        """Send datagrams."""
        for _ in range(count):
            self.client.sendto(text, (OWN, port))

    def read(self):
        """Read until nothing more arrives; return the number of packets."""
        before = -1
        while before < len(self.on_packet):
            before = len(self.on_packet)
            self.log.doRead()
        found, self.on_packet[:] = list(self.on_packet), []
        return found

    def test_packets(self):
        """Each packet is passed on from the IP header, up to the requested length."""
        self.send(b"x" * 100)
        ((prefix, payload),) = self.read()
        self.assertEqual((b"", SNAPLEN), (prefix, len(payload)))
        self.assertEqual((0x45, socket.inet_aton(OWN)), (payload[0], payload[16:20]))
        self.assertEqual([], self.read())

    def test_a_prefix(self):
        """A packet is passed on with the prefix of its rule."""
        self.send(b"x", port=CALLED)
        ((prefix, payload),) = self.read()
        self.assertEqual((b"called", 0x45), (prefix, payload[0]))

    def test_more_than_the_kernel_keeps(self):
        """On overflow some packets are lost (ENOBUFS), and later ones are passed on as before."""
        buffer = socket.socket(fileno=os.dup(self.log.fileno()))
        buffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        buffer.close()
        self.send(b"many", MANY)
        self.assertLess(len(self.read()), MANY)
        self.send(b"later")
        self.assertEqual(1, len(self.read()))

    def test_the_end(self):
        """After the stop the reactor does not wait for packets, and none is read."""
        self.log.stop()
        self.send(b"late")
        self.assertEqual([], self.read())
        self.assertEqual([], self.reactor.getReaders())
