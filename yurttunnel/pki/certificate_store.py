"""Storage of certificates across restarts.

Without a cluster, a certificate is one file in the state directory, or a pair of files for other
programs. In a cluster, the layout is that of yurttunnel 1.2 and of kubelets (``FileStore`` of
k8s.io/client-go/util/certificate):

========================================  ==================================================
``<prefix>-YYYY-MM-DD-hh-mm-ss.pem``      the certificate, its chain, and its key (0600)
``<prefix>-current.pem``                  a symbolic link to the one in use
``<prefix>-updated.pem``                  the new link, before it is renamed to the current one
========================================  ==================================================

Each store is for one certificate, so certificates cannot be confused.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.pki.credentials import (
    BadCredentials,
    PrivateKey,
    certificates_from_pem,
    certificates_to_pem,
    key_from_pem,
    key_to_pem,
)
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.issuer import IssuedCertificate

MAX_FILES = 3
"""The maximum number of dated files, the current one included."""

_DATE = r"\d{4}(?:-\d\d){5}"
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----\s*", re.DOTALL)

_log = Logger()


def open_certificate_directory(path: Path) -> StateDirectory:
    """Open the directory of ``--cert-dir``, and create it (0700) if it does not exist.

    Permissions by which others can only list or enter it, as yurttunnel 1.2 created it, are
    removed. Raises :class:`StateError` if others may have written files into it. A directory that
    cannot be created or written is no error: its content is read if possible, and saving reports
    the problem.
    """
    with contextlib.suppress(OSError):
        _remove_read_permissions(path)
    try:
        return StateDirectory.open(path)
    except StateError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        _log.warn("{error}; certificates are requested again after a restart", error=error)
        return StateDirectory(path)


def _remove_read_permissions(path: Path) -> None:
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    others = mode & 0o077
    if (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and others
        and not others & 0o022
    ):
        os.chmod(path, mode & ~0o077)


class CertificateStore:
    """Stores a certificate across restarts, with its key and chain in one file (0600)."""

    def __init__(self, directory: StateDirectory, name: str) -> None:
        self._directory = directory
        self._name = name

    @property
    def path(self) -> Path:
        """The path of the certificate's file."""
        return self._directory.path / self._name

    def load(self) -> IssuedCertificate | None:
        """Return the certificate saved last, ``None`` without one; raises ``StateError``."""
        content = self._read()
        try:
            return None if content is None else _parse(content)
        except BadCredentials as error:
            raise StateError(f"{self.path}: {error}: restore or remove it") from error

    def save(self, issued: IssuedCertificate) -> None:
        """Replace the stored certificate; raises :class:`StateError`.

        The replacement is atomic: if the process dies, the complete old or new certificate is
        stored.
        """
        certificates = certificates_to_pem([issued.certificate, *issued.chain])
        self._directory.write(self._name, key_to_pem(issued.key) + certificates)

    def _read(self) -> bytes | None:
        return self._directory.read(self._name, secret=True)


class PairStore(CertificateStore):
    """Stores the certificate in one file, which is not secret, and its key in another."""

    def __init__(self, directory: StateDirectory, name: str, key_name: str) -> None:
        super().__init__(directory, name)
        self._key_name = key_name

    def save(self, issued: IssuedCertificate) -> None:
        """Save both; a key and a certificate that do not match are rejected by ``load``."""
        self._directory.write(self._key_name, key_to_pem(issued.key))
        self._directory.write(self._name, certificates_to_pem([issued.certificate]))

    def _read(self) -> bytes | None:
        key = self._directory.read(self._key_name, secret=True)
        certificate = self._directory.read(self._name)
        return None if key is None or certificate is None else key + certificate


class DatedStore(CertificateStore):
    """Stores the latest certificates in files whose names begin with ``prefix``, as kubelets do."""

    def __init__(self, clock: IReactorTime, directory: StateDirectory, prefix: str) -> None:
        super().__init__(directory, f"{prefix}-current.pem")
        self._clock = clock
        self._prefix = prefix
        self._updated = f"{prefix}-updated.pem"
        self._dated = re.compile(rf"{re.escape(prefix)}-{_DATE}\.pem")

    def save(self, issued: IssuedCertificate) -> None:
        """Make it the current certificate, and remove the oldest; raises :class:`StateError`."""
        name = f"{self._prefix}-{utc_now(self._clock):%Y-%m-%d-%H-%M-%S}.pem"
        self._directory.write(name, _to_pem(issued))
        path = self._directory.path
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path / self._updated)
            os.symlink(name, path / self._updated)
            os.replace(path / self._updated, self.path)
        except OSError as error:
            self._discard(name)
            reason = (error.strerror or "failed").lower()
            raise StateError(f"{self.path} cannot be replaced ({reason}): check it") from error
        self._directory.sync()
        self._prune(name)

    def _read(self) -> bytes | None:
        path = self._directory.path
        try:
            if not os.path.lexists(self.path) and (path / self._updated).is_symlink():
                # The process or the machine died at a point where version 1.2 leaves no current
                # link.
                os.replace(path / self._updated, self.path)
            name = os.readlink(self.path)
        except FileNotFoundError:
            return None
        except OSError:
            # In a copy of the directory it may be a plain file; ``read`` reports everything else.
            return self._directory.read(self._name, secret=True)
        # The link may be absolute, and the directory mounted elsewhere than when it was created.
        content = self._directory.read(Path(name).name, secret=True)
        if content is None:
            raise StateError(f"{self.path} is a link to {name}, which does not exist")
        return content

    def _discard(self, name: str) -> None:
        """Remove a file that did not become the current one; the next one has another name."""
        with contextlib.suppress(OSError, StateError):
            if not self.path.is_symlink() or Path(os.readlink(self.path)).name != name:
                self._directory.remove(self._updated)
                self._directory.remove(name)

    def _prune(self, current: str) -> None:
        dated = [name for name in self._directory.names() if self._dated.fullmatch(name)]
        others = sorted(name for name in dated if name != current)
        for name in others[: -(MAX_FILES - 1)]:
            self._directory.remove(name)


def _to_pem(issued: IssuedCertificate) -> bytes:
    key = issued.key.private_bytes(
        serialization.Encoding.PEM,
        # "EC PRIVATE KEY" (RFC 5915), as version 1.2 writes it.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    return certificates_to_pem([issued.certificate, *issued.chain]) + key


def _parse(content: bytes) -> IssuedCertificate:
    blocks = [(match[1], match[0]) for match in _BLOCK.finditer(content)]
    certificates = b"".join(block for kind, block in blocks if kind == b"CERTIFICATE")
    keys = b"".join(block for kind, block in blocks if kind.endswith(b"PRIVATE KEY"))
    if not certificates:
        raise BadCredentials("it contains no certificate")
    if not keys:
        raise BadCredentials("it contains no private key")
    certificate, *chain = certificates_from_pem(certificates)
    key = key_from_pem(keys)
    if not _keys_match(key, certificate):
        raise BadCredentials("the key does not belong to the certificate")
    return IssuedCertificate(key, certificate, tuple(chain))


def _keys_match(key: PrivateKey, certificate: x509.Certificate) -> bool:
    try:
        return key.public_key() == certificate.public_key()
    except ValueError as error:
        raise BadCredentials(f"the certificate is malformed: {error}") from error
