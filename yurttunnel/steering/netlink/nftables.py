"""Reading nftables from the kernel: the generation of its rules, and named counters."""

from __future__ import annotations

import struct

from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.messages import (
    FAMILIES,
    attribute,
    attributes,
    netfilter_attributes,
    netfilter_request,
    number,
    text,
)
from yurttunnel.steering.netlink.netlink_socket import (
    DUMP,
    GET,
    NETLINK_NETFILTER,
    NetlinkError,
    NetlinkSocket,
)

NFNL_SUBSYS_NFTABLES = 10
_NFT_MSG_GETGEN, _NFT_MSG_GETOBJ = 16, 19
_NFTA_GEN_ID = 1
"""From ``linux/netfilter/nfnetlink.h`` and ``nf_tables.h``."""

# From linux/netfilter/nf_tables.h: NFTA_OBJ_*, NFT_OBJECT_COUNTER and NFTA_COUNTER_PACKETS.
_TABLE, _NAME, _TYPE, _DATA = 1, 2, 3, 4
_COUNTER = 1
_PACKETS = 2

_GENERATION = struct.Struct("!I")
_COUNT = struct.Struct("!Q")


def nft_generation() -> int | None:
    """Return the generation of all nftables rules in this network namespace.

    It changes with each transaction of any program. The kernel answers from memory, so that this
    may be called in the reactor's thread. Return ``None`` if it is not available.
    """
    request = netfilter_request(NFNL_SUBSYS_NFTABLES, _NFT_MSG_GETGEN, GET)
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as kernel:
            answer = kernel.get(request)
    except (OSError, NetlinkError):
        return None
    count = netfilter_attributes(answer).get(_NFTA_GEN_ID, b"")
    return int(_GENERATION.unpack(count)[0]) if len(count) == _GENERATION.size else None


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
