"""The content of an nftables table, as far as it is needed to compare two, and its parsing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
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


_BEGINNING = re.compile(r"\t(chain|map|set|counter) (\S+) \{")
_COMMENT = re.compile(r' comment "([^"]*)"$')
_ELEMENTS = "elements = {"
_KINDS_THAT_PACKETS_FILL = "dynamic"


class _Unreadable(Exception):
    """The output is not that of our table."""


def read(text: str, version: int) -> Table:
    """Return the table that ``nft list table`` prints.

    It is empty if it contains what our tables never do.
    """
    try:
        return _read(text.splitlines(), version)
    except _Unreadable:
        return Table(version)


def _read(lines: list[str], version: int) -> Table:
    chains: dict[str, Chain] = {}
    maps: dict[str, str] = {}
    elements: dict[tuple[str, str], str] = {}
    rest = iter(lines)
    for line in rest:
        beginning = _BEGINNING.match(line)
        if beginning is None:
            if line.startswith("\t"):
                raise _Unreadable(line)
            continue
        kind, name = beginning.groups()
        body = _body(rest)
        if kind == "chain":
            chains[name] = _chain(body)
        else:
            maps[name] = kind
            elements.update(((name, key), data) for key, data in _elements(body))
    return Table(version, chains, maps, elements)


def _body(lines: Iterator[str]) -> list[str]:
    body: list[str] = []
    for line in lines:
        if line == "\t}":
            return body
        body.append(line)
    raise _Unreadable("a list that ends too early")


def _chain(body: list[str]) -> Chain:
    hook = ""
    digests = []
    for line in body:
        if line.startswith("\t\ttype "):
            hook = line.strip()
            continue
        comment = _COMMENT.search(line)
        digests.append(comment[1] if comment is not None else "")
    return Chain(tuple(digests), hook)


def _elements(body: list[str]) -> Iterator[tuple[str, str]]:
    text = "\n".join(body)
    before, found, after = text.partition(_ELEMENTS)
    if not found or _KINDS_THAT_PACKETS_FILL in before:
        return
    for element in after.rpartition("}")[0].split(","):
        key, _, data = element.strip().partition(" : ")
        yield key, data
