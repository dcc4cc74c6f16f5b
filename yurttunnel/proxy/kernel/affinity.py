"""How the kernel remembers which endpoint a client has: one set for each service.

Its elements are a client and the number of an endpoint, which a rule has by ``numgen`` among a
single one. (A set for each endpoint would do without numbers; but Linux goes through all sets of a
table to find one by its name, so that 8,000 of them took 7 s, and 20,000 more than nft is given.
With one for ten endpoints that is 1.1 s and 5.7 s.)

What is remembered of an endpoint that has gone stays in the set until its time is over. It must not
count when the endpoint returns, for its clients have others by then: so it returns with another
number. After a restart of this process it has its first one again, which then may lead some clients
back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TypeVar

from yurttunnel.proxy.rules.nftables.table import FAMILIES
from yurttunnel.proxy.state.virtual_services import Endpoint, Key

MOST_GONE, MOST_SERVICES = 4096, 16384
"""Endpoints that are known to have been there, and services whose endpoints are known; the oldest
ones are forgotten."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class EndpointNumbers:
    """The numbers of endpoints, which are the same in each process as long as they stay."""

    def __init__(self) -> None:
        self._present: dict[Key, frozenset[Endpoint]] = {}
        self._returns: dict[tuple[Key, Endpoint], int] = {}

    def of(self, key: Key, endpoints: Collection[Endpoint]) -> dict[Endpoint, int]:
        """Return those of the endpoints that a service has from now on."""
        present = frozenset(endpoints)
        for gone in sorted(self._present.pop(key, frozenset()) - present):
            self._returns[key, gone] = self._returns.pop((key, gone), 0) + 1
        self._present[key] = present
        _keep_newest(self._returns, MOST_GONE)
        _keep_newest(self._present, MOST_SERVICES)
        return {each: _number(each, self._returns.get((key, each), 0)) for each in endpoints}


class ClientsSets:
    """Which set a service has for its clients: another one from when its time gets shorter.

    The elements of the one before would last for the time that was. Its name is that of the time,
    so that the next process has the set of this one, too, unless it was shortened since.
    """

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, str]] = {}

    def of(self, key: Key, seconds: float) -> str:
        """Return what tells the set from others of the service, whose time it is from now on."""
        shorter = f"{seconds:.0f}"
        former, name = self._known.pop(key, (seconds, shorter))
        if seconds < former:
            name = f"{shorter} again" if name == shorter else shorter
        self._known[key] = seconds, name
        _keep_newest(self._known, MOST_SERVICES)
        return name


def clients_set(version: int) -> str:
    """Return the declaration of the set of a service."""
    return f"set {{ typeof {_client(version, 0)}; flags dynamic,timeout; }}"


def is_known(version: int, number: int, clients: str) -> str:
    """Return the match for packets of clients that have the endpoint with a number."""
    return f"{_client(version, number)} @{clients}"


def remember(version: int, number: int, clients: str, seconds: float) -> str:
    """Return the statement by which the client has it for so long from now on."""
    return f"update @{clients} {{ {_client(version, number)} timeout {seconds:.0f}s }}"


def _keep_newest(known: dict[_K, _V], most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]


def _client(version: int, number: int) -> str:
    return f"{FAMILIES[version]} saddr . numgen inc mod 1 offset {number}"


def _number(endpoint: Endpoint, returns: int) -> int:
    digest = hashlib.sha256(f"{endpoint} {returns}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
