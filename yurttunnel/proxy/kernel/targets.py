"""What is watched: an endpoint, by one protocol."""

from __future__ import annotations

from typing import NamedTuple

from yurttunnel.proxy.state.virtual_services import Address, Endpoint, Protocol


class Target(NamedTuple):
    """An endpoint of any number of services."""

    protocol: Protocol
    endpoint: Endpoint

    def __str__(self) -> str:
        return f"{self.endpoint} ({self.protocol.value})"


class Attempt(NamedTuple):
    """A connection that was begun, as its client sends it.

    That is not as the endpoint sees it where the client's address is replaced.
    """

    target: Target
    source: Address
    port: int
