"""The environment of a measurement: the machine and the versions."""

from __future__ import annotations

import datetime
import os
import platform
import ssl
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography.hazmat.backends.openssl import backend

from benchmarks.load import SOURCE, go_compiler
from benchmarks.nginx import Nginx

PACKAGES = ("yurttunnel", "Twisted", "pyOpenSSL", "cryptography", "httptools")


def facts(nginx: Nginx | None) -> dict[str, Any]:
    """Return the time, the machine, the versions and the commit."""
    peers = (
        {}
        if nginx is None
        else {"nginx": nginx.versions, "go": _output([go_compiler(), "version"])}
    )
    return {
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "processors": os.cpu_count(),
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
            "load_before": os.getloadavg()[0],
        },
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
            "openssl": backend.openssl_version_text(),
            "openssl_of_python": ssl.OPENSSL_VERSION,
            **peers,
        },
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Return the commit, with a mark if files are modified; empty outside a checkout."""
    return _output(["git", "-C", str(SOURCE), "describe", "--always", "--dirty", "--abbrev=12"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
