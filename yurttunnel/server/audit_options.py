"""The flags of the audit log, with the names and meanings of kube-apiserver's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, flags_in
from yurttunnel.ops.options import CommandOptions
from yurttunnel.server.audit_sinks import AuditSettings

DEFAULT_MAX_SIZE = 100
"""Megabytes."""

DEFAULT_MAX_BACKUP = 10

_MEGABYTE = 1024 * 1024
_MAX_NUMBER = 1_000_000


def _file(text: str) -> Path:
    path = flags.path(text)
    if not path.name:
        raise ValueError(f"{text!r} is a directory: write the path of a file")
    return path


def _number_of_at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and minimum <= int(text) <= _MAX_NUMBER):
            raise ValueError(f"{text!r} is not a whole number from {minimum} to {_MAX_NUMBER}")
        return int(text)

    return parse


AUDIT_LOG_PATH = Flag(
    "audit-log-path",
    Group.OPERATION,
    _file,
    "File (mode 0600) for the audit log. It gets one line of JSON when a stream or a request to a"
    " kubelet ends or is rejected: who requested what, but none of the data. - is standard output."
    " [default: no audit log]",
)

AUDIT_LOG_MAXSIZE = Flag(
    "audit-log-maxsize",
    Group.OPERATION,
    _number_of_at_least(1),
    "Size in megabytes at which the file of --audit-log-path is rotated. [default:"
    f" {DEFAULT_MAX_SIZE}]",
)

AUDIT_LOG_MAXBACKUP = Flag(
    "audit-log-maxbackup",
    Group.OPERATION,
    _number_of_at_least(0),
    f"Number of rotated files to keep, 0 for all. [default: {DEFAULT_MAX_BACKUP}]",
)

AUDIT_TABLE = flags_in(globals())


def audit_settings(options: CommandOptions[Any]) -> AuditSettings | None:
    """Return the destination of the audit log, ``None`` without one; raises ``UsageError``."""
    path = options.optional_value(AUDIT_LOG_PATH, None)
    if path is None:
        _refuse_without_file(options, "it needs --audit-log-path FILE: add that")
        return None
    if path == Path("-"):
        _refuse_without_file(options, "standard output is not rotated")
        return AuditSettings(None, 0, 0)
    megabytes = options.optional_value(AUDIT_LOG_MAXSIZE, DEFAULT_MAX_SIZE)
    backups = options.optional_value(AUDIT_LOG_MAXBACKUP, DEFAULT_MAX_BACKUP)
    return AuditSettings(path, megabytes * _MEGABYTE, backups)


def _refuse_without_file(options: CommandOptions[Any], reason: str) -> None:
    for flag in (AUDIT_LOG_MAXSIZE, AUDIT_LOG_MAXBACKUP):
        if options[flag.name] is not None:
            raise usage.UsageError(
                f"--{flag.name} has no effect: {reason}, or leave --{flag.name} out"
            )
