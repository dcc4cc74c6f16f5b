"""The files of a program: their permissions, and the expiry of certificates among them.

Files are only searched for certificates. Their other contents, above all keys, are not collected.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from yurttunnel.ops.clocks import timestamp
from yurttunnel.ops.diagnose.bundle import Part

SOON = datetime.timedelta(days=30)
"""The remaining validity below which a certificate of years is reported; other certificates are
reported in the last tenth of their lifetime."""

MAX_FILES = 1000
_MAX_BYTES = 1024 * 1024
"""The maximum size of a file that is searched."""

MIN_FREE_BYTES = 64 * 1024 * 1024

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SECRET = re.compile(
    # A key, or a token or key in a kubeconfig, with its value there or in the next lines.
    rb"PRIVATE KEY-----|\b(?:token|client-key-data)[\"']?:[ \t]*[\"']?[\w|>+/=]"
)
_SECRET_NAMES = ("join-token",)

_OLD_NAME = re.compile(r"-\d{4}(?:-\d\d){5}\.pem$")
"""A certificate with its date: earlier ones are kept, and a link leads to the one in use."""


def files_part(directories: Iterable[Path], files: Iterable[Path], now: datetime.datetime) -> Part:
    """Describe the contents of ``directories``, and single ``files``; ``now`` has a timezone.

    For links among ``files`` the target is described, too.
    """
    lines: list[str] = []
    findings: list[str] = []
    for directory in directories:
        if os.path.exists(directory) and not os.path.isdir(directory):
            findings.append(f"{directory} is not a directory.")
        findings += _disk(directory)
        refused: list[OSError] = []
        for path in _walk(directory, refused.append):
            _examine(path, now, lines, findings)
        for error in refused:
            _report_unreadable(error.filename, error, lines, findings)
    for path in files:
        _examine(path, now, lines, findings)
        if os.path.islink(path):
            # A file that a flag names is in use, wherever a link leads.
            _examine(Path(os.path.realpath(path)), now, lines, findings)
    return Part("files", "".join(f"{line}\n" for line in lines), tuple(findings))


def _examine(path: Path, now: datetime.datetime, lines: list[str], findings: list[str]) -> None:
    try:
        status = os.lstat(path)
        line = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
        line += f" {status.st_size:9} {timestamp(status.st_mtime)} {path}"
        if stat.S_ISLNK(status.st_mode):
            line += f" -> {os.readlink(path)}"
        lines.append(line)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return
        content = _content(path)
    except OSError as error:
        _report_unreadable(path, error, lines, findings)
        return
    secret = _SECRET.search(content) or path.name in _SECRET_NAMES
    if secret and status.st_mode & 0o077:
        findings.append(f"{path} holds a secret and is open to other users: chmod 0600 it.")
    for block in _CERTIFICATE.findall(content):
        try:
            certificate = x509.load_pem_x509_certificate(block)
        except ValueError as error:
            lines.append(f"    certificate: it cannot be read ({error})")
            continue
        lines += (f"    {text}" for text in _describe(certificate))
        if not _is_old(path):
            findings += _problems(path, certificate, now)


def _describe(certificate: x509.Certificate) -> Iterator[str]:
    yield f"certificate: {certificate.subject.rfc4514_string()}"
    yield f"  issuer: {certificate.issuer.rfc4514_string()}, serial {certificate.serial_number:x}"
    yield f"  good from {certificate.not_valid_before_utc} to {certificate.not_valid_after_utc}"
    yield f"  sha256: {certificate.fingerprint(hashes.SHA256()).hex()}"


def _problems(path: Path, certificate: x509.Certificate, now: datetime.datetime) -> Iterator[str]:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    name = certificate.subject.rfc4514_string() or "without a name"
    what = f"The certificate {name} in {path}"
    if now < begin:
        yield f"{what} is good only from {begin} on: perhaps this machine's clock is behind."
    elif now >= end:
        yield f"{what} has expired on {end}."
    elif end - now < min(SOON, (end - begin) / 10):
        yield f"{what} ends on {end}, and has not been renewed."


def _is_old(path: Path) -> bool:
    """Return whether ``path`` is an earlier certificate that no link leads to."""
    if not _OLD_NAME.search(path.name):
        return False
    links = (each for each in path.parent.iterdir() if each.is_symlink())
    return all(Path(os.readlink(each)).name != path.name for each in links)


def _content(path: Path) -> bytes:
    # Do not follow a link or open a pipe that has meanwhile replaced the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES)


def _report_unreadable(
    path: Path | str, error: OSError, lines: list[str], findings: list[str]
) -> None:
    lines.append(f"{path}: {error.strerror}")
    if not isinstance(error, FileNotFoundError):
        findings.append(f"{path} could not be read ({error.strerror}).")


def _walk(directory: Path, refused: Callable[[OSError], object]) -> Iterator[Path]:
    """Yield a directory and its contents, up to :data:`MAX_FILES`; links are not followed.

    ``refused(error)`` is called for directories that cannot be read.
    """
    yield directory
    if not os.path.isdir(directory):
        return
    count = 0
    for root, directories, names in os.walk(directory, onerror=refused):
        directories.sort()
        for name in sorted([*directories, *names]):
            count += 1
            if count > MAX_FILES:
                return
            yield Path(root, name)


def _disk(directory: Path) -> Iterator[str]:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return  # The list of files says that it does not exist.
    free = disk.f_bavail * disk.f_frsize
    if free < MIN_FREE_BYTES:
        yield f"Only {free / 2**20:.0f} MiB are free where {directory} is."
