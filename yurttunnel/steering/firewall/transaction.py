"""What makes the rules that are into those that are wanted: a text for ``iptables-restore``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yurttunnel.steering.firewall.jumps import change_jumps
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.saved import Saved, normalised, same

MOST_EDITS = 50
"""Rules of a chain up to which they are changed one by one.

It spares the rest of a big chain. For each of them the program searches the chain, so that at
some hundreds it is cheaper to fill the chain anew.
"""

MOST_DIFFERENCES = 20
"""Sentences about differences; a last one says how many more there are."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The text, for ``iptables-restore --noflush``, and in sentences what it is for.

    Both are empty where nothing is to be done.
    """

    text: str
    differences: tuple[str, ...]


@dataclass(slots=True)
class _Edits:
    """Lines of the text by the order in which they have to stand.

    Chains are there (and empty) before rules name them, and no rule names those that go.
    """

    chains: list[str]
    rules: list[str]
    jumps: list[str]
    deletions: list[str]
    differences: list[str]


def transaction(table: str, saved: Saved, desired: Rules) -> Transaction:
    """Return what changes ``saved`` to ``desired`` in one ``COMMIT``, and no more than needed."""
    edits = _Edits([], [], [], [], [])
    for chain, rules in desired.chains.items():
        _chain(edits, chain, saved.chains.get(chain), rules)
    for chain in sorted(saved.chains.keys() - desired.chains.keys()):
        edits.differences.append(f"the chain {chain} is not wanted")
        edits.chains.append(_emptied(chain))
        edits.deletions.append(f"-X {chain}")
    jumps, why = change_jumps(saved.jumps, desired)
    edits.jumps += jumps
    edits.differences += why
    if not edits.differences:
        return Transaction("", ())
    lines = [f"*{table}", *edits.chains, *edits.rules, *edits.jumps, *edits.deletions, "COMMIT", ""]
    return Transaction("\n".join(lines), _bounded(edits.differences))


def _chain(edits: _Edits, chain: str, found: Sequence[str] | None, rules: Sequence[str]) -> None:
    if found is None:
        edits.differences.append(f"the chain {chain} is missing")
    else:
        if len(found) == len(rules) and all(map(same, found, rules)):
            return
        changes = _changes(found, rules)
        if changes is not None:
            wrong, missing = changes
            edits.rules += [f"-D {chain} {rule}" for rule in wrong]
            edits.rules += [f"-I {chain} {number} {rule}" for number, rule in missing]
            edits.differences.append(
                f"in the chain {chain} {len(missing)} rules are missing, {len(wrong)} not wanted"
            )
            return
        edits.differences.append(
            f"the chain {chain} has {len(found)} rules that are not the {len(rules)} wanted"
        )
    edits.chains.append(_emptied(chain))
    edits.rules += [f"-A {chain} {rule}" for rule in rules]


def _changes(
    found: Sequence[str], desired: Sequence[str]
) -> tuple[list[str], list[tuple[int, str]]] | None:
    """Return which rules to delete, and then which to insert as which number, from 1.

    There is no such answer where it would be long, or where what is kept has another order.
    """
    exact = set(found).intersection(desired)
    keys = [rule if rule in exact else normalised(rule) for rule in found]
    wanted_keys = [rule if rule in exact else normalised(rule) for rule in desired]
    kept = set(keys) & set(wanted_keys)
    wrong = [rule for rule, key in zip(found, keys, strict=True) if key not in kept]
    missing = [
        (number, rule)
        for number, (rule, key) in enumerate(zip(desired, wanted_keys, strict=True), 1)
        if key not in kept
    ]
    in_order = [key for key in keys if key in kept] == [key for key in wanted_keys if key in kept]
    return (wrong, missing) if in_order and len(wrong) + len(missing) <= MOST_EDITS else None


def _emptied(chain: str) -> str:
    """Return the line that makes a chain, or empties one that is there."""
    return f":{chain} - [0:0]"


def _bounded(differences: list[str]) -> tuple[str, ...]:
    more = len(differences) - MOST_DIFFERENCES
    if more <= 0:
        return tuple(differences)
    return (*differences[:MOST_DIFFERENCES], f"and {more} more")
