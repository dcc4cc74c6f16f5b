"""How the kernel stores the endpoints of clients: one nftables set for each service.

Its elements are a client and the number of an endpoint; a rule produces this number with a
``numgen`` that has only one value. (A set for each endpoint would not need numbers; but Linux
searches all sets of a table to find one by its name, so that 8,000 of them took 7 s, and 20,000
more than the timeout of nft. With one set for ten endpoints these are 1.1 s and 5.7 s.)

The elements of a removed endpoint stay in the set until they expire. They must not apply when the
endpoint is added again, because its clients have other endpoints by then: so it gets another
number. After a restart of this process it has its first number again, which may lead some clients
back to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.proxy.rules.nftables.table import FAMILIES
from yurttunnel.proxy.state.virtual_services import Endpoint, Key

MAX_REMOVED, MAX_SERVICES = 4096, 16384
"""The maximum number of removed endpoints, and of services, to remember; the oldest are dropped."""


class EndpointNumbers:
    """The numbers of endpoints; an endpoint that stays has the same number in each process."""

    def __init__(self) -> None:
        self._present = BoundedDict[Key, frozenset[Endpoint]](MAX_SERVICES)
        self._returns = BoundedDict[tuple[Key, Endpoint], int](MAX_REMOVED)

    def of(self, key: Key, endpoints: Collection[Endpoint]) -> dict[Endpoint, int]:
        """Return the numbers of the endpoints that a service has from now on."""
        present = frozenset(endpoints)
        for removed in sorted(self._present.get(key, frozenset()) - present):
            self._returns[key, removed] = self._returns.get((key, removed), 0) + 1
        self._present[key] = present
        return {each: _number(each, self._returns.get((key, each), 0)) for each in endpoints}


class ClientsSets:
    """Selects the set for the clients of a service: a new one when its timeout becomes shorter.

    The elements of the previous set would keep the old timeout. The name is made from the timeout,
    so that the next process uses the same set, unless the timeout has become shorter meanwhile.
    """

    def __init__(self) -> None:
        self._known = BoundedDict[Key, tuple[float, str]](MAX_SERVICES)

    def of(self, key: Key, seconds: float) -> str:
        """Return the suffix for the set's name; ``seconds`` is the timeout from now on."""
        shorter = f"{seconds:.0f}"
        former, name = self._known.get(key, (seconds, shorter))
        if seconds < former:
            name = f"{shorter} again" if name == shorter else shorter
        self._known[key] = seconds, name
        return name


def clients_set(version: int) -> str:
    """Return the declaration of the set of a service."""
    return f"set {{ typeof {_client(version, 0)}; flags dynamic,timeout; }}"


def is_known(version: int, number: int, clients: str) -> str:
    """Return the match for packets of clients that have the endpoint ``number``."""
    return f"{_client(version, number)} @{clients}"


def remember(version: int, number: int, clients: str, seconds: float) -> str:
    """Return the statement that assigns the endpoint to the client for this time from now on."""
    return f"update @{clients} {{ {_client(version, number)} timeout {seconds:.0f}s }}"


def _client(version: int, number: int) -> str:
    return f"{FAMILIES[version]} saddr . numgen inc mod 1 offset {number}"


def _number(endpoint: Endpoint, returns: int) -> int:
    digest = hashlib.sha256(f"{endpoint} {returns}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
