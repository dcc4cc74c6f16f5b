"""Bits in the marks of connections that the kernel sends to endpoints (``ct mark``), and the table
that sets one.

These are not packet marks: routing and the masquerading of other programs do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.owned_table import INPUT, POSTROUTING, BaseChain, OwnedTable
from yurttunnel.steering.netlink.worker import Run

RETRIED = 0x2000
"""The connection may be retried at another endpoint if this one does not respond."""

SUPERVISED = 0x1000
"""The connection began while a process ran that acts on refusals."""

MASQUERADED = 0x4000
"""The client's address is replaced; the bit is the one that kube-proxy uses for packets
(``--iptables-masquerade-bit``)."""


def set_mark(bit: int) -> str:
    """Return the statement that sets a bit."""
    return f"ct mark set ct mark or {bit:#x}"


def has_mark(bit: int) -> str:
    """Return the match for a bit of a translated connection.

    The marks of other programs may contain the bit as well, such as wg-quick's 0xca6c.
    """
    return f"ct status dnat ct mark & {bit:#x} != 0"


TABLE = "yurtproxy-"
"""The prefix of the table's name."""

_PRIORITY = -199
"""The lowest priority that the kernel accepts for such a chain. It must precede chains that replace
the client's address, because later ones are skipped then."""

_DST_NAT = 1 << 5
"""``IPS_DST_NAT`` of linux/netfilter/nf_conntrack_common.h."""


def supervised_connections(run: Run, refused: Callable[[SteeringFailed], object]) -> OwnedTable:
    """Return the table that marks connections while it runs; see :class:`OwnedTable`.

    The kernel removes it with the process, even when that is killed. After that, refusals reach new
    clients, which would otherwise wait in vain. Its chains have the type nat, which only the first
    packet of a connection passes.
    """
    hooks = (("postrouting", POSTROUTING), ("input", INPUT))
    chains = [BaseChain(name, "nat", hook, _PRIORITY, (_mark_rule(),)) for name, hook in hooks]
    return OwnedTable(
        run, TABLE, chains, "cannot mark connections that begin while this process runs", refused
    )


def _mark_rule() -> bytes:
    """Return the rule, for translated connections only: others may use the same bits."""
    translated = nft.ct_has(nft.CT_STATUS, _DST_NAT) + nft.ct_has(nft.CT_MARK, RETRIED)
    return translated + nft.add_to_ct(nft.CT_MARK, SUPERVISED)
