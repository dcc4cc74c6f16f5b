"""Bundles of authorities that are reloaded when they change."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.plain_files import read_plain
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.credentials import BadCredentials, certificates_from_pem

CHECK_INTERVAL = 10.0
"""Seconds between two checks of a bundle."""
_BEGIN = b"-----BEGIN CERTIFICATE-----"

Authorities = tuple[x509.Certificate, ...]


class BadBundle(Exception):
    """A bundle that cannot be read or has no certificates; one line names it and the cause."""


class AuthorityBundle(Reconciler):
    """The certificates of the PEM bundle that ``read`` returns, checked every 10 s for changes.

    ``use(authorities)`` is called when they have changed, and raises if they cannot be used, which
    changes nothing. While a changed bundle is missing or broken, the previous certificates stay in
    use, and ``problem`` describes the error; otherwise it is ``None``. The constructor raises
    :class:`BadBundle` instead. ``name`` is for messages.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        name: str,
        read: Callable[[], bytes],
        use: Callable[[Authorities], object],
    ) -> None:
        super().__init__(clock, CHECK_INTERVAL, f"reading {name}", self._check)
        self._clock = clock
        self._name = name
        self._read = read
        self._use = use
        self._content = self._read_bundle()
        self.certificates = self._parse(self._content)
        self.problem: str | None = None

    @classmethod
    def cluster(
        cls, clock: IReactorTime, read: Callable[[], bytes], use: Callable[[Authorities], object]
    ) -> AuthorityBundle:
        """Watch the bundle of the cluster's authorities, as a kubeconfig or a pod has it."""

        def content() -> bytes:
            found = read()
            if found.strip():
                return found
            raise BadBundle(
                "the cluster's authorities, which agents and servers need to verify each other,"
                " are missing: set certificate-authority or certificate-authority-data of the"
                " cluster in the kubeconfig (--kube-config), as in the kubeconfig of another node,"
                " and check that the file it names is not empty (in a pod: ca.crt of"
                " the service account)"
            )

        return cls(clock, "the bundle of the cluster's authorities", content, use)

    @classmethod
    def file(
        cls, clock: IReactorTime, path: Path, use: Callable[[Authorities], object]
    ) -> AuthorityBundle:
        """Watch the file at ``path``."""
        return cls(clock, str(path), partial(read_plain, path), use)

    @property
    def not_after(self) -> datetime.datetime:
        """When the last of the certificates expires, in UTC."""
        return max(each.not_valid_after_utc for each in self.certificates)

    def expiry_problem(self) -> str | None:
        """Return that nothing can be verified because all the certificates have expired."""
        if self.not_after > utc_now(self._clock):
            return None
        return f"all authorities in {self._name} have expired: replace them"

    async def _check(self) -> None:
        try:
            content = self._read_bundle()
            if content != self._content:
                certificates = self._parse(content)
                self._swap(certificates)
                self._content = content
                self._log.info("{name} has changed and is in use", name=self._name)
        except BadBundle as error:
            if self.problem is None:
                self._log.error("{error}; the previous ones stay in use", error=error)
            self.problem = f"{error}; the previous ones stay in use"
        else:
            self.problem = None

    def _read_bundle(self) -> bytes:
        # Whatever the configuration raises, an unreadable bundle is reported as such and is not
        # fatal.
        try:
            return self._read()
        except BadBundle:
            raise
        except Exception as error:
            raise BadBundle(f"{self._name} cannot be read: {_one_line(error)}") from error

    def _parse(self, content: bytes) -> Authorities:
        try:
            certificates = certificates_from_pem(content)
        except BadCredentials as error:
            raise BadBundle(f"{self._name} is broken: {error}") from None
        if len(certificates) != content.count(_BEGIN):
            # The parser silently ignores a certificate that is truncated after a complete one.
            raise BadBundle(f"{self._name} is broken: it is truncated")
        return certificates

    def _swap(self, certificates: Authorities) -> None:
        former, self.certificates = self.certificates, certificates
        try:
            self._use(certificates)
        except Exception as error:
            self.certificates = former
            # OpenSSL and the contexts raise errors of many types; after each, the old bundle stays
            # in use.
            raise BadBundle(f"{self._name} cannot be used: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
