"""Storage of the certificate in use for a restart, with retries."""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.certificate_store import CertificateStore
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.issuer import IssuedCertificate

_MAX_RETRY_DELAY = 60.0
"""The longest time in seconds between two attempts to store a certificate."""


class StoredCertificate:
    """The certificate ``name`` in ``store``; ``problem`` is why the latest is not stored."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, name: str, store: CertificateStore) -> None:
        self._clock = clock
        self._name = name
        self._store = store
        self._unsaved: IssuedCertificate | None = None
        self._pause = 0.0
        self._next_retry = 0.0
        self.problem: StateError | None = None

    def load(
        self, find_problem: Callable[[x509.Certificate], str | None]
    ) -> IssuedCertificate | None:
        """Return the stored certificate, unless ``find_problem(certificate)`` returns a fault.

        A certificate that cannot be used is logged.
        """
        try:
            issued = self._store.load()
        except StateError as error:
            self._log.warn("{error}; a new certificate is requested", error=error)
            return None
        if issued is None:
            return None
        problem = find_problem(issued.certificate)
        if problem is None:
            return issued
        self._log.warn(
            "the certificate in {path} {problem}; a new one is requested",
            path=self._store.path,
            problem=problem,
        )
        return None

    def save(self, issued: IssuedCertificate, lifetime: float) -> None:
        """Store a certificate with a lifetime of ``lifetime`` seconds, with retries on failure."""
        self._pause = min(_MAX_RETRY_DELAY, lifetime / 100)
        self._try_save(issued)

    def retry_if_due(self) -> None:
        """Retry a failed write, if it is due."""
        if self._unsaved is not None and self._clock.seconds() >= self._next_retry:
            self._try_save(self._unsaved)

    def warning(self) -> str | None:
        """Return why a restart would lose the certificate in use, or ``None``."""
        return None if self.problem is None else self._not_stored_text(self.problem)

    def _try_save(self, issued: IssuedCertificate) -> None:
        try:
            self._store.save(issued)
        except StateError as error:
            known, self.problem = self.problem, error
            if str(error) != str(known):
                self._log.error("{problem}", problem=self._not_stored_text(error))
            self._unsaved = issued
            self._next_retry = self._clock.seconds() + self._pause
        else:
            self._unsaved = self.problem = None

    def _not_stored_text(self, error: StateError) -> str:
        return f"the {self._name} is in use but not stored for a restart: {error}"
