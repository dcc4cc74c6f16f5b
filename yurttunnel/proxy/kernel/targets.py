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
    """A connection that was begun: from whom the endpoint sees it come.

    With the target that is what the kernel knows the connection by, in the direction of answers.
    """

    target: Target
    source: Address
    port: int
