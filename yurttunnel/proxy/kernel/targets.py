"""What is watched: endpoints with a protocol, and attempts to connect to them."""

from __future__ import annotations

from typing import NamedTuple

from yurttunnel.proxy.state.virtual_services import Address, Endpoint, Protocol


class Target(NamedTuple):
    """An endpoint, which any number of services may have."""

    protocol: Protocol
    endpoint: Endpoint

    def __str__(self) -> str:
        return f"{self.endpoint} ({self.protocol.value})"


class Attempt(NamedTuple):
    """A connection attempt, as its client sends it.

    The endpoint sees another source if the client's address is replaced.
    """

    target: Target
    source: Address
    port: int
