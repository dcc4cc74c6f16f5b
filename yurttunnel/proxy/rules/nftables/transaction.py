"""Commands that change one nftables table into another in one transaction (``nft -f -``)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.rules.nftables.table import FORMAT, Chain, Table
from yurttunnel.steering.firewall.transaction import Transaction, limit_differences

_AT_ONCE = 500
"""The maximum number of elements in one line."""


def transaction(
    found: Mapping[int, Table], desired: Iterable[Table]
) -> Generator[str, None, Transaction]:
    """Return what changes the existing tables into ``desired``, which has one for each family.

    It yields between slices of work.
    """
    lines: list[str] = []
    differences: list[str] = []
    for table in desired:
        before = found.get(table.version)
        if before is None or FORMAT not in before.chains:
            why = "missing" if before is None else "of another version"
            differences.append(f"the table {table.where} is {why}")
            # Deleting a table that does not exist fails; adding one that exists does not.
            lines += [f"add table {table.where}", f"delete table {table.where}"]
            lines.append(f"add table {table.where}")
            before = Table(table.version)
            yield from _change(before, table, lines)
        else:
            differences += yield from _change(before, table, lines)
    text = "\n".join([*lines, ""]) if lines else ""
    return Transaction(text, limit_differences(differences))


def _change(before: Table, after: Table, lines: list[str]) -> Generator[str, None, list[str]]:
    """Add the commands for one table, in an order in which all references exist."""
    where = after.where
    new_maps = after.maps.keys() - before.maps.keys()
    old_maps = before.maps.keys() - after.maps.keys()
    old_chains = sorted(before.chains.keys() - after.chains.keys())
    changed = {
        name: chain
        for name, chain in after.chains.items()
        if (former := before.chains.get(name)) is not chain and not _same(former, chain)
    }
    yield ""
    gone = _differing(before, after, old_maps)
    yield ""
    new = _differing(after, before, frozenset())
    yield ""
    for name in sorted(new_maps):
        kind, _, body = after.maps[name].partition(" ")
        lines.append(f"add {kind} {where} {name} {body}")
    for name, chain in changed.items():
        lines.append(f"add chain {where} {name}{f' {{ {chain.hook} }}' if chain.hook else ''}")
    lines += _elements("delete", where, [(place, "") for place, _ in gone])
    lines += [f"flush chain {where} {name}" for name in (*changed, *old_chains)]
    yield ""

    def add_rules(name: str) -> None:
        for rule, digest in zip(changed[name].rules, changed[name].digests, strict=True):
            lines.append(f'add rule {where} {name} {rule} comment "{digest}"')

    yield from visit(changed, add_rules)
    yield from visit(_elements("add", where, new), lines.append)
    lines += [
        f"delete {before.maps[name].partition(' ')[0]} {where} {name}" for name in sorted(old_maps)
    ]
    lines += [f"delete chain {where} {name}" for name in old_chains]
    return [
        *(f"{where}: the map {name} is missing" for name in sorted(new_maps)),
        *(f"{where}: the map {name} is not wanted" for name in sorted(old_maps)),
        *(
            f"{where}: the chain {name} "
            + ("has other rules" if name in before.chains else "is missing")
            for name in changed
        ),
        *(f"{where}: the chain {name} is not wanted" for name in old_chains),
        *_counted(where, "missing", new),
        *_counted(where, "not wanted", gone),
    ]


def _same(former: Chain | None, chain: Chain) -> bool:
    return former is not None and former.digests == chain.digests


def _differing(
    these: Table, others: Table, without: Iterable[str]
) -> list[tuple[tuple[str, str], str]]:
    """Return the elements of one table that the other does not have, or has with other data."""
    left_out = frozenset(without)
    elements = others.elements
    return [
        (place, data)
        for place, data in these.elements.items()
        if elements.get(place) != data and place[0] not in left_out
    ]


def _elements(
    verb: str, where: str, elements: Iterable[tuple[tuple[str, str], str]]
) -> Iterable[str]:
    by_map: dict[str, list[str]] = defaultdict(list)
    for (name, key), data in elements:
        by_map[name].append(f"{key} : {data}" if data else key)
    for name, texts in by_map.items():
        for start in range(0, len(texts), _AT_ONCE):
            some = ", ".join(texts[start : start + _AT_ONCE])
            yield f"{verb} element {where} {name} {{ {some} }}"


def _counted(
    where: str, what: str, elements: Iterable[tuple[tuple[str, str], str]]
) -> Iterable[str]:
    for name, count in Counter(name for (name, _), _ in elements).items():
        yield f"{where}: in the map {name} {count} elements are {what}"
