"""The part of Go's text/template and Helm's functions that the chart uses, for use without helm.

``test_chart`` compares it with helm if that is on PATH. It supports no pipelines and no methods but
``.Files.Get``, and raises an exception for anything that it does not support.
"""

from __future__ import annotations

import json
import operator
import posixpath
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_ACTION = re.compile(r"\{\{(-?)\s*(/\*.*?\*/|.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'\s*("(?:\\.|[^"\\])*"|[()]|:=|=|,|\d+|[$.\w]+)')
_VERB = re.compile(r"%[dsvq]")

Scope = ChainMap[str, Any]


class TemplateFailed(Exception):
    """A template has called ``fail``."""


def _default(other: Any, value: Any = None) -> Any:
    return value or other


def _fail(text: str) -> str:
    raise TemplateFailed(text)


def _from_yaml(text: str) -> Any:
    read = yaml.load(text, _Loader)
    return read if isinstance(read, dict) else {"Error": "it is not a map"}


def _kind_is(kind: str, value: Any) -> bool:
    return isinstance(value, {"map": dict, "slice": list, "invalid": type(None)}[kind])


def _printf(text: str, *values: Any) -> str:
    rest = iter(values)
    return _VERB.sub(
        lambda verb: json.dumps(next(rest)) if verb[0] == "%q" else str(next(rest)), text
    )


def _set(target: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    target[key] = value
    return target


def _unset(target: dict[str, Any], key: str) -> dict[str, Any]:
    target.pop(key, None)
    return target


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "append": lambda items, item: [*items, item],
    "clean": posixpath.normpath,
    "concat": lambda *lists: [item for each in lists for item in each],
    "default": _default,
    "dict": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "eq": operator.eq,
    "fail": _fail,
    "first": lambda items: items[0] if items else None,
    "fromYaml": _from_yaml,
    "fromYamlArray": lambda text: yaml.load(text, _Loader),
    "get": lambda target, key: target.get(key, ""),
    "has": lambda item, items: item in items,
    "hasKey": lambda target, key: key in target,
    "hasPrefix": lambda part, text: text.startswith(part),
    "hasSuffix": lambda part, text: text.endswith(part),
    "index": lambda items, place: items[place],
    "initial": lambda items: items[:-1],
    "int": int,
    "kindIs": _kind_is,
    "last": lambda items: items[-1],
    "len": len,
    "list": lambda *items: list(items),
    "ne": operator.ne,
    "not": operator.not_,
    "omit": lambda target, key: {name: value for name, value in target.items() if name != key},
    "printf": _printf,
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "replace": lambda old, new, text: text.replace(old, new),
    "rest": lambda items: items[1:],
    "set": _set,
    "splitList": lambda separator, text: text.split(separator),
    "ternary": lambda yes, no, which: yes if which else no,
    "toYaml": lambda value: yaml.dump(value, Dumper=_Dumper).rstrip("\n"),
    "unset": _unset,
}


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield texts and actions; white space is trimmed beside a ``-``."""
    end, trims = 0, False
    for action in _ACTION.finditer(text):
        before = text[end : action.start()]
        before = before.lstrip() if trims else before
        yield "text", before.rstrip() if action[1] else before
        if not action[2].startswith("/*"):
            yield "action", action[2]
        end, trims = action.end(), bool(action[3])
    yield "text", text[end:].lstrip() if trims else text[end:]


class _Words:
    """The words of an action."""

    def __init__(self, action: str) -> None:
        self._words = _WORD.findall(action)
        if "".join(self._words) != "".join(re.findall(r'"(?:\\.|[^"\\])*"|\S', action)):
            raise ValueError(f"not understood: {action}")

    def peek(self, place: int = 0) -> str:
        return self._words[place] if place < len(self._words) else ""

    def take(self) -> str:
        return self._words.pop(0)


class Templates:
    """The templates of a chart; ``render`` returns the output of one."""

    def __init__(self) -> None:
        self._defined: dict[str, list[Any]] = {}

    def render(self, text: str, data: Any) -> str:
        """Return the output of the template ``text`` for ``data``; keep its definitions."""
        given = iter(pieces(text))
        body, end = self._parse(given)
        if end:
            raise ValueError(f"{end} ends nothing")
        return self._run(body, data, ChainMap({"$": data}))

    def _parse(self, given: Iterator[tuple[str, str]]) -> tuple[list[Any], str]:
        """Return the nodes of a block, and the action that ends it."""
        nodes: list[Any] = []
        for kind, content in given:
            word, _, behind = content.partition(" ")
            if kind == "text":
                nodes.append((kind, content))
            elif word in ("end", "else"):
                return nodes, content
            elif word in ("if", "range", "with", "define"):
                body, end = self._parse(given)
                nodes.append((word, behind, body, self._otherwise(given, end)))
            else:
                nodes.append((kind, content))
        return nodes, ""

    def _otherwise(self, given: Iterator[tuple[str, str]], end: str) -> list[Any]:
        if end == "end":
            return []
        body, last = self._parse(given)
        if end == "else":
            return body
        return [("if", end.removeprefix("else if "), body, self._otherwise(given, last))]

    def _run(self, nodes: list[Any], dot: Any, scope: Scope) -> str:
        return "".join(self._node(node, dot, scope) for node in nodes)

    def _node(self, node: Any, dot: Any, scope: Scope) -> str:
        kind, content, *blocks = node
        if kind == "text":
            return str(content)
        if kind == "define":
            self._defined[json.loads(content)] = blocks[0]
            return ""
        words = _Words(content)
        if kind == "range":
            return self._range(words, blocks, dot, scope)
        if kind == "action":
            return self._action(words, dot, scope)
        value = self._call(words, dot, scope)
        inner = value if kind == "with" and value else dot
        return self._run(blocks[0] if value else blocks[1], inner, scope.new_child())

    def _action(self, words: _Words, dot: Any, scope: Scope) -> str:
        if words.peek(1) not in (":=", "="):
            return str(self._call(words, dot, scope))
        name, sign = words.take(), words.take()
        value = self._call(words, dot, scope)
        where = scope.maps[0] if sign == ":=" else next(each for each in scope.maps if name in each)
        where[name] = value
        return ""

    def _range(self, words: _Words, blocks: list[Any], dot: Any, scope: Scope) -> str:
        names = []
        while words.peek(1) in (",", ":="):
            names.append(words.take())
            words.take()
        found = self._call(words, dot, scope)
        pairs = sorted(found.items()) if isinstance(found, dict) else list(enumerate(found))
        done = []
        for pair in pairs:
            # A single name is for the item; two names are for the index or key and the item.
            own = dict(zip(names, pair[2 - len(names) :], strict=True))
            done.append(self._run(blocks[0], pair[1], scope.new_child(own)))
        return "".join(done) if pairs else self._run(blocks[1], dot, scope)

    def _call(self, words: _Words, dot: Any, scope: Scope) -> Any:
        """Return the value of the words up to the end or a closing parenthesis."""
        first = words.peek()
        if first in ("and", "or"):
            return self._either(words, dot, scope)
        if first == "include":
            words.take()
            name, data = (self._operand(words, dot, scope) for _ in range(2))
            return self._run(self._defined[name], data, ChainMap({"$": data}))
        function = FUNCTIONS[words.take()] if first.isalpha() and not _is_value(first) else None
        operands = []
        while words.peek() not in ("", ")"):
            operands.append(self._operand(words, dot, scope))
        if function is not None:
            return function(*operands)
        value, *given = operands
        return value(*given) if callable(value) else value

    def _either(self, words: _Words, dot: Any, scope: Scope) -> Any:
        """Return the value of ``and`` or ``or``, and skip operands after the deciding one."""
        stops_at = words.take() == "or"
        value, *rest = self._operands_apart(words)
        result = self._call(value, dot, scope)
        for each in rest:
            if bool(result) == stops_at:
                break
            result = self._call(each, dot, scope)
        return result

    def _operands_apart(self, words: _Words) -> list[_Words]:
        """Return the operands that follow, without evaluating them."""
        apart: list[_Words] = []
        while words.peek() not in ("", ")"):
            taken, depth = [words.take()], 0
            depth += taken[0] == "("
            while depth:
                taken.append(words.take())
                depth += {"(": 1, ")": -1}.get(taken[-1], 0)
            inner = taken[1:-1] if taken[0] == "(" else taken
            apart.append(_Words(" ".join(inner)))
        return apart

    def _operand(self, words: _Words, dot: Any, scope: Scope) -> Any:
        word = words.take()
        if word == "(":
            value = self._call(words, dot, scope)
            if words.take() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if word.startswith('"') or _is_value(word):
            return json.loads(word)
        if word in FUNCTIONS:
            return FUNCTIONS[word]()
        name, _, path = word.partition(".")
        value = scope[name] if name else dot
        for field in filter(None, path.split(".")):
            value = None if value is None else value.get(field)
        return value


def _is_value(word: str) -> bool:
    return word in ("true", "false") or word.isdigit()
