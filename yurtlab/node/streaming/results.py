"""How a command ends and how its terminal changes, as the versions of the protocol write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

MAX_SIZE_TEXT: Final = 256
"""Characters that one size of a terminal may have; ``{"Width":80,"Height":24}`` is usual."""

_MAX_CELLS: Final = 0xFFFF


def error_stream_content(protocol: str, status: Mapping[str, Any]) -> bytes:
    """Return what the error stream says of ``status``, a ``metav1.Status``.

    v4 and later send it as JSON, earlier ones the message of a failure as text.
    """
    if protocol.startswith(("v4.", "v5.")):
        return json.dumps(status).encode()
    if status.get("status") == "Success":
        return b""
    return str(status.get("message", "")).encode()


def resizes(protocol: str) -> bool:
    """Return whether a terminal may change its size in this version of SPDY's protocols."""
    return protocol.startswith(("v3.", "v4.", "v5."))


class SizeReader:
    """Reads sizes of a terminal: JSON objects one behind the other, cut in any way.

    Like kubelet it takes note of nothing any more behind what is no size.
    """

    def __init__(self) -> None:
        self._text = ""
        self._broken = False

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return the sizes, each width and height in characters, that ``data`` completes."""
        sizes: list[tuple[int, int]] = []
        if self._broken:
            return sizes
        self._text += data.decode("ascii", "replace")
        decoder = json.JSONDecoder()
        while text := self._text.lstrip():
            end = text.find("}") + 1
            if (end or len(text)) > MAX_SIZE_TEXT:
                self._broken = True
                break
            if not end:
                break
            try:
                sizes.append(_size(decoder.decode(text[:end])))
            except ValueError:
                self._broken = True
                break
            self._text = text[end:]
        if self._broken:
            self._text = ""
        return sizes


def _size(value: Any) -> tuple[int, int]:
    """Read a ``TerminalSize``, whose names Go reads in any case."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    members = {str(name).lower(): member for name, member in value.items()}
    width, height = members.get("width", 0), members.get("height", 0)
    for cells in (width, height):
        if type(cells) is not int or not 0 <= cells <= _MAX_CELLS:
            raise ValueError(f"{cells!r} is no number of characters")
    return width, height
