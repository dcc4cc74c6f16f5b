"""The part of kernel mode's tables that all services share."""

from __future__ import annotations

from yurttunnel.proxy.kernel.detection_rules import DETECTION_RULES, PRIORITY, detection_chains
from yurttunnel.proxy.kernel.marks import MASQUERADED, has_mark
from yurttunnel.proxy.kernel.parts import HAIRPIN
from yurttunnel.proxy.rules.nftables.parts import Part
from yurttunnel.proxy.rules.nftables.table import FAMILIES, Chain, chain


def common(
    version: int,
    *,
    detects: bool = True,
    all_are_supervised: bool = False,
    drops_invalid: bool = True,
) -> Part:
    """Return it: masquerading, logging of packets if ``detects``, and dropping of invalid packets.

    For ``all_are_supervised`` see :mod:`yurttunnel.proxy.kernel.detection_rules`. Out-of-window
    packets are ``invalid``, unless conntrack is liberal, and are not translated back: a client that
    gets one sees the endpoint's address, and resets the connection. With ``drops_invalid`` they are
    not forwarded, as with kube-proxy (issue 74839 of Kubernetes), but for TCP only.
    """
    family = FAMILIES[version]
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    chains: dict[str, Chain] = {
        "nat-postrouting": chain(
            f"{has_mark(MASQUERADED)} masquerade fully-random",
            f"ct status dnat {family} saddr . {family} daddr @{HAIRPIN} masquerade fully-random",
            hook="type nat hook postrouting priority 100;",
        )
    }
    forward = list(DETECTION_RULES) if detects else []
    if drops_invalid:
        forward.append("meta l4proto tcp ct state invalid drop")
    if forward:
        chains["filter-forward"] = chain(
            *forward, hook=f"type filter hook forward priority {PRIORITY};"
        )
    maps = {HAIRPIN: f"set {{ type {address} . {address}; }}"}
    if not detects:
        return Part(chains, maps)
    detection = detection_chains(version, all_are_supervised)
    return Part({**chains, **detection.chains}, {**maps, **detection.maps})
