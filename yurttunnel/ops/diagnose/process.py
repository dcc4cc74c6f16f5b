"""The kernel's view of the running process (proc(5)), which is found by its meta port."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from yurttunnel.ops.diagnose.bundle import Part
from yurttunnel.ops.diagnose.redaction import redacted_arguments

PROC = Path("/proc")

NEAR_LIMIT = 0.8
"""The share of the limit of file descriptors that counts as a problem."""

_LISTEN = "0A"
"""The state in /proc/net/tcp: TCP_LISTEN of the kernel's net/tcp_states.h."""

_STATE = re.compile(r"^State:\s+(\w)", re.MULTILINE)

_WRONG_STATES = {
    "D": "waits for the kernel, such as for a disk",
    "T": "is stopped (SIGSTOP): kill -CONT lets it go on",
    "t": "is stopped by a debugger",
}

_DESCRIPTOR_LIMIT = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)


def process_part(
    program: str, host: str, port: int, secret_flags: tuple[str, ...], proc: Path = PROC
) -> Part:
    """Describe the process that listens on the meta port."""
    inodes = set(_listening_inodes(host, port, proc))
    if not inodes:
        return Part("process", f"no socket of this machine listens on {host} port {port}\n")
    pid = _owner(inodes, proc)
    if pid is None:
        return Part(
            "process",
            f"a socket listens on {host} port {port}, but its process cannot be seen: it is of"
            " another user, or another container\n",
            (f"The process behind port {port} could not be seen: run this as its user or root.",),
        )
    directory = proc / str(pid)
    limits = _read(directory / "limits")
    descriptors = _descriptors(directory)
    limit = _DESCRIPTOR_LIMIT.search(limits)
    arguments = _read(directory / "cmdline").split("\0")[:-1]
    status = _read(directory / "status")
    lines = [
        f"pid: {pid}",
        f"command: {shlex.join(redacted_arguments(arguments, secret_flags))}",
        f"descriptors: {sum(descriptors.values())} of {limit[1] if limit else 'unknown'}",
        *(f"  {kind}: {count}" for kind, count in sorted(descriptors.items())),
        f"\nstatus:\n{status}",
        *(f"\n{name}:\n{_read(directory / name)}" for name in ("cgroup", "wchan")),
        f"\nlimits:\n{limits}",
    ]
    return Part("process", "\n".join(lines), tuple(_findings(program, status, descriptors, limit)))


def _findings(
    program: str, status: str, descriptors: Counter[str], limit: re.Match[str] | None
) -> Iterator[str]:
    state = _STATE.search(status)
    if state and state[1] in _WRONG_STATES:
        yield f"{program} {_WRONG_STATES[state[1]]}."
    used = sum(descriptors.values())
    if limit and limit[1] != "unlimited" and used > NEAR_LIMIT * int(limit[1]):
        yield (
            f"{program} has {used} of {limit[1]} descriptors open: raise its limit (LimitNOFILE,"
            " ulimit -n)."
        )


def _listening_inodes(host: str, port: int, proc: Path) -> Iterator[str]:
    desired = ip_address(host)
    for table in ("tcp", "tcp6"):
        for line in _read(proc / "net" / table).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN:
                continue
            address, _, number = fields[1].partition(":")
            local = _address(address)
            if int(number, 16) == port and (local == desired or local.is_unspecified):
                yield fields[9]


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address in the kernel's form: words of 32 bits in the byte order of this machine."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _owner(inodes: set[str], proc: Path) -> int | None:
    desired = {f"socket:[{inode}]" for inode in inodes}
    for directory in proc.iterdir():
        if directory.name.isdecimal() and desired & set(_links(directory)):
            return int(directory.name)
    return None


def _descriptors(directory: Path) -> Counter[str]:
    """Count open descriptors by kind: socket, pipe, anon_inode, or file."""
    return Counter(
        "file" if link.startswith("/") else link.partition(":")[0] for link in _links(directory)
    )


def _links(directory: Path) -> Iterator[str]:
    try:
        names = os.listdir(directory / "fd")
    except OSError:
        return  # The process belongs to another user, or has ended.
    for name in names:
        with contextlib.suppress(OSError):
            yield os.readlink(directory / "fd" / name)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "backslashreplace")
    except OSError as error:
        return f"unknown ({error.strerror})\n"
