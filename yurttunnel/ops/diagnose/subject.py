"""What ``--diagnose`` looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

OwnLines = Callable[[bytes], list[bytes]]
"""Picks the lines of a program's own chains out of the output of ``iptables-save``."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Which process is looked at, by the same command line as its own.

    ``directories`` are listed, ``files`` beside them, too. ``secret_flags`` are those whose
    values are secrets (``--join-token``), ``secrets`` those values. ``own_lines`` picks the
    lines of the program's own firewall rules, ``None`` where it makes none, and ``own_table`` is
    the name of its tables of nftables, or what stands before a hyphen in it.
    """

    program: str
    meta_host: str
    meta_port: int
    directories: tuple[Path, ...]
    files: tuple[Path, ...]
    secret_flags: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    own_lines: OwnLines | None = None
    own_table: str = ""
