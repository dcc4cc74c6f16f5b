"""An agent's trust in a cluster, ready to use: its node's certificate, and whom it believes."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography import x509
from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.pki.authorities import ClusterAuthorities
from yurttunnel.pki.bundle import Authorities
from yurttunnel.pki.certificate_store import (
    AGENT_PREFIX,
    DatedStore,
    open_certificate_directory,
)
from yurttunnel.pki.certificate_template import agent_template
from yurttunnel.pki.cluster_identity import cluster_identity
from yurttunnel.pki.cluster_issuer import CLUSTER_SCHEDULE, ClusterIssuer
from yurttunnel.pki.contexts import ClientContexts, LiveContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.identity import BadIdentity, Identifiers
from yurttunnel.pki.metrics import ClusterTrustStats
from yurttunnel.pki.renewal import CertificateRenewal


class ClusterAgentTrust(MultiService):
    """Everything an agent needs to be known by the servers of its cluster.

    As a service it gets the certificate of its node and keeps that and the authorities up to
    date. A certificate of an earlier run, also of yurttunnel 1.2, is used until there is a
    better one.
    """

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        cert_dir: Path,
        read_authorities: Callable[[], bytes],
        node: str,
        identifiers: Identifiers,
    ) -> None:
        """Load what an earlier run left in ``cert_dir``.

        ``read_authorities()`` gives the cluster's bundle as it is now, in PEM form. Raises
        :class:`StateError`, :class:`BadBundle` when that cannot be used, and
        :class:`BadIdentity` for names that no node can have.
        """
        super().__init__()
        self._node = node
        self._live = LiveContexts(clock)
        self._contexts: ClientContexts | None = None
        template = agent_template(node, identifiers)
        self._authorities = ClusterAuthorities(clock, read_authorities, self._use_authorities)
        self._cluster = self._authorities.certificates
        directory = open_certificate_directory(cert_dir)
        self._manager = CertificateRenewal(
            clock,
            f"certificate of node {node}",
            ClusterIssuer(clock, client, template.signer, template.usages),
            DatedStore(clock, directory, AGENT_PREFIX),
            CLUSTER_SCHEDULE,
            lambda: template,
            self._misfit,
            self._cluster,
        )
        self._manager.on_change.append(lambda _: self._live.update())
        self._authorities.setServiceParent(self)
        self._manager.setServiceParent(self)

    async def ready(self) -> ClientContexts:
        """Wait for a certificate, while the service runs, and give the contexts for sessions.

        They are current for each handshake from then on. Cancelling ends the waiting.
        """
        await self._manager.when_ready()
        if self._contexts is None:
            self._contexts = ClientContexts(self._credentials(), node=self._node)
            self._live.follow(self._contexts, self._credentials)
        return self._contexts

    def covered(self) -> Identifiers | None:
        """Return the identifiers in the certificate in use: more than these no server accepts.

        They may differ from those that are wanted until there is a new certificate. ``None``
        while there is none at all.
        """
        if self._manager.current is None:
            return None
        certificate = self._manager.current.certificate
        return cluster_identity(certificate, accept_common=True).identifiers

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return when the certificate ends, and the authority that lasts longest."""
        ends = {"ca": self._authorities.not_after}
        if self._manager.not_after is not None:
            ends["agent"] = self._manager.not_after
        return ends

    def problem(self) -> str | None:
        """Return why the certificate is missing or has expired, if so."""
        return self._manager.problem()

    def warning(self) -> str | None:
        """Return what is not kept up to date while what is there does its work."""
        warnings = (self._manager.warning(), self._authorities.problem)
        return "; ".join(warning for warning in warnings if warning) or None

    def stats(self) -> ClusterTrustStats:
        """Return what is counted, for the metrics."""
        return ClusterTrustStats(
            {"agent": self._manager.counters}, self._authorities.problem is not None
        )

    def _credentials(self) -> Credentials:
        return self._manager.credentials(self._cluster)

    def _misfit(self, certificate: x509.Certificate) -> str | None:
        """Return what is wrong with a certificate of another node; as 1.2 had it, it is good."""
        try:
            node = cluster_identity(certificate, accept_common=True).node
        except BadIdentity as error:
            return f"is no node's: {error}"
        return None if node == self._node else f"is that of node {node}"

    def _use_authorities(self, authorities: Authorities) -> None:
        former, self._cluster = self._cluster, authorities
        try:
            self._live.update()
        except Exception:
            # Put back, whatever it was; the caller tells.
            self._cluster = former
            raise
        self._manager.authorities_changed(authorities)
