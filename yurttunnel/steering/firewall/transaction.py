"""Input for ``iptables-restore`` that changes the current rules to the desired ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from yurttunnel.ops.slices import gather
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.saved import Saved, normalized

MAX_EDITS = 50
"""The maximum number of rules of a chain that are changed one by one.

This leaves the rest of a large chain unchanged. For each rule the program searches the chain, so
that for some hundreds it is cheaper to refill the chain.
"""

MAX_DIFFERENCES = 20
"""The maximum number of reported differences; a last sentence has the number of others."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The input for a program, and sentences about the differences.

    Both are empty if there is nothing to do.
    """

    text: str
    differences: tuple[str, ...]


@dataclass(slots=True)
class _Edits:
    """Lines of the input in their required order.

    Chains exist (and are empty) before rules refer to them, and no rule refers to chains to be
    deleted.
    """

    chains: list[str]
    rules: list[str]
    jumps: list[str]
    deletions: list[str]
    differences: list[str]


def transaction(table: str, saved: Saved, desired: Rules) -> Generator[str, None, Transaction]:
    """Return what changes ``saved`` to ``desired`` in one ``COMMIT``, and nothing unnecessary.

    It yields between slices of work (:func:`yurttunnel.ops.slices.visit`).
    """
    edits = _Edits([], [], [], [], [])
    for chain, rules in desired.chains.items():
        yield from _chain(edits, chain, saved.chains.get(chain), rules)
    for chain in sorted(saved.chains.keys() - desired.chains.keys()):
        edits.differences.append(f"the chain {chain} is not wanted")
        edits.chains.append(_flush_line(chain))
        edits.deletions.append(f"-X {chain}")
    jumps, why = _change_jumps(saved.jumps, desired)
    edits.jumps += jumps
    edits.differences += why
    if not edits.differences:
        return Transaction("", ())
    lines = [f"*{table}", *edits.chains, *edits.rules, *edits.jumps, *edits.deletions, "COMMIT", ""]
    return Transaction("\n".join(lines), limit_differences(edits.differences))


def _chain(
    edits: _Edits, chain: str, found: Sequence[str] | None, rules: Sequence[str]
) -> Generator[str, None, None]:
    if found is None:
        edits.differences.append(f"the chain {chain} is missing")
    else:
        if tuple(found) == tuple(rules):
            return
        keys = yield from _keys(found, rules)
        wanted_keys = yield from _keys(rules, found)
        if keys == wanted_keys:
            return
        yield ""
        changes = _changes(found, keys, rules, wanted_keys)
        yield ""
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
    edits.chains.append(_flush_line(chain))
    edits.rules += [f"-A {chain} {rule}" for rule in rules]


def _keys(rules: Sequence[str], others: Sequence[str]) -> Generator[str, None, list[str]]:
    """Return for each of ``rules`` a text that is equal for two rules that are the same.

    A rule that ``others`` have in the same spelling is its own key, because normalizing is slow.
    """
    exact = set(rules).intersection(others)
    yield ""
    return (yield from gather(rule if rule in exact else _key(rule) for rule in rules))


def _key(rule: str) -> str:
    # Python computes the hash of a text only once, but that of a tuple each time.
    return "\0".join("\1".join(option) for option in normalized(rule))


def _changes(
    found: Sequence[str], keys: Sequence[str], desired: Sequence[str], wanted_keys: Sequence[str]
) -> tuple[list[str], list[tuple[int, str]]] | None:
    """Return the rules to delete, and then those to insert with their positions, from 1.

    Return ``None`` if there would be many, or if the kept rules have another order.
    """
    kept = set(keys) & set(wanted_keys)
    wrong = [rule for rule, key in zip(found, keys, strict=True) if key not in kept]
    missing = [
        (number, rule)
        for number, (rule, key) in enumerate(zip(desired, wanted_keys, strict=True), 1)
        if key not in kept
    ]
    in_order = [key for key in keys if key in kept] == [key for key in wanted_keys if key in kept]
    return (wrong, missing) if in_order and len(wrong) + len(missing) <= MAX_EDITS else None


def _change_jumps(found: Sequence[tuple[str, str]], desired: Rules) -> tuple[list[str], list[str]]:
    """Return lines for ``iptables-restore``, and sentences about the differences.

    One of each desired jump is kept, wherever it is among other programs' rules, and all others are
    deleted. New jumps are inserted before all other rules, or appended, but not moved there again:
    rules that are inserted before them later, such as kube-proxy's, are for other destinations, and
    two programs that both insist on the first place would alternate forever. Only the order among
    our jumps is restored.
    """
    lines: list[str] = []
    differences: list[str] = []
    jumping_chains = [chain for chain, _ in found]
    for chain in dict.fromkeys([*jumping_chains, *desired.jumps, *desired.last_jumps]):
        rules = [rule for each, rule in found if each == chain]
        _change_jumps_from(chain, rules, desired, lines, differences)
    return lines, differences


def _change_jumps_from(
    chain: str, found: Sequence[str], desired: Rules, lines: list[str], differences: list[str]
) -> None:
    first = desired.jumps.get(chain, ())
    last = desired.last_jumps.get(chain, ())
    wanted = [normalized(rule) for rule in (*first, *last)]
    missing = Counter(wanted)
    kept = [(normalized(rule), rule) for rule in found]
    for key, rule in list(kept):
        if missing[key]:
            missing[key] -= 1
        else:
            differences.append(f"a rule of {chain} leads to our chains and is not wanted")
            lines.append(f"-D {chain} {rule}")
            # Of several rules with the same spelling the kernel deletes the first.
            kept.remove((key, rule))
    absent = missing.total()
    if not absent and [key for key, _ in kept] == wanted:
        return
    differences += [f"the jump from {chain} is missing"] * absent
    if not absent:
        differences.append(f"the jumps from {chain} to our chains are in a wrong order")
    lines += [f"-D {chain} {rule}" for _, rule in kept]
    lines += [f"-I {chain} {number} {rule}" for number, rule in enumerate(first, 1)]
    lines += [f"-A {chain} {rule}" for rule in last]


def _flush_line(chain: str) -> str:
    """Return the line that creates a chain, or empties an existing one."""
    return f":{chain} - [0:0]"


def limit_differences(differences: list[str]) -> tuple[str, ...]:
    """Return at most :data:`MAX_DIFFERENCES`, and a sentence with the number of others."""
    more = len(differences) - MAX_DIFFERENCES
    if more <= 0:
        return tuple(differences)
    return (*differences[:MAX_DIFFERENCES], f"and {more} more")
