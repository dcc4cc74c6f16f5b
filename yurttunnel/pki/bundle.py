"""A file of authorities that somebody else replaces while the program runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.credentials import BadCredentials, certificates_from_pem

LOOK_INTERVAL = 10.0
"""Seconds between two looks at the file."""

Authorities = tuple[x509.Certificate, ...]


class BadBundle(Exception):
    """The file cannot be read or holds no certificates; one line with its path says why."""


class AuthorityFile(Reconciler):
    """Calls ``use(authorities)`` when the file at ``path`` has changed.

    A file that is missing or broken changes nothing: ``problem`` says what is wrong, and is
    ``None`` when all is well. Raises :class:`BadBundle` when it is so from the beginning.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, path: Path, use: Callable[[Authorities], None]) -> None:
        super().__init__(clock, LOOK_INTERVAL, f"reading {path}", self._look)
        self._path = path
        self._use = use
        self._content = _read(path)
        self.authorities = _parse(path, self._content)
        self.problem: str | None = None

    async def _look(self) -> None:
        try:
            content = _read(self._path)
            if content != self._content:
                authorities = _parse(self._path, content)
                self._use(authorities)
                self._content, self.authorities = content, authorities
                self._log.info("{path} has changed and is in use", path=self._path)
        except (BadBundle, BadCredentials) as error:
            if self.problem is None:
                self._log.warn("{error}; what it held before stays in use", error=error)
            self.problem = str(error)
        else:
            self.problem = None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadBundle(f"cannot read {path}: {error.strerror}") from None


def _parse(path: Path, content: bytes) -> Authorities:
    try:
        return certificates_from_pem(content)
    except BadCredentials as error:
        raise BadBundle(f"{path}: {error}") from None
