"""The content of a table of nftables, as far as two of them have to be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

NAME = "yurtproxy"
"""Of the table, in both families: nobody else has anything in it."""

FORMAT = "format-4"
"""An empty chain, by which a table is known as one whose maps and base chains are these."""

FAMILIES = {4: "ip", 6: "ip6"}

_DIGESTS = 65536
"""Rules whose digests are kept: some for each of thousands of services."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Rules, in the order in which packets meet them.

    ``hook`` says where a base chain is called from (``type nat hook …``); it is empty for one that
    others lead to. A chain that was read has the digests of rules only.
    """

    digests: tuple[str, ...] = ()
    hook: str = ""
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Chains and maps by name, and what is in the maps.

    ``maps`` have declarations (``map { type …; }``, ``set { … }``, ``counter``); ``elements`` are
    found by the map and the key, and are empty where that is a set. What packets add to a set is
    none of them.
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
    """Return a chain that is to be made."""
    return Chain(tuple(map(digest, rules)), hook, rules)


@lru_cache(_DIGESTS)
def digest(rule: str) -> str:
    """Return what the comment of a rule is: how programs show rules depends on their version."""
    return hashlib.sha256(rule.encode()).hexdigest()[:16]
