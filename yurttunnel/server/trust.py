"""Who the server is to each kind of peer, and whom it believes, kept up to date."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.pki.authorities import Authorities, AuthorityBundle
from yurttunnel.pki.callers import CallerContexts
from yurttunnel.pki.contexts import LiveAuthorities, LiveContexts, ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.renewal import CertificateRenewal


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """Whom else a server believes.

    ``callers`` are the common names of those who may use ``ssl:`` endpoints. Certificates of
    callers may come from ``client_ca``, too, and those of kubelets come from ``kubelet_ca``
    rather than from the server's authorities; both are files of certificates.
    """

    callers: Collection[str] | None
    client_ca: Path | None = None
    kubelet_verify: KubeletVerification = KubeletVerification.AUTO
    kubelet_ca: Path | None = None


class ServerTrust(MultiService):
    """What a server needs to be known, and to know whom it talks to.

    ``serving`` is its certificate toward agents and callers, ``client`` the one toward kubelets
    and other servers; ``authorities`` are those that its peers' certificates have to come from.
    There are, once :meth:`build` has been called, and from then on current for each handshake:

    - ``contexts``: TLS for the agents' listener;
    - ``callers``: for listeners whose callers have to be known by their certificates;
    - ``kubelets``: TLS toward kubelets.
    """

    contexts: ServerContexts
    callers: CallerContexts
    kubelets: KubeletContexts

    def __init__(
        self,
        clock: IReactorTime,
        serving: CertificateRenewal,
        client: CertificateRenewal,
        authorities: Authorities,
        settings: TrustSettings,
    ) -> None:
        """Read the files; raises :class:`BadBundle` when one of them cannot be used."""
        super().__init__()
        self._clock = clock
        self._settings = settings
        self._live = LiveContexts(clock)
        self._is_built = False
        self._authorities = LiveAuthorities(self._live, authorities)
        self.serving = serving
        self.client = client
        self._clients: LiveAuthorities[Authorities] = LiveAuthorities(self._live, ())
        self._client_ca = _file(clock, settings.client_ca, self._clients.use)
        if self._client_ca is not None:
            self._clients.current = self._client_ca.certificates
        self._of_kubelets: LiveAuthorities[Authorities | None] = LiveAuthorities(self._live, None)
        self._kubelet_ca = _file(clock, settings.kubelet_ca, self._of_kubelets.use)
        if self._kubelet_ca is not None:
            self._of_kubelets.current = self._kubelet_ca.certificates
        for renewal in (serving, client):
            renewal.on_change.append(lambda _: self._live.update())
        for part in (self._client_ca, self._kubelet_ca, serving, client):
            if part is not None:
                part.setServiceParent(self)

    def build(
        self, protocols: Sequence[bytes], optional: Sequence[bytes], kubelet_authority: str
    ) -> None:
        """Make the contexts; both certificates have to be there.

        ``protocols`` and ``optional`` are as :class:`ServerContexts` takes them, and
        ``kubelet_authority`` is from whom the certificates of kubelets should be.
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
        """Return when each certificate ends; of the authorities, the one that lasts longest."""
        ends = {"ca": max(each.not_valid_after_utc for each in self._authorities.current)}
        for name, renewal in (("server", self.serving), ("kubelet-client", self.client)):
            if renewal.not_after is not None:
                ends[name] = renewal.not_after
        return ends

    def problem(self) -> str | None:
        """Return which certificate is missing or has expired, and why."""
        return joined((self.serving.problem(), self.client.problem()))

    def warning(self) -> str | None:
        """Return what is not kept up to date while what is there does its work."""
        client_ca = None if self._client_ca is None else self._client_ca.problem
        return joined((self.serving.warning(), self.client.warning(), client_ca))

    def kubelet_problem(self) -> str | None:
        """Return what is wrong with the file of the authorities of kubelets."""
        return None if self._kubelet_ca is None else self._kubelet_ca.problem

    def serving_credentials(self) -> Credentials:
        """Return who the server is to agents, and whom of them it believes."""
        return self.serving.credentials(self._authorities.current)

    def caller_credentials(self) -> Credentials:
        """Return who the server is to callers, and whom of them it believes."""
        return self.serving.credentials((*self._authorities.current, *self._clients.current))

    def client_credentials(self) -> Credentials:
        """Return who the server is to those whom it dials, and whom of them it believes."""
        return self.client.credentials(self._authorities.current)

    def kubelet_credentials(self) -> Credentials:
        """Return the same for kubelets, which may be verified by authorities of their own."""
        return self.client.credentials(self._of_kubelets.current or self._authorities.current)

    def use_authorities(self, authorities: Authorities) -> None:
        """Believe these from now on, or raise and leave everything as it was."""
        self._authorities.use(authorities)
        self.serving.authorities_changed(authorities)
        self.client.authorities_changed(authorities)


def joined(sentences: Iterable[str | None]) -> str | None:
    """Join those that there are."""
    return "; ".join(sentence for sentence in sentences if sentence) or None


def _file(
    clock: IReactorTime, path: Path | None, use: Callable[[Authorities], None]
) -> AuthorityBundle | None:
    return None if path is None else AuthorityBundle.file(clock, path, use)
