"""The subject of ``--diagnose``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

OwnLines = Callable[[bytes], list[bytes]]
"""Selects the lines of a program's own chains from the output of ``iptables-save``."""


class Subject(NamedTuple):
    """The process to diagnose, as described by its own command line.

    ``directories`` and ``files`` are listed. ``secret_flags`` are the flags whose values are
    secrets (``--join-token``), ``secrets`` those values. ``own_lines`` selects the lines of the
    program's own firewall rules, ``None`` if it makes none, and ``own_table`` is the name of its
    tables of nftables, or the part of it before a hyphen.
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
