"""What a program presents to its peers and what it demands of them, both kept current."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence

from cryptography import x509
from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.contexts import LiveContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.metrics import ClusterTrustStats
from yurttunnel.pki.renewal import CertificateRenewal


class Trust(MultiService):
    """The certificates of a program, the authorities of its peers, and its TLS contexts.

    As a service it renews the certificates in ``renewals``, which are by name. Certificates of
    peers must be issued by ``authorities()``, or, if that is ``None``, by the issuer of the
    program's own. ``reload_problem()`` returns why changes of the authorities are not in use.

    Subclasses have the contexts in ``_live`` follow the certificates and authorities.
    """

    def __init__(
        self,
        clock: IReactorTime,
        renewals: Mapping[str, CertificateRenewal],
        authorities: Callable[[], Authorities | None],
        reload_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._live = LiveContexts(clock)
        self._renewals = renewals
        self._peer_authorities = authorities
        self._reload_problem = reload_problem
        for renewal in renewals.values():
            renewal.on_change.append(lambda _: self._update())
            renewal.setServiceParent(self)

    def credentials(
        self, renewal: CertificateRenewal, further: Sequence[x509.Certificate] = ()
    ) -> Credentials:
        """Return a certificate with the authorities of peers, which ``further`` extend."""
        authorities = self._peer_authorities()
        return renewal.credentials(None if authorities is None else (*authorities, *further))

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return the expiry of the certificates in use by name; of the authorities, the latest."""
        ends = {name: renewal.not_after for name, renewal in self._renewals.items()}
        authorities = self._peer_authorities() or ()
        ends["ca"] = max((each.not_valid_after_utc for each in authorities), default=None)
        return {name: end for name, end in ends.items() if end is not None}

    def problem(self) -> str | None:
        """Return which certificate is missing or has expired, and why."""
        return join_sentences(renewal.problem() for renewal in self._renewals.values())

    def warning(self) -> str | None:
        """Return which renewals or reloads fail, while the current files are still valid."""
        warnings = [renewal.warning() for renewal in self._renewals.values()]
        return join_sentences([*warnings, self._reload_problem()])

    def stats(self) -> ClusterTrustStats:
        """Return the values of the metrics of a program in a cluster."""
        counters = {name: renewal.counters for name, renewal in self._renewals.items()}
        return ClusterTrustStats(counters, self._reload_problem() is not None)

    def authorities_changed(self, authorities: Authorities) -> None:
        """Trust the current authorities from now on, or raise."""
        self._update()
        for renewal in self._renewals.values():
            renewal.authorities_changed(authorities)

    def _update(self) -> None:
        self._live.update()


def join_sentences(sentences: Iterable[str | None]) -> str | None:
    """Join the sentences that are not empty."""
    return "; ".join(sentence for sentence in sentences if sentence) or None
