"""The addresses to which the firewall redirects connections, for both IP versions.

A machine's own connections can be redirected to any of its addresses, including loopback. So if the
server listens on an address of one family only, it also listens on the loopback address of the
other, and connections to nodes by either family arrive.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address

from yurttunnel.server.options import ClusterSettings, Settings
from yurttunnel.server.steering_options import SteeringFlags
from yurttunnel.steering.desired_state import Listeners
from yurttunnel.steering.interception import Target

_LOOPBACK = {4: "127.0.0.1", 6: "::1"}
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def redirect_targets(settings: Settings, steering: SteeringFlags) -> Mapping[int, Listeners]:
    """Return the targets of redirected connections, by IP version."""
    passthrough = steering.passthrough_port
    bind, insecure = settings.bind_address, settings.insecure_address
    return {
        version: Listeners(
            secure=_target(bind, settings.secure_port, version),
            insecure=_target(insecure, settings.insecure_port, version),
            passthrough=None if passthrough is None else _target(bind, passthrough, version),
        )
        for version in _LOOPBACK
    }


def redirect_ports(settings: Settings, steering: SteeringFlags) -> frozenset[int]:
    """Return the ports to which connections are redirected."""
    every = (settings.secure_port, settings.insecure_port, steering.passthrough_port)
    return frozenset(port for port in every if port is not None)


def other_family_addresses(settings: Settings, address: str) -> list[str]:
    """Return the loopback address of the other family than ``address``, if it is needed.

    It is not if nothing is redirected to the server, or if this machine lacks that family.
    """
    if not (isinstance(settings.mode, ClusterSettings) and settings.mode.steering.iptables):
        return []
    return [
        loopback
        for version, loopback in _LOOPBACK.items()
        if not _covers(address, version) and _has_family(version)
    ]


def _target(address: str, port: int, version: int) -> Target:
    if not _covers(address, version):
        return Target(ip_address(_LOOPBACK[version]), port)
    bound = ip_address(address)
    return Target(None if bound.is_unspecified else bound, port)


def _covers(address: str, version: int) -> bool:
    """Return whether a listener on ``address`` accepts connections of an IP version.

    One on ``::`` accepts both, as Linux does by default (net.ipv6.bindv6only, ipv6(7)).
    """
    bound = ip_address(address)
    return bound.version == version or (bound.version == 6 and bound.is_unspecified)


def _has_family(version: int) -> bool:
    try:
        with socket.socket(_FAMILIES[version]) as probe:
            probe.bind((_LOOPBACK[version], 0))
    except OSError:
        return False
    return True
