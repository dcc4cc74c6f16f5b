"""Reading the named counters of an nftables table."""

from __future__ import annotations

import socket
import struct

from pyroute2.netlink import NETLINK_NETFILTER
from pyroute2.netlink.nfnetlink.nftsocket import NFT_MSG_GETOBJ

from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.expressions import number
from yurttunnel.steering.netlink.generation import NFNL_SUBSYS_NFTABLES
from yurttunnel.steering.netlink.messages import attribute, attributes, raw_request
from yurttunnel.steering.netlink.netlink_socket import DUMP, NetlinkSocket

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}

# From linux/netfilter/nf_tables.h: NFTA_OBJ_*, NFT_OBJECT_COUNTER and NFTA_COUNTER_PACKETS.
_TABLE, _NAME, _TYPE, _DATA = 1, 2, 3, 4
_COUNTER = 1
_PACKETS = 2

_GENERIC_HEADER = struct.Struct("!BBH")
"""``struct nfgenmsg``."""

_COUNT = struct.Struct("!Q")


def packet_counts(version: int, table: str) -> dict[str, int]:
    """Return the packet count of each counter of a table of one family, by name.

    It is empty if there is no such table. Raises :class:`SteeringFailed`.
    """
    request = raw_request(
        _GENERIC_HEADER.pack(_FAMILIES[version], 0, 0)
        + attribute(_TABLE, table.encode() + b"\0")
        + attribute(_TYPE, number(_COUNTER)),
        NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETOBJ,
        DUMP,
    )
    with (
        as_steering_failed(f"cannot read the counters of the table {table}", {}),
        NetlinkSocket(NETLINK_NETFILTER) as kernel,
    ):
        return dict(_counter(body) for body in kernel.dump(request))


def _counter(body: bytes) -> tuple[str, int]:
    found = dict(attributes(body, _GENERIC_HEADER.size))
    packets = dict(attributes(found[_DATA]))[_PACKETS]
    return found[_NAME].rstrip(b"\0").decode(), _COUNT.unpack(packets)[0]
