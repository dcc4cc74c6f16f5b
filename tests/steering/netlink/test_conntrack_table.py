"""Tests of filtering the connections that the kernel tracks."""

from __future__ import annotations

import socket

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.steering.netlink.conntrack_table import ConntrackTable
from yurttunnel.steering.netlink.netlink_socket import NETLINK_NETFILTER, NetlinkSocket

OWN = "10.20.0.9"
BOTH, ONE = 0x30, 0x10
MARKS = {7001: BOTH, 7002: BOTH | 1, 7003: BOTH, 7004: ONE}
"""The marks of connections by their port."""

ANSWERS = 7003
"""The port that answers."""

SECONDS = 30.0
"""How long a packet may take on a loaded machine, in seconds."""


class UnansweredTests(KernelTestCase):
    """UDP connections to this machine, each with its mark."""

    addresses = (OWN,)

    def test_marked_and_unanswered(self):
        """Those are returned whose mark has all the bits, and that are not answered."""
        marks = ", ".join(f"{port} : {mark}" for port, mark in MARKS.items())
        rule = f"ct mark set udp dport map {{ {marks} }};"
        chain = f"chain out {{ type filter hook output priority 0; {rule} }};"
        run("nft", f"table ip marks {{ {chain} }};")
        server, client = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        for each in (server, client):
            self.addCleanup(each.close)
            each.settimeout(SECONDS)
        server.bind((OWN, ANSWERS))
        for port in MARKS:
            client.sendto(b"?", (OWN, port))
        server.sendto(*server.recvfrom(10))
        client.recv(10)
        with NetlinkSocket(NETLINK_NETFILTER) as kernel:
            found = {each.port for each in ConntrackTable(kernel).unanswered(4, BOTH)}
        self.assertEqual({7001, 7002}, found)
