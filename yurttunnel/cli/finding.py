"""Finds the process that a command is about: by its state directory, or because it runs here."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from yurttunnel.cli.client import FOUND_SECONDS, CommandFailed, Process
from yurttunnel.ops.admin.service import SOCKET
from yurttunnel.ops.usual_directories import SERVICE_DIRECTORIES

_UNIX_SOCKETS = Path("/proc/net/unix")
"""proc(5): the Unix sockets of this network namespace, with their paths behind seven fields."""


def running(unix_sockets: Path = _UNIX_SOCKETS) -> list[Process]:
    """Return the processes on this machine that this user, or root, has started, by their paths."""
    paths = {Path(path) for path in _paths(unix_sockets) if path.endswith(f"/{SOCKET}")}
    return [Process(path, FOUND_SECONDS) for path in sorted(paths) if _may_ask(path)]


def one(state_dir: Path | None, program: str, processes: Sequence[Process]) -> Process:
    """Return the process in ``state_dir``, else the only one of ``program`` of ``processes``.

    Raises :class:`CommandFailed`.
    """
    if state_dir is not None:
        return Process((state_dir / SOCKET).absolute())
    found = [each for each in processes if program_of(each) == program]
    if len(found) == 1:
        return Process(found[0].path)
    if not found:
        raise CommandFailed(
            f"no {program} of yours runs on this machine: start one (yurttunnel {program} --help"
            " shows how), name its directory with --state-dir, or run this as its user or root"
        )
    places = ", ".join(str(each.path.parent) for each in found)
    raise CommandFailed(f"more than one {program} runs here: choose one with --state-dir: {places}")


def program_of(process: Process) -> str:
    """Return what a process is, such as ``server``; empty where none answers."""
    try:
        program = str(process.get("/v1/process").get("program", ""))
    except CommandFailed:
        return ""
    return program.removeprefix("yurttunnel-").removeprefix("yurt")


def _paths(unix_sockets: Path) -> Iterator[str]:
    try:
        lines = unix_sockets.read_text("utf-8", "surrogateescape").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8:
            yield fields[7]


def _may_ask(path: Path) -> bool:
    """Return whether it is of this user or root, or, for root, that of a service of systemd."""
    try:
        status = os.lstat(path)
    except OSError:
        return False  # Of another user, or in another container.
    trusted = status.st_uid in (0, os.geteuid()) or (
        os.geteuid() == 0 and any(path.is_relative_to(each) for each in SERVICE_DIRECTORIES)
    )
    return stat.S_ISSOCK(status.st_mode) and trusted
