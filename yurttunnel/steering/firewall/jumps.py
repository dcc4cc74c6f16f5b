"""The rules of the kernel's chains that lead to ours: what has to be done about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.saved import normalised


def change_jumps(found: Sequence[tuple[str, str]], desired: Rules) -> tuple[list[str], list[str]]:
    """Return lines for ``iptables-restore``, and in sentences what they are for.

    One jump of each that is wanted is kept, wherever it stands among others' rules, and all others
    are deleted. It is made before all other rules, or behind them, but not moved there again:
    those that come before it later, such as kube-proxy's, are for other destinations, and two
    programs that both insist would take turns for ever. Only among each other they have their
    order.
    """
    lines: list[str] = []
    differences: list[str] = []
    led_from = [chain for chain, _ in found]
    for chain in dict.fromkeys([*led_from, *desired.jumps, *desired.last_jumps]):
        rules = [rule for each, rule in found if each == chain]
        _change(chain, rules, desired, lines, differences)
    return lines, differences


def _change(
    chain: str, found: Sequence[str], desired: Rules, lines: list[str], differences: list[str]
) -> None:
    first = desired.jumps.get(chain, ())
    last = desired.last_jumps.get(chain, ())
    wanted = [normalised(rule) for rule in (*first, *last)]
    missing = Counter(wanted)
    kept = [(normalised(rule), rule) for rule in found]
    for key, rule in list(kept):
        if missing[key]:
            missing[key] -= 1
        else:
            differences.append(f"a rule of {chain} leads to our chains and is not wanted")
            lines.append(f"-D {chain} {rule}")
            # Of several that are spelled so the kernel deletes the first.
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
