"""A mark for connections that begin while a process runs that acts on refusals.

The mark is set by a table that the kernel removes with the process, even when it is killed. After
that, refusals reach new clients, which would otherwise wait in vain. Its chains have the type nat,
which only the first packet of a connection passes.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.proxy.kernel.marks import RETRIED, SUPERVISED
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.owned_table import INPUT, POSTROUTING, BaseChain, OwnedTable
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurtproxy-"
"""The prefix of the table's name."""

_PRIORITY = -199
"""The lowest priority that the kernel accepts for such a chain. It must precede chains that replace
the client's address, because later ones are skipped then."""

_DST_NAT = 1 << 5
"""``IPS_DST_NAT`` of linux/netfilter/nf_conntrack_common.h."""


def supervised_connections(run: Run, refused: Callable[[SteeringFailed], object]) -> OwnedTable:
    """Return the table that marks connections while it runs; see :class:`OwnedTable`."""
    hooks = (("postrouting", POSTROUTING), ("input", INPUT))
    chains = [BaseChain(name, "nat", hook, _PRIORITY, (_mark_rule(),)) for name, hook in hooks]
    return OwnedTable(
        run, TABLE, chains, "cannot mark connections that begin while this process runs", refused
    )


def _mark_rule() -> bytes:
    """Return the rule, for translated connections only: others may use the same bits."""
    translated = nft.ct_has(nft.CT_STATUS, _DST_NAT) + nft.ct_has(nft.CT_MARK, RETRIED)
    return translated + nft.add_to_ct(nft.CT_MARK, SUPERVISED)
