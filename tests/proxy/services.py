"""Virtual services for tests."""

from __future__ import annotations

from ipaddress import ip_address

from yurttunnel.proxy.state.virtual_services import (
    Endpoint,
    Key,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)


def key(name="web", protocol=Protocol.TCP, version=4, scope=Scope.ALL):
    """Make the key of a virtual service."""
    return Key(ServicePortName("shop", name, "http"), version, protocol, scope)


def endpoint(number, port=80):
    """Make the endpoint with the address ``10.0.0.number``."""
    return Endpoint(ip_address(f"10.0.{number // 256}.{number % 256}"), port)


def service(endpoints=(), **more):
    """Make a virtual service with endpoints, or with the numbers of endpoints."""
    found = sorted(endpoint(each) if isinstance(each, int) else each for each in endpoints)
    return VirtualService(more.pop("key", key()), more.pop("portals", ()), tuple(found), **more)
