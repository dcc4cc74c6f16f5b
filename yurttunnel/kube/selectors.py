"""Label and field selectors: parsing and matching.

Label selectors have the grammar of k8s.io/apimachinery pkg/labels (``a=b,c!=d,e in
(f,g),h,!i,j>1``), field selectors that of pkg/fields (``a=b,c!=d`` with ``\\`` before commas and
equals signs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

LabelTest = Callable[[Mapping[str, str]], bool]
"""Returns whether labels are selected."""

_KEY = r"(?P<key>[A-Za-z0-9./_-]+)"
# Clients choose the text: an ambiguous pattern for spaces would take quadratic time.
_REQUIREMENT = re.compile(
    rf"\s*(?:"
    rf"(?P<absent>!)\s*(?P<absent_key>[A-Za-z0-9./_-]+)"
    rf"|{_KEY}\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|{_KEY.replace('key', 'compared')}\s*(?P<operator>==|=|!=|>|<)\s*+(?P<value>[A-Za-z0-9._-]*)"
    rf"|{_KEY.replace('key', 'present')}"
    rf")\s*(?:,|\Z)"
)
_FIELD = re.compile(
    r"(?P<field>[^=!,\\]+)(?P<operator>==|=|!=)(?P<value>(?:[^,=\\]|\\[,=\\])*)(?:,|\Z)"
)
_INTEGER = re.compile(r"-?[0-9]{1,63}")
"""``int`` also accepts underscores, which labels may contain."""

_ESCAPED = re.compile(r"\\([,=\\])")
_TO_ESCAPE = re.compile(r"[,=\\]")


LABEL_SPACES = " \t\r\n"
"""White space that is ignored around a label selector; a selector of nothing else selects all."""


class BadSelector(ValueError):
    """An invalid selector; the line quotes the invalid part, in the words of the API."""


class FieldTerm(NamedTuple):
    """One term of a field selector: the field must equal the value, or without ``same`` differ."""

    field: str
    same: bool
    value: str

    def holds(self, value: str) -> bool:
        """Return whether a field with this value matches."""
        return (value == self.value) is self.same

    def __str__(self) -> str:
        """Return the term in the syntax of selectors."""
        value = _TO_ESCAPE.sub(r"\\\g<0>", self.value)
        return f"{self.field}{'=' if self.same else '!='}{value}"


def label_test(text: str) -> LabelTest:
    """Parse a label selector; an empty one selects all. Raises :class:`BadSelector`."""
    tests = tuple(_label_tests(text))
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def field_terms(text: str) -> tuple[FieldTerm, ...]:
    """Parse a field selector; empty terms are ignored (``parseSelector`` of pkg/fields).

    Raises :class:`BadSelector`.
    """
    found: list[FieldTerm] = []
    position = 0
    while position < len(text):
        if text[position] == ",":
            position += 1
            continue
        match = _FIELD.match(text, position)
        if match is None:
            raise BadSelector(f"invalid selector: {text!r}; can't understand {text[position:]!r}")
        position = match.end()
        value = _ESCAPED.sub(r"\1", match["value"])
        found.append(FieldTerm(match["field"].strip(), match["operator"] != "!=", value))
    return tuple(found)


def _label_tests(text: str) -> list[LabelTest]:
    found: list[LabelTest] = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() == len(text) and text.endswith(",")):
            raise BadSelector(f"unable to parse requirement: {text!r} is not a label selector")
        found.append(_label_test(match))
        position = match.end()
    return found


def _label_test(match: re.Match[str]) -> LabelTest:
    if match["absent"]:
        absent = match["absent_key"]
        return lambda labels: absent not in labels
    if match["set"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return _in(match["key"], values) if match["set"] == "in" else _not_in(match["key"], values)
    if match["operator"] is None:
        present = match["present"]
        return lambda labels: present in labels
    key, operator, value = match["compared"], match["operator"], match["value"]
    if operator in ("<", ">"):
        return _ordered(key, operator, value)
    values = frozenset((value,))
    return _not_in(key, values) if operator == "!=" else _in(key, values)


def _in(key: str, values: frozenset[str]) -> LabelTest:
    return lambda labels: labels.get(key) in values


def _not_in(key: str, values: frozenset[str]) -> LabelTest:
    """Also select objects without the label, as upstream does."""
    return lambda labels: labels.get(key) not in values


def _ordered(key: str, operator: str, limit: str) -> LabelTest:
    """Compare integers; other values do not match."""
    bound = _integer(limit)

    def test(labels: Mapping[str, str]) -> bool:
        actual = _integer(labels.get(key, ""))
        if actual is None or bound is None:
            return False
        return actual > bound if operator == ">" else actual < bound

    return test


def _integer(text: str) -> int | None:
    """Return the number that the API would parse (64 bits), ``None`` for other text."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None
