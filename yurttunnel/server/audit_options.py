"""The flags of the audit log, which have the names and the meaning of kube-apiserver's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.audit_sinks import AuditSettings
from yurttunnel.ops.options import CommandOptions

DEFAULT_MAX_SIZE = 100
"""Megabytes."""

DEFAULT_MAX_BACKUP = 10

_MEGABYTE = 1024 * 1024
_LARGEST = 1_000_000

AUDIT_FLAGS = [
    ["audit-log-path", None, None, "File (mode 0600) for the audit log: one line of JSON for each "
     "stream and each request to a kubelet when it has ended or was refused, which says who asked "
     "for what, but nothing of what passed. - is standard output. [default: there is none]"],
    ["audit-log-maxsize", None, None, "Megabytes that the file of --audit-log-path may have before "
     f"it is renamed and a new one is begun. [default: {DEFAULT_MAX_SIZE}]"],
    ["audit-log-maxbackup", None, None, "How many of the renamed files are kept, 0 for all. "
     f"[default: {DEFAULT_MAX_BACKUP}]"],
]  # fmt: skip


def audit_settings(options: CommandOptions[Any]) -> AuditSettings | None:
    """Give where the audit log goes, ``None`` without one; raises ``UsageError``."""
    path = options.optional_value("audit-log-path", _file, None)
    if path is None:
        _refuse_without_file(options, "it needs --audit-log-path FILE: add that")
        return None
    if path == Path("-"):
        _refuse_without_file(options, "standard output is not rotated")
        return AuditSettings(None, 0, 0)
    megabytes = options.optional_value("audit-log-maxsize", _number_from(1), DEFAULT_MAX_SIZE)
    backups = options.optional_value("audit-log-maxbackup", _number_from(0), DEFAULT_MAX_BACKUP)
    return AuditSettings(path, megabytes * _MEGABYTE, backups)


def _refuse_without_file(options: CommandOptions[Any], reason: str) -> None:
    for flag in ("audit-log-maxsize", "audit-log-maxbackup"):
        if options[flag] is not None:
            raise usage.UsageError(f"--{flag} has no effect: {reason}, or leave --{flag} out")


def _file(text: str) -> Path:
    path = flags.path(text)
    if not path.name:
        raise ValueError(f"{text!r} is a directory: write the path of a file")
    return path


def _number_from(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= _LARGEST):
            raise ValueError(f"{text!r} is no whole number from {least} to {_LARGEST}")
        return int(text)

    return parse
