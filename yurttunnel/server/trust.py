"""The server's credentials and trusted authorities for each kind of peer, kept current."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from twisted.application.service import MultiService
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IReactorTime

from yurttunnel.pki.authorities import Authorities, AuthorityBundle
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.contexts import LiveContexts, ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.renewal import CertificateRenewal


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Further peers that a server trusts.

    ``callers`` are the common names of those who may use ``ssl:`` endpoints. Certificates of
    callers may also come from ``client_ca``, and those of kubelets come from ``kubelet_ca`` instead
    of the server's authorities; both are files of certificates.
    """

    callers: Collection[str] | None
    client_ca: Path | None = None
    kubelet_verify: KubeletVerification = KubeletVerification.AUTO
    kubelet_ca: Path | None = None


class ServerTrust(MultiService):
    """A server's credentials, and the authorities that it trusts.

    ``serving`` is its certificate for agents and callers, ``client`` the one for kubelets and other
    servers; ``authorities()`` returns those that must have issued its peers' certificates.
    :meth:`build` creates the following, which are then current for each handshake:

    - ``contexts``: TLS for the agents' listener;
    - ``callers``: for listeners that require client certificates;
    - ``kubelets``: TLS to kubelets.

    Subclasses define ``interception``, TLS for listeners that callers take for kubelets, and
    ``identify(certificate)``, which returns the identity of an agent, or raises ``BadIdentity``.
    """

    contexts: ServerContexts
    callers: CallerContexts
    kubelets: KubeletContexts
    interception: IOpenSSLServerConnectionCreator
    identify: Callable[[x509.Certificate], NodeIdentity]

    def __init__(
        self,
        clock: IReactorTime,
        serving: CertificateRenewal,
        client: CertificateRenewal,
        authorities: Callable[[], Authorities],
        settings: TrustSettings,
    ) -> None:
        """Read the files; raises :class:`BadBundle` if one of them is unusable."""
        super().__init__()
        self._clock = clock
        self._settings = settings
        self._live = LiveContexts(clock)
        self._is_built = False
        self._authorities = authorities
        self.serving = serving
        self.client = client
        self._client_ca = _file(clock, settings.client_ca, self._live)
        self._kubelet_ca = _file(clock, settings.kubelet_ca, self._live)
        for renewal in (serving, client):
            renewal.on_change.append(lambda _: self._live.update())
        for part in (self._client_ca, self._kubelet_ca, serving, client):
            if part is not None:
                part.setServiceParent(self)

    def build(
        self, protocols: Sequence[bytes], optional: Sequence[bytes], kubelet_authority: str
    ) -> None:
        """Create the contexts; both certificates must exist.

        ``protocols`` and ``optional`` are those of :class:`ServerContexts`, and
        ``kubelet_authority`` is the name of the expected issuer of kubelets' certificates.
        """
        settings = self._settings
        self.contexts = ServerContexts(self.serving_credentials(), protocols, optional)
        self.callers = CallerContexts(self.caller_credentials(), settings.callers)
        self.kubelets = KubeletContexts(
            self._clock, self.kubelet_credentials(), settings.kubelet_verify, kubelet_authority
        )
        self._live.follow(self.contexts, self.serving_credentials)
        self._live.follow(self.callers, self.caller_credentials)
        self._live.follow(self.kubelets, self.kubelet_credentials)
        self._is_built = True

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return the expiry of each certificate; of the authorities, the latest."""
        ends = {"ca": max(each.not_valid_after_utc for each in self._authorities())}
        for name, renewal in (("server", self.serving), ("kubelet-client", self.client)):
            if renewal.not_after is not None:
                ends[name] = renewal.not_after
        return ends

    def problem(self) -> str | None:
        """Return which certificate is missing or has expired, and why."""
        return join_sentences((self.serving.problem(), self.client.problem()))

    def warning(self) -> str | None:
        """Return which renewals or reloads fail, while the current files are still valid."""
        client_ca = None if self._client_ca is None else self._client_ca.problem
        return join_sentences((self.serving.warning(), self.client.warning(), client_ca))

    def kubelet_problem(self) -> str | None:
        """Return what is wrong with the file of the authorities of kubelets."""
        authorities = self._kubelet_ca
        if authorities is None:
            return None
        return authorities.problem or authorities.expiry_problem()

    def serving_credentials(self) -> Credentials:
        """Return the server's certificate for agents, with their trusted authorities."""
        return self.serving.credentials(self._authorities())

    def caller_credentials(self) -> Credentials:
        """Return the server's certificate for callers, with their trusted authorities."""
        further = () if self._client_ca is None else self._client_ca.certificates
        return self.serving.credentials((*self._authorities(), *further))

    def client_credentials(self) -> Credentials:
        """Return the certificate for dialed servers, with their trusted authorities."""
        return self.client.credentials(self._authorities())

    def kubelet_credentials(self) -> Credentials:
        """Return the same for kubelets, which may be verified by their own authorities."""
        bundle = self._kubelet_ca
        return self.client.credentials(
            self._authorities() if bundle is None else bundle.certificates
        )

    def authorities_changed(self, authorities: Authorities) -> None:
        """Trust the current authorities from now on, or raise."""
        self._live.update()
        self.serving.authorities_changed(authorities)
        self.client.authorities_changed(authorities)


def join_sentences(sentences: Iterable[str | None]) -> str | None:
    """Join the sentences that are not empty."""
    return "; ".join(sentence for sentence in sentences if sentence) or None


def _file(clock: IReactorTime, path: Path | None, live: LiveContexts) -> AuthorityBundle | None:
    return None if path is None else AuthorityBundle.file(clock, path, lambda _: live.update())
