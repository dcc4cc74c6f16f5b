"""The networks from which a load balancer's address may be used (``loadBalancerSourceRanges``)."""

from __future__ import annotations

from ipaddress import collapse_addresses, ip_network

from yurttunnel.proxy.state.virtual_services import Address, Network, Portal


def allowed_sources(portal: Portal, host: Address | None) -> tuple[Network, ...] | None:
    """Return the networks, without those within another; ``None`` if there is no limit.

    If ``host``, the address of this machine, is in one of them, the portal's address is added: if
    that belongs to this machine, too, the source of its packets is the same address.
    """
    if portal.sources is None or portal.address is None:
        return None
    found = [each for each in portal.sources if each.version == portal.address.version]
    if host is not None and any(host in each for each in found):
        found.append(ip_network(portal.address))
    # All are of one version, which their type does not express.
    return tuple(collapse_addresses(found))  # type: ignore[type-var]
