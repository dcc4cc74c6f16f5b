"""The content of an nftables table, as far as it is needed to compare two."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

NAME = "yurtproxy"
"""The name of the table, in both families: no other program uses it."""

FORMAT = "format-4"
"""An empty chain that identifies the version of the maps and base chains."""

FAMILIES = {4: "ip", 6: "ip6"}

_DIGESTS = 65536
"""The number of cached rule digests: some for each of thousands of services."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Rules, in the order in which packets pass them.

    ``hook`` is where a base chain is called (``type nat hook …``); it is empty for other chains. A
    chain that was read from the kernel has only the digests of its rules.
    """

    digests: tuple[str, ...] = ()
    hook: str = ""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Chains and maps by name, and the elements of the maps.

    ``maps`` contains declarations (``map { type …; }``, ``set { … }``, ``counter``). The keys of
    ``elements`` are a map and a key, and the values are empty for a set. Elements that packets add
    to a set are not included.
    """

    version: int
    chains: Mapping[str, Chain] = field(default_factory=dict)
    maps: Mapping[str, str] = field(default_factory=dict)
    elements: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The table's family and name."""
        return f"{FAMILIES[self.version]} {NAME}"


def chain(*rules: str, hook: str = "") -> Chain:
    """Return a chain that is to be created."""
    return Chain(tuple(map(digest, rules)), hook, rules)


@lru_cache(_DIGESTS)
def digest(rule: str) -> str:
    """Return the comment of a rule: how programs show rules depends on their version."""
    return hashlib.sha256(rule.encode()).hexdigest()[:16]
