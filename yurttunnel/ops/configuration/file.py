"""The file of ``--config``: TOML (toml.io, version 1.0), in which each flag is a key."""

from __future__ import annotations

import json
import os
import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

from twisted.python import usage

from yurttunnel.ops.command_line import did_you_mean
from yurttunnel.ops.configuration.sources import OFF, ON, FlagValue, Source
from yurttunnel.ops.flag_table import Entry, Flag, Repeated, Switch
from yurttunnel.ops.plain_files import read_plain

MAX_BYTES = 1024 * 1024
"""The maximum size of a file; a file with 10,000 forwards has half of that."""

_MAX_BITS = 64
"""The maximum of a number: TOML guarantees no more (1.0, "Integer"), and Python refuses to convert
thousands of digits to text."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""A key that needs no quotes."""

OWN_KEY = "config"
"""The flag that names the file, which the file cannot contain."""


State = tuple[int, int, int] | str
"""The modification time, identity and size of the file; or why they cannot be determined."""


class BadConfiguration(usage.UsageError):
    """The file cannot be read or used; the message names it, the key and what is expected."""


def with_path(path: Path, error: Exception) -> str:
    """Return an error message that begins with the file.

    An error about several values that conflict names only their flags.
    """
    sentence = str(error)
    return sentence if sentence.startswith(f"{path}: ") else f"{path}: {sentence}"


def state_of(path: Path) -> State:
    """Return a value that changes when the file changes."""
    try:
        status = os.stat(path)
    except OSError as error:
        return str(error.strerror)
    return status.st_mtime_ns, status.st_ino, status.st_size


def read_file(path: Path, table: Sequence[Entry]) -> Source:
    """Return the values that the file has for ``table``; raise :class:`BadConfiguration`."""
    parsed = parse_file(path)
    entries = {entry.name: entry for entry in table if entry.name != OWN_KEY}
    return {name: _flag_value(path, name, value, entries) for name, value in parsed.items()}


def parse_file(path: Path) -> dict[str, object]:
    """Return the values of a file by key; raise :class:`BadConfiguration`."""
    try:
        content = read_plain(path, MAX_BYTES).removeprefix(BOM_UTF8)
    except OSError as error:
        raise BadConfiguration(f"{path}: it cannot be read: {error.strerror}") from None
    if not content.strip():
        # A full disk, a power loss or an editor that writes in place leaves an empty file. It must
        # not lift the restrictions that the file had.
        raise BadConfiguration(
            f"{path}: it is empty, perhaps because it is being written or the disk was full; for"
            " no settings at all put a comment into it"
        )
    # Imported here because it takes memory, and most programs have no file.
    import tomllib

    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadConfiguration(f"{path}: it is not UTF-8 from byte {error.start} on") from None
    # A number with too many digits for Python raises a ValueError that is no TOMLDecodeError.
    except (ValueError, RecursionError) as error:
        raise BadConfiguration(f"{path}: it is not TOML: {error}") from None


def _flag_value(path: Path, name: str, value: object, entries: dict[str, Entry]) -> FlagValue:
    entry = entries.get(name)
    if entry is None:
        raise BadConfiguration(f"{path}: {_key(name)}: unknown key: {_meant(name, entries)}")
    source = f"{path}: {name}"
    match entry:
        case Switch():
            if not isinstance(value, bool):
                raise BadConfiguration(f"{source}: write true or false, not {_shown(value)}")
            return FlagValue((ON if value else OFF,), source)
        case Repeated():
            if not isinstance(value, list) or None in (texts := [_text(each) for each in value]):
                raise BadConfiguration(
                    f'{source}: write an array of texts, as {name} = ["..."], not {_shown(value)}'
                )
            return FlagValue(tuple(text for text in texts if text is not None), source)
        case Flag():
            text = _text(value)
            if text is None:
                raise BadConfiguration(f"{source}: write one text or number, not {_shown(value)}")
            return FlagValue((text,), source)


def _meant(name: str, entries: dict[str, Entry]) -> str:
    """Return the fix for an unknown key."""
    if name == OWN_KEY:
        return "a file cannot name another one"
    return did_you_mean(name.replace("_", "-"), entries) or "keys are the names of the flags"


def _key(name: str) -> str:
    """Return a key as TOML spells it: some must be quoted."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _text(value: object) -> str | None:
    """Return the text of a value for a flag, or ``None`` if no flag can have such a value."""
    match value:
        case bool():
            return ON if value else OFF
        case int() if value.bit_length() > _MAX_BITS:
            return None
        case str() if "\0" in value:
            return None
        case int() | float() | str():
            return str(value)
    return None


def _shown(value: object) -> str:
    """Return the type of a value, in the terms of TOML."""
    match value:
        case bool():
            return ON if value else OFF
        case str():
            return "a text with a zero byte" if "\0" in value else "a text"
        case int() if value.bit_length() > _MAX_BITS:
            return f"a number of more than {_MAX_BITS} bits"
        case int() | float():
            return "a number"
        case list():
            return "an array" if all(_text(each) is not None for each in value) else "such an array"
        case dict():
            return "a table"
    return "a date or time"
