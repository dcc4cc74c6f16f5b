"""Detecting changes of the kernel's rules: nftables counts them."""

from __future__ import annotations

import struct

from yurttunnel.steering.netlink.messages import netfilter_attributes, netfilter_request
from yurttunnel.steering.netlink.netlink_socket import (
    GET,
    NETLINK_NETFILTER,
    NetlinkError,
    NetlinkSocket,
)

NFNL_SUBSYS_NFTABLES = 10
_NFT_MSG_GETGEN = 16
_NFTA_GEN_ID = 1
"""From ``linux/netfilter/nfnetlink.h`` and ``nf_tables.h``."""

_COUNT = struct.Struct("!I")


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
    return int(_COUNT.unpack(count)[0]) if len(count) == _COUNT.size else None
