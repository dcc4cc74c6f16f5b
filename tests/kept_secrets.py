"""What is secret in the directories of programs, to be looked for in what they tell."""

from __future__ import annotations

import re
from pathlib import Path

_KEYS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)

_TOKENS = re.compile(rb"[0-9a-f]{16}\.([0-9a-f]{32})(?![0-9a-f])")
"""Join tokens; only what is behind the id is secret."""

_SHORTEST = 16
"""Characters of a piece of a key that is found nowhere else by chance; its last line is shorter."""


def secrets_in(*directories: Path | str) -> frozenset[bytes]:
    """Return the lines of private keys (PEM), and the secrets of join tokens, of all files."""
    found: set[bytes] = set()
    for path in (each for directory in directories for each in Path(directory).rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found.update(_TOKENS.findall(content))
            # In JSON the line breaks are written "\n".
            for key in _KEYS.findall(content.replace(rb"\n", b"\n")):
                found.update(line for line in key.split() if len(line) >= _SHORTEST)
    return frozenset(found)
