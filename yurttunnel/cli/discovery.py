"""Finds the process for a command: by its state directory, or among those on this machine."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from yurttunnel.cli.client import DISCOVERY_SECONDS, CommandFailed, NoResponse, Process
from yurttunnel.ops.admin_socket import SOCKET
from yurttunnel.ops.default_directories import SERVICE_DIRECTORIES

_UNIX_SOCKETS = Path("/proc/net/unix")
"""proc(5): the Unix sockets of this network namespace; the path follows seven fields."""


def running_processes(unix_sockets: Path = _UNIX_SOCKETS) -> list[Process]:
    """Return the processes of this user, or of root, on this machine, sorted by path."""
    paths = {Path(path) for path in _socket_paths(unix_sockets) if path.endswith(f"/{SOCKET}")}
    return [Process(path, DISCOVERY_SECONDS) for path in sorted(paths) if _is_trusted(path)]


def select_process(state_dir: Path | None, program: str, processes: Sequence[Process]) -> Process:
    """Return the process in ``state_dir``, else the only one of ``program`` among ``processes``.

    Raises :class:`CommandFailed`.
    """
    if state_dir is not None:
        return process_in(state_dir)
    found, unresponsive = _by_program(processes, program)
    if len(found) == 1:
        for each in unresponsive.values():
            print(f"skipped: {each}", file=sys.stderr)
        return Process(found[0].path)
    if not found and unresponsive:
        raise CommandFailed(
            f"what runs in {_directories(unresponsive)} does not respond: if that is the {program},"
            " name it with --state-dir"
        )
    if not found:
        raise CommandFailed(
            f"no {program} of this user runs on this machine: start one (yurttunnel {program}"
            " --help shows how), name its directory with --state-dir, or run this as its user or"
            " root"
        )
    raise CommandFailed(
        f"more than one {program} runs here: choose one with --state-dir: {_directories(found)}"
    )


def process_in(state_dir: Path) -> Process:
    """Return the process with that state directory; raise :class:`CommandFailed`."""
    try:
        return Process((state_dir / SOCKET).absolute())
    except FileNotFoundError:
        raise CommandFailed(
            f"{state_dir} is below the working directory, which was removed: name the whole path"
        ) from None


def program_of(process: Process) -> str:
    """Return the program of a process, such as ``server``; empty if it does not run.

    Raises :class:`NoResponse`.
    """
    try:
        program = str(process.get("/v1/process").get("program", ""))
    except NoResponse:
        raise
    except CommandFailed:
        return ""
    return program.removeprefix("yurttunnel-").removeprefix("yurt")


def _by_program(
    processes: Sequence[Process], program: str
) -> tuple[list[Process], dict[Process, NoResponse]]:
    """Return the processes of ``program``, and those that do not respond."""
    found: list[Process] = []
    unresponsive: dict[Process, NoResponse] = {}
    for each in processes:
        try:
            if program_of(each) == program:
                found.append(each)
        except NoResponse as error:
            unresponsive[each] = error
    return found, unresponsive


def _directories(processes: Iterable[Process]) -> str:
    return ", ".join(str(each.path.parent) for each in processes)


def _socket_paths(unix_sockets: Path) -> Iterator[str]:
    try:
        lines = unix_sockets.read_text("utf-8", "surrogateescape").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8:
            yield fields[7]


def _is_trusted(path: Path) -> bool:
    """Return whether this user or root owns it, or, for root, whether it is a systemd service's."""
    try:
        status = os.lstat(path)
    except OSError:
        return False  # It belongs to another user, or is in another container.
    trusted = status.st_uid in (0, os.geteuid()) or (
        os.geteuid() == 0 and any(path.is_relative_to(each) for each in SERVICE_DIRECTORIES)
    )
    return stat.S_ISSOCK(status.st_mode) and trusted
