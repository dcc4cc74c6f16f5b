"""A server's trust in a cluster, ready to use: who it is, and whom it believes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509
from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.pki.authorities import ClusterAuthorities
from yurttunnel.pki.bundle import Authorities, AuthorityFile
from yurttunnel.pki.callers import CallerContexts, OptionalCallerContexts
from yurttunnel.pki.certificate_store import (
    PROXY_CLIENT_PREFIX,
    SERVER_PREFIX,
    DatedStore,
    open_certificate_directory,
)
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.pki.cluster_issuer import CLUSTER_SCHEDULE, ClusterIssuer
from yurttunnel.pki.contexts import ClientContexts, ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.issuer import Address, CertificateTemplate
from yurttunnel.pki.kubelets import CLUSTER_AUTHORITY, KubeletContexts, KubeletVerification
from yurttunnel.pki.live_contexts import LiveContexts
from yurttunnel.pki.metrics import ClusterTrustStats
from yurttunnel.pki.node_identification import NodeIdentification
from yurttunnel.pki.renewal import CertificateRenewal, TemplateUnknown
from yurttunnel.tunnel.connection import ALPN as TUNNEL_PROTOCOL
from yurttunnel.tunnel.connection import SIBLING_ALPN as SIBLING_PROTOCOL


class ServingNames(Protocol):
    """Names and addresses by which a server is dialed."""

    @property
    def dns_names(self) -> Collection[str]:
        """Names in lower case and ASCII."""

    @property
    def addresses(self) -> Collection[Address]:
        """Addresses."""


class ServingNamesSource(Protocol):
    """Knows by which names the server is dialed, as they are now."""

    def current(self) -> ServingNames | None:
        """Return them; ``None`` while they are not known."""

    def problem(self) -> str | None:
        """Return why they are not known."""


@dataclass(frozen=True, slots=True)
class ClusterTrustSettings:
    """Whom else a server believes.

    ``callers`` are the common names of those who may use ``ssl:`` endpoints. Certificates of
    callers may come from ``client_ca``, too, and those of kubelets come from ``kubelet_ca``
    rather than from the cluster's authorities; both are files of certificates.
    """

    callers: Collection[str] | None
    client_ca: Path | None = None
    kubelet_verify: KubeletVerification = KubeletVerification.AUTO
    kubelet_ca: Path | None = None
    accept_common_certificates: bool = False


class ClusterKubeletTrust:
    """Trust toward kubelets: ``contexts``, and what is wrong with the file of authorities."""

    def __init__(self, contexts: KubeletContexts, authorities: AuthorityFile | None) -> None:
        self.contexts = contexts
        self._authorities = authorities

    @property
    def problem(self) -> str | None:
        """Return what is wrong, ``None`` when all is well."""
        return None if self._authorities is None else self._authorities.problem


class ClusterServerTrust(MultiService):
    """Everything a server needs to be known in its cluster and to know whom it talks to.

    As a service it gets its two certificates and keeps them and the authorities up to date.
    There are, as soon as :meth:`ready` is over, and from then on current for each handshake:

    - ``contexts``: TLS for the agents' listener, which replicas use, too;
    - ``siblings``: the same toward the listeners of the other replicas;
    - ``interception``: for listeners whose callers may prove themselves later, by their requests;
    - ``callers``: for listeners whose callers have to be known by their certificates;
    - ``kubelets``: ``contexts`` toward kubelets, and their ``problem``.

    ``identify(certificate)`` says who an agent is, or raises ``BadIdentity``.
    """

    contexts: ServerContexts
    siblings: ClientContexts
    interception: OptionalCallerContexts
    callers: CallerContexts
    kubelets: ClusterKubeletTrust

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        cert_dir: Path,
        read_authorities: Callable[[], bytes],
        names: ServingNamesSource,
        settings: ClusterTrustSettings,
    ) -> None:
        """Load what an earlier run left in ``cert_dir``.

        ``read_authorities()`` gives the cluster's bundle as it is now, in PEM form. Raises
        :class:`StateError`, and :class:`BadBundle` when one of the bundles cannot be used.
        """
        super().__init__()
        self._clock = clock
        self._settings = settings
        self._names = names
        self._live = LiveContexts(clock)
        self._is_built = False
        self._authorities = ClusterAuthorities(clock, read_authorities, self._use_authorities)
        self._cluster = self._authorities.certificates
        self._client_ca = _file(clock, settings.client_ca, self._use_client_authorities)
        self._clients = () if self._client_ca is None else self._client_ca.authorities
        self._kubelet_ca = _file(clock, settings.kubelet_ca, self._use_kubelet_authorities)
        directory = open_certificate_directory(cert_dir)

        def manager(
            prefix: str,
            name: str,
            purpose: CertificateTemplate,
            template: Callable[[], CertificateTemplate],
        ) -> CertificateRenewal:
            made = CertificateRenewal(
                clock,
                name,
                ClusterIssuer(clock, client, purpose.signer, purpose.usages),
                DatedStore(clock, directory, prefix),
                CLUSTER_SCHEDULE,
                template,
                purpose.problem,
                self._cluster,
            )
            made.on_change.append(lambda _: self._live.update())
            return made

        client_template = proxy_client_template()
        self._serving = manager(
            SERVER_PREFIX, "serving certificate", serving_template(), self._serving_template
        )
        self._client = manager(
            PROXY_CLIENT_PREFIX,
            "certificate for kubelets and replicas",
            client_template,
            lambda: client_template,
        )
        self._managers = {"server": self._serving, "kubelet-client": self._client}
        identification = NodeIdentification(clock, settings.accept_common_certificates)
        self.identify: Callable[[x509.Certificate], NodeIdentity] = identification.identify
        self._common_certificates = identification.counters
        for part in (self._authorities, self._client_ca, self._kubelet_ca):
            if part is not None:
                part.setServiceParent(self)
        for each in self._managers.values():
            each.setServiceParent(self)

    async def ready(self) -> None:
        """Wait until both certificates are there, while the service runs; cancelling ends it."""
        for manager in self._managers.values():
            await manager.when_ready()
        if not self._is_built:
            self._build()
            self._is_built = True

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return when each certificate ends; of the authorities, the one that lasts longest."""
        ends = {"ca": self._authorities.not_after}
        for name, manager in self._managers.items():
            if manager.not_after is not None:
                ends[name] = manager.not_after
        return ends

    def problem(self) -> str | None:
        """Return which certificate is missing or has expired, and why."""
        return _joined(manager.problem() for manager in self._managers.values())

    def warning(self) -> str | None:
        """Return what is not kept up to date while what is there does its work."""
        warnings = [manager.warning() for manager in self._managers.values()]
        warnings.append(self._authorities.problem)
        if self._client_ca is not None:
            warnings.append(self._client_ca.problem)
        return _joined(warnings)

    def stats(self) -> ClusterTrustStats:
        """Return what is counted, for the metrics."""
        return ClusterTrustStats(
            {name: manager.counters for name, manager in self._managers.items()},
            self._authorities.problem is not None,
            self._common_certificates,
        )

    def _serving_template(self) -> CertificateTemplate:
        names = self._names.current()
        if names is None:
            raise TemplateUnknown(self._names.problem() or "its names are not known yet")
        if not names.dns_names and not names.addresses:
            # Its signer demands one (CertificateSigningRequest, kubernetes.io/kubelet-serving).
            raise TemplateUnknown("the server has no name or address by which it is dialed")
        return serving_template(names.dns_names, names.addresses)

    # -- Contexts ------------------------------------------------------------------------------

    def _build(self) -> None:
        settings = self._settings
        protocols = (TUNNEL_PROTOCOL, SIBLING_PROTOCOL)
        self.contexts = ServerContexts(self._serving_credentials(), protocols)
        self.interception = OptionalCallerContexts(self._caller_credentials())
        self.callers = CallerContexts(self._caller_credentials(), settings.callers)
        self.siblings = ClientContexts(self._client_credentials(), SIBLING_PROTOCOL)
        kubelets = KubeletContexts(
            self._clock,
            self._client_credentials(),
            settings.kubelet_verify,
            CLUSTER_AUTHORITY,
        )
        if self._kubelet_ca is not None:
            kubelets.trust(self._kubelet_ca.authorities)
        self.kubelets = ClusterKubeletTrust(kubelets, self._kubelet_ca)
        for contexts, credentials in (
            (self.contexts, self._serving_credentials),
            (self.interception, self._caller_credentials),
            (self.callers, self._caller_credentials),
            (self.siblings, self._client_credentials),
            (kubelets, self._client_credentials),
        ):
            self._live.follow(contexts, credentials)

    def _serving_credentials(self) -> Credentials:
        return self._serving.credentials(self._cluster)

    def _caller_credentials(self) -> Credentials:
        return self._serving.credentials((*self._cluster, *self._clients))

    def _client_credentials(self) -> Credentials:
        return self._client.credentials(self._cluster)

    # -- Authorities ---------------------------------------------------------------------------

    def _use_authorities(self, authorities: Authorities) -> None:
        former, self._cluster = self._cluster, authorities
        try:
            self._live.update()
        except Exception:
            # Put back, whatever it was; the caller tells.
            self._cluster = former
            raise
        for manager in self._managers.values():
            manager.authorities_changed(authorities)

    def _use_client_authorities(self, authorities: Authorities) -> None:
        former, self._clients = self._clients, authorities
        try:
            self._live.update()
        except Exception:
            # As above.
            self._clients = former
            raise

    def _use_kubelet_authorities(self, authorities: Authorities) -> None:
        if self._is_built:
            self.kubelets.contexts.trust(authorities)


def _file(
    clock: IReactorTime, path: Path | None, use: Callable[[Authorities], None]
) -> AuthorityFile | None:
    return None if path is None else AuthorityFile(clock, path, use)


def _joined(sentences: Iterable[str | None]) -> str | None:
    return "; ".join(sentence for sentence in sentences if sentence) or None
