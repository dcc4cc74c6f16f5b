"""The server's credentials and trusted authorities for each kind of peer, kept current."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator, IReactorTime

from yurttunnel.pki.authorities import Authorities, AuthorityBundle
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.trust import Trust, join_sentences


class TrustSettings(NamedTuple):
    """Further peers that a server trusts.

    ``callers`` are the common names of those who may use ``ssl:`` endpoints. Certificates of
    callers may also come from ``client_ca``, and those of kubelets come from ``kubelet_ca`` instead
    of the server's authorities; both are files of certificates.
    """

    callers: Collection[str] | None
    client_ca: Path | None = None
    kubelet_verify: KubeletVerification = KubeletVerification.AUTO
    kubelet_ca: Path | None = None


class ServerTrust(Trust):
    """A server's credentials, and the authorities that it trusts.

    ``serving`` is its certificate for agents and callers, ``client`` the one for kubelets and other
    servers. :meth:`build` creates the following, which are then current for each handshake:

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
        reload_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Read the files; raises :class:`BadBundle` if one of them is unusable."""
        renewals = {"server": serving, "kubelet-client": client}
        super().__init__(clock, renewals, authorities, reload_problem)
        self._clock = clock
        self._settings = settings
        self._is_built = False
        self.serving = serving
        self.client = client
        self._client_ca = self._follow_file(settings.client_ca)
        self._kubelet_ca = self._follow_file(settings.kubelet_ca)

    def build(
        self, protocols: Sequence[bytes], optional: Sequence[bytes], kubelet_authority: str
    ) -> None:
        """Create the contexts; both certificates must exist.

        ``protocols`` and ``optional`` are those of :class:`ServerContexts`, and
        ``kubelet_authority`` is the name of the expected issuer of kubelets' certificates.
        """
        settings, follow = self._settings, self._live.follow
        self.contexts = follow(
            partial(self.credentials, self.serving),
            partial(ServerContexts, required=protocols, optional=optional),
        )
        self.callers = follow(
            self.caller_credentials, partial(CallerContexts, names=settings.callers)
        )
        self.kubelets = follow(
            self._kubelet_credentials,
            lambda credentials: KubeletContexts(
                self._clock, credentials, settings.kubelet_verify, kubelet_authority
            ),
        )
        self._is_built = True

    def warning(self) -> str | None:
        client_ca = None if self._client_ca is None else self._client_ca.problem
        return join_sentences((super().warning(), client_ca))

    def kubelet_problem(self) -> str | None:
        """Return what is wrong with the file of the authorities of kubelets."""
        authorities = self._kubelet_ca
        if authorities is None:
            return None
        return authorities.problem or authorities.expiry_problem()

    def caller_credentials(self) -> Credentials:
        """Return the server's certificate for callers, with their trusted authorities."""
        further = () if self._client_ca is None else self._client_ca.certificates
        return self.credentials(self.serving, further)

    def _kubelet_credentials(self) -> Credentials:
        """Return the certificate for kubelets, which may be verified by their own authorities."""
        bundle = self._kubelet_ca
        if bundle is None:
            return self.credentials(self.client)
        return self.client.credentials(bundle.certificates)

    def _follow_file(self, path: Path | None) -> AuthorityBundle | None:
        if path is None:
            return None
        bundle = AuthorityBundle.file(self._clock, path, lambda _: self._update())
        bundle.setServiceParent(self)
        return bundle
