"""The secrets in the state directories of programs, to search for in their output."""

from __future__ import annotations

import re
from pathlib import Path

_KEYS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)

_TOKENS = re.compile(rb"[0-9a-f]{16}\.([0-9a-f]{32})(?![0-9a-f])")
"""Join tokens; only the part after the id is secret."""

_MIN_LENGTH = 16
"""The minimum length of a line of a key to search for; its last line may be shorter."""


def secrets_in(*directories: Path | str) -> frozenset[bytes]:
    """Return the lines of private keys (PEM), and the secrets of join tokens, of all files."""
    found: set[bytes] = set()
    for path in (each for directory in directories for each in Path(directory).rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found.update(_TOKENS.findall(content))
            # In JSON, line breaks are escaped as "\n".
            for key in _KEYS.findall(content.replace(rb"\n", b"\n")):
                found.update(line for line in key.split() if len(line) >= _MIN_LENGTH)
    return frozenset(found)
