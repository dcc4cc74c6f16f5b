"""What kernel mode has in its tables for all services."""

from __future__ import annotations

from collections.abc import Iterator

from yurttunnel.proxy.kernel.marks import MASQUERADED, has_mark
from yurttunnel.proxy.kernel.parts import HAIRPIN
from yurttunnel.proxy.kernel.watching import REFUSED, watching_chains
from yurttunnel.proxy.rules.nftables.parts import Part, Way
from yurttunnel.proxy.rules.nftables.table import FAMILIES, chain
from yurttunnel.proxy.rules.nftables.tables import Common

_ESTABLISHED = "ct state established,related accept"
"""Before the rest, as nearly all packets are of connections that stand."""

_INVALID = "ct state invalid meta l4proto tcp fib daddr type unicast drop"
"""What this machine would forward, for its own addresses are no unicast to it."""


def common(
    version: int, *, watches: bool = True, drops: bool = False, drops_invalid: bool = True
) -> Common:
    """Return it: masquerading, what is told of packets if it ``watches``, and what ends here.

    Refusals are dropped where ``drops`` is set (:mod:`yurttunnel.proxy.kernel.watching`). Packets
    out of window are ``invalid`` where conntrack is not liberal, and not translated back: a client
    that gets one sees the endpoint's address, and resets the connection. With ``drops_invalid``
    they are not forwarded, as by kube-proxy (issue 74839 of Kubernetes), but for other protocols
    than TCP.
    """
    family = FAMILIES[version]
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    chains = {
        "nat-postrouting": chain(
            f"{has_mark(MASQUERADED)} masquerade fully-random",
            f"ct status dnat {family} saddr . {family} daddr @{HAIRPIN} masquerade fully-random",
            hook="type nat hook postrouting priority 100;",
        )
    }
    maps = {HAIRPIN: f"set {{ type {address} . {address}; }}"}
    if watches:
        watching = watching_chains(version, drops)
        chains |= watching.chains
        maps |= watching.maps
    first = {way: tuple(_first(way, watches, drops_invalid)) for way in Way}
    return Common(Part(chains, maps), first)


def _first(way: Way, watches: bool, drops_invalid: bool) -> Iterator[str]:
    if watches:
        # Before addresses are translated back: the endpoint's is what counts.
        yield f"ct direction reply jump {REFUSED}"
    if drops_invalid and way is Way.ARRIVING:
        yield _ESTABLISHED
        yield _INVALID
