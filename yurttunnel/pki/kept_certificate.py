"""Storage of the certificate in use for a restart, with retries."""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import IssuedCertificate

_STORED_AGAIN = 60.0
"""The longest time in seconds between two attempts to store a certificate."""


class KeptCertificate:
    """The certificate ``name`` in ``store``; ``problem`` is why the latest is not stored."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, name: str, store: CertificateStore) -> None:
        self._clock = clock
        self._name = name
        self._store = store
        self._to_store: IssuedCertificate | None = None
        self._pause = 0.0
        self._next_storing = 0.0
        self.problem: StateError | None = None

    def load(self, misfit: Callable[[x509.Certificate], str | None]) -> IssuedCertificate | None:
        """Return the stored certificate, unless ``misfit(certificate)`` returns a fault.

        A certificate that cannot be used is logged.
        """
        try:
            issued = self._store.load()
        except StateError as error:
            self._log.warn("{error}; a new certificate is asked for", error=error)
            return None
        if issued is None:
            return None
        problem = misfit(issued.certificate)
        if problem is None:
            return issued
        self._log.warn(
            "the certificate in {path} {problem}; a new one is asked for",
            path=self._store.path,
            problem=problem,
        )
        return None

    def keep(self, issued: IssuedCertificate, life: float) -> None:
        """Store a certificate with a lifetime of ``life`` seconds, with retries on failure."""
        self._pause = min(_STORED_AGAIN, life / 100)
        self._save(issued)

    def look(self) -> None:
        """Retry a failed write, if it is due."""
        if self._to_store is not None and self._clock.seconds() >= self._next_storing:
            self._save(self._to_store)

    def warning(self) -> str | None:
        """Return why a restart would lose the certificate in use, or ``None``."""
        return None if self.problem is None else self._without_store(self.problem)

    def _save(self, issued: IssuedCertificate) -> None:
        try:
            self._store.save(issued)
        except StateError as error:
            known, self.problem = self.problem, error
            if str(error) != str(known):
                self._log.error("{problem}", problem=self._without_store(error))
            self._to_store = issued
            self._next_storing = self._clock.seconds() + self._pause
        else:
            self._to_store = self.problem = None

    def _without_store(self, error: StateError) -> str:
        return f"the {self._name} is in use but not stored for a restart: {error}"
