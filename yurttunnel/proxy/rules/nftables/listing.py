"""Parsing what ``nft list table`` prints for our tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yurttunnel.proxy.rules.nftables.table import Chain, Table

_BEGINNING = re.compile(r"\t(chain|map|set|counter) (\S+) \{")
_COMMENT = re.compile(r' comment "([^"]*)"$')
_ELEMENTS = "elements = {"
_KINDS_THAT_PACKETS_FILL = "dynamic"


class _Unreadable(Exception):
    """The output is not that of our table."""


def read(text: str, version: int) -> Table:
    """Return the table; an empty one if it contains what our tables never do."""
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
