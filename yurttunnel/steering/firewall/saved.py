"""Parsing our chains and rules in the output of ``iptables-save``."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field

from yurttunnel.ops.slices import visit
from yurttunnel.steering.firewall.own_chains import ChainOwner

_WORD = re.compile(r'"((?:\\.|[^"\\])*)"|(\S+)')

_ALIASES = {
    "--destination": "-d",
    "--dst": "-d",
    "--source": "-s",
    "--src": "-s",
    "--protocol": "-p",
    "--proto": "-p",
    "--jump": "-j",
    "--goto": "-g",
    "--match": "-m",
    "--in-interface": "-i",
    "--out-interface": "-o",
    "--destination-port": "--dport",
    "--source-port": "--sport",
    "--to-port": "--to-ports",
}

Option = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """Our current chains, and the rules of other chains that lead to them, in order.

    Rules have the spelling in which they were found, so that they can be deleted by it.
    """

    chains: dict[str, list[str]] = field(default_factory=dict)
    jumps: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of ours was found."""
        return not (self.chains or self.jumps)


def table_section(text: bytes, table: str) -> bytes | None:
    """Return the part of one table; ``None`` if the output does not have it."""
    # Copying the other tables would take long, because there may be 100,000 rules.
    head = f"*{table}\n".encode()
    start = 0 if text.startswith(head) else text.find(b"\n" + head) + 1
    if not text.startswith(head, start):
        return None
    end = text.find(b"\nCOMMIT\n", start)
    return text[start + len(head) : end + 1 if end >= 0 else len(text)]


def parse(lines: Iterable[bytes], owner: ChainOwner) -> Generator[str, None, Saved]:
    """Parse the lines of one table, which may include others than ours.

    It yields between slices of work (:func:`yurttunnel.ops.slices.visit`).
    """
    saved = Saved()

    def add(line: bytes) -> None:
        head, _, rest = line.decode("utf-8", "surrogateescape").partition(" ")
        if head.startswith(":") and owner.owns(head[1:]):
            saved.chains.setdefault(head[1:], [])
        elif head == "-A":
            chain, _, rule = rest.partition(" ")
            if chain in saved.chains or owner.owns(chain):
                saved.chains.setdefault(chain, []).append(rule)
            elif any(owner.owns(target) for target in _targets(rule)):
                saved.jumps.append((chain, rule))

    yield from visit(lines, add)
    return saved


def normalized(rule: str) -> tuple[Option, ...]:
    """Return the options of a rule, each with its values, in a defined order.

    It is equal for two rules that are the same, whatever the order and spelling of their options.
    Back ends and versions differ in that order, in naming the match ``tcp`` that ``--dport``
    implies, and in spelling single addresses.
    """
    return tuple(
        sorted(_normalized_option(option) for option in _options(rule) if option != ("-m", "tcp"))
    )


def _targets(rule: str) -> list[str]:
    return [option[1] for option in _options(rule) if option[0] in ("-j", "-g") and option[1:]]


def _options(rule: str) -> list[Option]:
    options: list[list[str]] = []
    negated = ""
    for found in _WORD.finditer(rule):
        quoted, word = found.groups()
        if quoted is None and word == "!":
            negated = "! "
        elif quoted is None and word.startswith("-"):
            options.append([negated + _ALIASES.get(word, word)])
            negated = ""
        elif options:
            options[-1].append(word if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return [tuple(option) for option in options]


def _normalized_option(option: Sequence[str]) -> Option:
    if option[0].endswith(("-d", "-s")) and len(option) == 2 and "/" not in option[1]:
        return (option[0], f"{option[1]}/{128 if ':' in option[1] else 32}")
    return tuple(option)
