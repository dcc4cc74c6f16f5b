"""An agent's credentials and trust in a cluster: a signer of the cluster issues its certificate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from twisted.internet.interfaces import IReactorTime

from yurttunnel.agent.trust import AgentTrust
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.pki.authorities import AuthorityBundle
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.cluster_identity import AGENT_PREFIX, agent_template, cluster_identity
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.names import BadIdentity
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE


class ClusterAgentTrust(AgentTrust):
    """An agent's credentials and trust in its cluster.

    A certificate of an earlier run, or of yurttunnel 1.2, is used until there is a better one.
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
        """Load the state of an earlier run from ``cert_dir``.

        ``read_authorities()`` returns the cluster's current bundle in PEM form. Raises
        :class:`StateError`, :class:`BadBundle` if that is unusable, and :class:`BadIdentity` for
        names that no node can have.
        """
        template = agent_template(node, identifiers)
        self._bundle = AuthorityBundle.cluster(clock, read_authorities, self.authorities_changed)

        def find_problem(certificate: x509.Certificate) -> str | None:
            try:
                owner = cluster_identity(certificate, accept_common=True).node
            except BadIdentity as error:
                return f"is no node's: {error}"
            return None if owner == node else f"is that of node {owner}"

        certificate = CertificateRenewal(
            clock,
            f"certificate of node {node}",
            ClusterIssuer(clock, client, template.signer, template.usages),
            DatedStore(clock, open_certificate_directory(cert_dir), AGENT_PREFIX),
            CLUSTER_SCHEDULE,
            lambda: template,
            find_problem,
            self._bundle.certificates,
        )
        super().__init__(
            clock, certificate, lambda: self._bundle.certificates, lambda: self._bundle.problem
        )
        self._bundle.setServiceParent(self)

    def current_identifiers(self) -> Identifiers | None:
        """Return the identifiers in the certificate in use: servers accept no others.

        They may differ from the configured ones until there is a new certificate. ``None`` without
        a certificate.
        """
        if self.certificate.current is None:
            return None
        certificate = self.certificate.current.certificate
        return cluster_identity(certificate, accept_common=True).identifiers


def certified_identifiers(desired: Identifiers, covered: Identifiers | None) -> Identifiers:
    """Return what of ``desired`` a certificate covers: servers reject an agent that claims more.

    Without a certificate (``None``) that is all of it.
    """
    if covered is None:
        return desired
    return Identifiers(
        hosts=desired.hosts & covered.hosts,
        addresses=frozenset(
            address
            for address in desired.addresses
            if address in covered.addresses
            or any(address in network for network in covered.networks)
        ),
        networks=desired.networks & covered.networks,
        default_route=desired.default_route and covered.default_route,
    )
