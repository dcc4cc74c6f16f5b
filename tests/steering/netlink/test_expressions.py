"""Rules of nftables, as the kernel tells the program ``nft`` what it has understood."""

from __future__ import annotations

import socket
import struct

from tests.steering.netlink.support import KernelTestCase, command, run_at_once
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.own_table import FORWARD, OwnChain, OwnTable


def bits(of: int) -> bytes:
    """Return a number as the kernel keeps those of connections."""
    return struct.pack("=I", of)


class ExpressionTests(KernelTestCase):
    """A chain with one rule of each kind."""

    def test_read_back(self):
        """What is loaded, which bits stay, what they are compared with, what follows; in order."""
        tcp = nft.meta(nft.META_L4PROTO) + nft.equals(bytes([socket.IPPROTO_TCP]))
        expected = {
            "ct state related": (
                nft.ct(nft.CT_STATE) + nft.masked(bits(1 << 2)) + nft.differs(bits(0))
            ),
            "ct status seen-reply": (
                nft.ct(nft.CT_STATUS) + nft.masked(bits(1 << 1)) + nft.differs(bits(0))
            ),
            "ct mark & 0x00000010 == 0x00000010": (
                nft.ct(nft.CT_MARK) + nft.masked(bits(16)) + nft.equals(bits(16))
            ),
            "ct direction reply drop": nft.ct(nft.CT_DIRECTION) + nft.equals(b"\1") + nft.drop(),
            "tcp sequence 7": tcp + nft.transport(4, 4) + nft.equals(struct.pack("!I", 7)),
            "tcp flags rst,ack / fin,syn,rst,ack": (
                tcp + nft.transport(13, 1) + nft.masked(b"\x17") + nft.equals(b"\x14")
            ),
        }
        chain = OwnChain("read-back", "filter", FORWARD, 0, tuple(expected.values()))
        table = OwnTable(run_at_once, "test-", [chain], "cannot", self.fail)
        table.startService()
        self.addCleanup(table.stopService)
        _, shown = command("nft", "list", "ruleset").split("policy accept;")
        lines = [line.strip() for line in shown.splitlines()]
        self.assertEqual([*expected], [line for line in lines if line not in ("", "}")])
