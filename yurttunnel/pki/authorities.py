"""The authorities of a cluster, which change while the program runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.bundle import LOOK_INTERVAL, BadBundle
from yurttunnel.pki.credentials import BadCredentials, certificates_from_pem

MAX_BUNDLE = 4 * 1024 * 1024
"""Bytes; a bundle of all public authorities has a quarter of a megabyte."""
_BEGIN = b"-----BEGIN CERTIFICATE-----"


class ClusterAuthorities(Reconciler):
    """The certificates in the bundle that ``read`` gives, in PEM form, looked at every 10 s.

    ``use(authorities)`` is called when they have changed, and raises when they cannot be used. A
    bundle that is missing or broken changes nothing: ``problem`` says what is wrong, and is
    ``None`` when all is well. Raises :class:`BadBundle` when it is so from the beginning.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        read: Callable[[], bytes],
        use: Callable[[tuple[x509.Certificate, ...]], object],
    ) -> None:
        super().__init__(clock, LOOK_INTERVAL, "reading the cluster's authorities", self._look)
        self._read = read
        self._use = use
        self._content = self._bundle()
        self.certificates = _parse(self._content)
        self.problem: str | None = None

    @property
    def not_after(self) -> datetime.datetime:
        """When the last of them ends, in UTC."""
        return max(each.not_valid_after_utc for each in self.certificates)

    def refresh(self) -> None:
        """Look at the bundle now."""
        try:
            content = self._bundle()
            if content != self._content:
                certificates = _parse(content)
                self._swap(certificates)
                self._content, self.certificates = content, certificates
                self._log.info("the cluster's authorities have changed and are in use")
        except BadBundle as error:
            if self.problem is None:
                self._log.error("{error}; those from before stay in use", error=error)
            self.problem = f"{error}; those from before stay in use"
        else:
            self.problem = None

    async def _look(self) -> None:
        self.refresh()

    def _bundle(self) -> bytes:
        # Whatever the configuration raises, a bundle that cannot be read is nothing worse.
        try:
            content = self._read()
        except Exception as error:
            raise BadBundle(f"the cluster's authorities cannot be read: {_line(error)}") from error
        if len(content) > MAX_BUNDLE:
            raise BadBundle("the cluster's authorities are far too long to be a bundle")
        return content

    def _swap(self, certificates: tuple[x509.Certificate, ...]) -> None:
        try:
            self._use(certificates)
        except Exception as error:
            # OpenSSL and the contexts have errors of many kinds; each leaves the old bundle in use.
            raise BadBundle(f"the cluster's authorities cannot be used: {_line(error)}") from error


def _parse(content: bytes) -> tuple[x509.Certificate, ...]:
    if not content.strip():
        raise BadBundle(
            "there are no authorities of the cluster, by which agents and servers verify each"
            " other: give the cluster in the kubeconfig (--kube-config) certificate-authority or"
            " certificate-authority-data, as in the kubeconfig of another node, and see that the"
            " file it names is not empty (in a pod: ca.crt of the service account)"
        )
    try:
        certificates = certificates_from_pem(content)
    except BadCredentials as error:
        raise BadBundle(f"the bundle of the cluster's authorities is broken: {error}") from None
    if len(certificates) != content.count(_BEGIN):
        # What is cut off after a whole certificate would be passed over without a word.
        raise BadBundle("the bundle of the cluster's authorities is broken: its end is missing")
    return certificates


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
