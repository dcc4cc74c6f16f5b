"""Reading the named counters of an nftables table."""

from __future__ import annotations

import struct

from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.generation import NFNL_SUBSYS_NFTABLES
from yurttunnel.steering.netlink.messages import (
    FAMILIES,
    attribute,
    attributes,
    netfilter_attributes,
    netfilter_request,
    number,
    text,
)
from yurttunnel.steering.netlink.netlink_socket import DUMP, NETLINK_NETFILTER, NetlinkSocket

# From linux/netfilter/nf_tables.h: NFTA_OBJ_*, NFT_OBJECT_COUNTER and NFTA_COUNTER_PACKETS.
_NFT_MSG_GETOBJ = 19
_TABLE, _NAME, _TYPE, _DATA = 1, 2, 3, 4
_COUNTER = 1
_PACKETS = 2

_COUNT = struct.Struct("!Q")


def packet_counts(version: int, table: str) -> dict[str, int]:
    """Return the packet count of each counter of a table of one family, by name.

    It is empty if there is no such table. Raises :class:`SteeringFailed`.
    """
    content = attribute(_TABLE, text(table)) + attribute(_TYPE, number(_COUNTER))
    request = netfilter_request(
        NFNL_SUBSYS_NFTABLES, _NFT_MSG_GETOBJ, DUMP, content, FAMILIES[version]
    )
    with (
        as_steering_failed(f"cannot read the counters of the table {table}", {}),
        NetlinkSocket(NETLINK_NETFILTER) as kernel,
    ):
        return dict(_counter(body) for body in kernel.dump(request))


def _counter(body: bytes) -> tuple[str, int]:
    found = netfilter_attributes(body)
    packets = dict(attributes(found[_DATA]))[_PACKETS]
    return found[_NAME].rstrip(b"\0").decode(), _COUNT.unpack(packets)[0]
