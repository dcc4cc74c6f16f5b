"""The end of a JSON value in text that arrives in pieces.

There are two methods: a general one, which scans every bracket, and a guess. API servers write such
regular JSON that the next value starts with the same bytes as the previous one. A fast decoder can
verify a guess: no JSON object is a prefix of another, so text that decodes is the whole value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Generic, NamedTuple

from yurttunnel.hub.media.json_text import NOT_JSON, SPACE, STRING, Decoded, checked
from yurttunnel.kube.protobuf_fields import BadBody

MAX_GUESS: Final = 64 * 1024
"""Maximum length, in bytes, of a value whose end is guessed; longer values are scanned."""

MAX_SCALAR: Final = 64
"""Maximum length of a number or a literal, in bytes."""


def _without(value: bytes) -> bytes:
    """Return a pattern for text up to a bracket or a quote that does not begin such a value."""
    return rb'[^"{}\[\]]*+(?:(?:' + value + rb')[^"{}\[\]]*+)*'


def _or_nested(value: bytes) -> bytes:
    """Return a pattern for such a value, or an object or array that contains only such values."""
    return value + rb"|[{\[]" + _without(value) + rb"[}\]]"


# Skips everything between two brackets, including whole strings and flat objects, which are the
# most frequent. It stops at a bracket, at the quote of an incomplete string, or at the end.
_TO_BRACKET = re.compile(_without(_or_nested(_or_nested(STRING))) + rb'([{}\[\]"]?)', re.DOTALL)
_TO_QUOTE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*("?)', re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++(?=[ \t\r\n,\]}])")


class Value(NamedTuple, Generic[Decoded]):
    """A value: the end of its text, its text, and its decoded content."""

    end: int
    text: bytes
    content: Decoded


class EndScanner:
    """Finds the end of one value; scanned text is not scanned again."""

    def __init__(self) -> None:
        self._seen = 0
        self._depth = 0
        self._in_string = False

    def find(self, text: bytearray, start: int) -> int:
        """Return the end of the value that begins at ``start``, or -1 if more text is needed."""
        if self._seen == 0:
            first = text[start]
            if first not in b'{["':
                return _end_of_scalar(text, start)
            self._in_string = first == 0x22
            self._depth = 0 if self._in_string else 1
            self._seen = 1
        at = start + self._seen
        while True:
            found = (_TO_QUOTE if self._in_string else _TO_BRACKET).match(text, at)
            assert found is not None, "it matches nothing, too"
            at = found.end()
            stop = found[1]
            if not stop:
                self._seen = at - start
                return -1
            if stop == b'"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if stop in b"{[" else -1
            if self._depth == 0 and not self._in_string:
                return at


def _end_of_scalar(text: bytearray, start: int) -> int:
    found = _SCALAR.match(text, start)
    if found is not None and found.end() - start <= MAX_SCALAR:
        return found.end()
    if len(text) - start > MAX_SCALAR:
        raise BadBody("a value is not JSON")
    return -1


class ValueReader(Generic[Decoded]):
    """Reads similar values, one at a time.

    ``decode`` raises one of :data:`NOT_JSON` for invalid text. The guessed end of a value is the
    brace at the start of ``sequel``; without a sequel the value is scanned. A sequel that led to a
    wrong guess is discarded.
    """

    def __init__(
        self, decode: Callable[[bytes], Decoded], max_size: int, sequel: bytes = b""
    ) -> None:
        self.sequel = sequel
        self._decode = decode
        self._max_size = max_size
        self._guessed_to = 0
        self._scanner: EndScanner | None = None

    def read(self, text: bytearray, start: int, may_be_last: bool) -> Value[Decoded] | None:
        """Return the value that begins at ``start``, if it is complete.

        The last value has no sequel: ``may_be_last`` says that the text may end with a complete
        value.
        """
        if self._scanner is None:
            value = self._guess(text, start)
            if value is not None:
                return value
            length = len(text) - start
            if self.sequel and not may_be_last and length <= min(MAX_GUESS, self._max_size):
                return None
            self._scanner = EndScanner()
        return self._scan(text, start, self._scanner)

    def _guess(self, text: bytearray, start: int) -> Value[Decoded] | None:
        if not self.sequel:
            return None
        found = text.find(self.sequel, start + self._guessed_to)
        if found < 0:
            self._guessed_to = max(len(text) - start - len(self.sequel), 0)
            return None
        end = found + 1
        if end - start <= self._max_size:
            guessed = bytes(memoryview(text)[start:end])
            try:
                content = self._decode(guessed)
            except NOT_JSON:
                pass
            else:
                self._guessed_to = 0
                return Value(end, guessed, content)
        self.sequel = b""
        return None

    def _scan(self, text: bytearray, start: int, scanner: EndScanner) -> Value[Decoded] | None:
        end = scanner.find(text, start)
        size = (len(text) if end < 0 else end) - start
        if size > self._max_size:
            raise BadBody(f"one value has more than {self._max_size} bytes")
        if end < 0:
            return None
        self._scanner = None
        self._guessed_to = 0
        value = bytes(memoryview(text)[start:end])
        return Value(end, value, checked(self._decode, value))


def may_be_last(data: bytes, before: bool) -> bool:
    """Return whether the text may end with an object; ``before`` is the previous result."""
    data = data.rstrip(SPACE)
    return data.endswith(b"}") if data else before
