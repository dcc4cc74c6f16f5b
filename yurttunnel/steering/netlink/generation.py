"""Detecting changes of the kernel's rules: nftables counts them."""

from __future__ import annotations

import struct

from pyroute2.netlink import NETLINK_NETFILTER
from pyroute2.netlink.nfnetlink.nftsocket import NFT_MSG_GETGEN

from yurttunnel.steering.netlink.messages import attributes, raw_request
from yurttunnel.steering.netlink.netlink_socket import GET, NetlinkError, NetlinkSocket

NFNL_SUBSYS_NFTABLES = 10
_NFTA_GEN_ID = 1
"""From ``linux/netfilter/nfnetlink.h`` and ``nf_tables.h``."""

_ANY_FAMILY = bytes(4)
"""``struct nfgenmsg``: the generation is that of all families."""

_COUNT = struct.Struct("!I")


def nft_generation() -> int | None:
    """Return the generation of all nftables rules in this network namespace.

    It changes with each transaction of any program. The kernel answers from memory, so that this
    may be called in the reactor's thread. Return ``None`` if it is not available.
    """
    request = raw_request(_ANY_FAMILY, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, GET)
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as kernel:
            answer = kernel.get(request)
    except (OSError, NetlinkError):
        return None
    found = dict(attributes(answer, len(_ANY_FAMILY)))
    count = found.get(_NFTA_GEN_ID, b"")
    return int(_COUNT.unpack(count)[0]) if len(count) == _COUNT.size else None
