"""From where a load balancer's address may be used (``loadBalancerSourceRanges``)."""

from __future__ import annotations

from ipaddress import collapse_addresses, ip_network

from yurttunnel.proxy.state.virtual_services import Address, Network, Portal


def allowed_sources(portal: Portal, host: Address | None) -> tuple[Network, ...] | None:
    """Return the networks, of which none is within another; ``None`` where there is no limit.

    Where ``host``, the address of this machine, is in one, so is that of the portal: if that is
    this machine's own, too, its packets to it come from there.
    """
    if portal.sources is None or portal.address is None:
        return None
    found = [each for each in portal.sources if each.version == portal.address.version]
    if host is not None and any(host in each for each in found):
        found.append(ip_network(portal.address))
    # They are all of one version, which their type does not say.
    return tuple(collapse_addresses(found))  # type: ignore[type-var]
