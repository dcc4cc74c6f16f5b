"""The address of this machine to which its own packets for Services are redirected."""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.ops.own_addresses import DOCUMENTATION_ADDRESSES, source_address
from yurttunnel.proxy.state.virtual_services import Address

HostAddress = Callable[[int], Address | None]
"""Returns this address for a version of IP; ``None`` if there is none."""


def no_address(version: int) -> None:
    """Return ``None``, for a proxy that uses loopback addresses only."""


def host_address(version: int) -> Address | None:
    """Return the source address of the default route's interface.

    Return ``None`` if there is no default route, or if its address is not reachable by others.
    """
    found = source_address(DOCUMENTATION_ADDRESSES[version])
    if found is None or found.is_loopback or found.is_link_local or found.is_unspecified:
        return None
    return found
