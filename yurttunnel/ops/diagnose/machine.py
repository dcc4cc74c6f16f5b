"""The machine of the program: versions, kernel, clock, ports, and the program's firewall rules."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from yurttunnel.ops.diagnose.bundle import Part
from yurttunnel.ops.diagnose.subject import OwnLines
from yurttunnel.ops.programs import SYSTEM_PATH

LIBRARIES = (
    "yurttunnel",
    "Twisted",
    "pyOpenSSL",
    "cryptography",
    "service-identity",
    "httptools",
    "zope.interface",
    "kubernetes",
    "wsproto",
    "PyYAML",
)

_SETTINGS = (
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/tcp_keepalive_time",
    "net/core/somaxconn",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "fs/file-nr",
)

_TIME_ERROR = 5
"""The return value of adjtimex(2) while the clock is not synchronized."""

_PROGRAM_SECONDS = 10.0

_WITH_OWN_RULES = ("nat", "filter")
"""Tables of iptables: the server has rules in the first one, the service proxy in both."""


def versions_part() -> Part:
    """Return the installed versions: the running process may be older."""
    lines = [
        f"python: {sys.version}",
        f"openssl: {ssl.OPENSSL_VERSION}",
        f"platform: {platform.platform()}",
        f"user: {os.geteuid()}, groups {os.getgroups()}",
        *(f"{name}: {_version(name)}" for name in LIBRARIES),
    ]
    return Part("versions", "".join(f"{line}\n" for line in lines))


def machine_part(proc: Path = Path("/proc")) -> Part:
    """Return the kernel's settings and load, and whether the clock is synchronized."""
    lines = [f"{name}: {_setting(proc / 'sys' / name)}" for name in _SETTINGS]
    lines += [f"{name}: {_setting(proc / name)}" for name in ("loadavg", "uptime")]
    lines += [f"processors: {os.cpu_count()}", f"time: {time.strftime('%FT%TZ', time.gmtime())}"]
    synchronised = _clock_synchronised()
    lines.append(f"clock synchronised: {synchronised}")
    findings = []
    if synchronised == "no":
        findings.append(
            "Nothing sets the clock of this machine (adjtimex): certificates and tokens fail when"
            " it is wrong; use chrony, ntpd or systemd-timesyncd."
        )
    return Part("machine", "".join(f"{line}\n" for line in lines), tuple(findings))


def firewall_part(own_lines: OwnLines, own_table: str = "") -> Part:
    """Return the program's own rules in each of the kernel's firewalls that is in use.

    ``own_table`` is the name of its tables of nftables, if it has any; some continue after a
    hyphen.
    """
    lines = [*_rules(own_lines), *(_tables(own_table) if own_table else ())]
    return Part("firewall", "".join(f"{line}\n" for line in lines))


def _rules(own_lines: OwnLines) -> Iterator[str]:
    for base, tables in (("iptables", "ip_tables_names"), ("ip6tables", "ip6_tables_names")):
        for table in _WITH_OWN_RULES:
            yield from _program_output(own_lines, f"{base}-nft-save", "-t", table)
            # Listing a table of the legacy firewall would create it.
            if table in _setting(Path("/proc/net") / tables).split():
                yield from _program_output(own_lines, f"{base}-legacy-save", "-t", table)


def _tables(name: str) -> Iterator[str]:
    own = re.compile(rf"table (\S+) ({re.escape(name)}(?:-\S+)?)")
    tables: list[re.Match[str]] = []

    def find(text: bytes) -> list[bytes]:
        lines = text.decode("utf-8", "backslashreplace").splitlines()
        tables.extend(filter(None, map(own.fullmatch, lines)))
        return [table[0].encode() for table in tables]

    yield from _program_output(find, "nft", "list", "tables")
    for table in tables:
        yield from _program_output(bytes.splitlines, "nft", "-n", "list", "table", *table.groups())


def _program_output(own_lines: OwnLines, program: str, *arguments: str) -> Iterator[str]:
    yield f"{program} {' '.join(arguments)}:"
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if path is None:
        yield "    it is not installed"
        return
    try:
        finished = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"    {error}"
        return
    if finished.returncode != 0:
        message = finished.stderr.decode("utf-8", "backslashreplace").strip()
        yield f"    exit status {finished.returncode}: {message}"
    for line in own_lines(finished.stdout):
        yield f"    {line.decode('utf-8', 'backslashreplace')}"


def _clock_synchronised() -> str:
    """Return whether the kernel's clock is synchronized (adjtimex(2)): yes, no or unknown."""
    # Larger than struct timex on any platform; all zero changes nothing.
    buffer = ctypes.create_string_buffer(1024)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return "unknown"
    if state < 0:
        return "unknown"
    return "no" if state == _TIME_ERROR else "yes"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _setting(path: Path) -> str:
    try:
        return " ".join(path.read_text("utf-8", "backslashreplace").split())
    except OSError as error:
        return f"unknown ({error.strerror})"
