"""A mark for connections that begin while there is a process that acts on refusals.

It is set by a table that ends with the process, even when it is killed: who speaks to an endpoint
that refuses is then told so, and need not wait in vain. Its chains are of the type nat, which only
the first packet of a connection passes.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.proxy.kernel.marks import ATTENDED, RETRIED
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.own_table import INPUT, POSTROUTING, OwnChain, OwnTable
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurtproxy-"
"""What the table's name begins with."""

_PRIORITY = -199
"""The first that the kernel takes for such a chain: none comes behind one that has replaced the
client's address."""

_DST_NAT = 1 << 5
"""``IPS_DST_NAT`` of linux/netfilter/nf_conntrack_common.h."""


def attended_connections(run: Run, refused: Callable[[SteeringFailed], object]) -> OwnTable:
    """Return what marks them while it runs; see :class:`OwnTable`."""
    hooks = (("postrouting", POSTROUTING), ("input", INPUT))
    chains = [OwnChain(name, "nat", hook, _PRIORITY, (_attend(),)) for name, hook in hooks]
    return OwnTable(run, TABLE, chains, "cannot keep refusals from clients", refused)


def _attend() -> bytes:
    """Return the rule: others' marks are not known, so it is for what is led elsewhere alone."""
    led = nft.ct_has(nft.CT_STATUS, _DST_NAT) + nft.ct_has(nft.CT_MARK, RETRIED)
    return led + nft.add_to_ct(nft.CT_MARK, ATTENDED)
