"""A server's credentials and trust in a cluster, whose signers issue its certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from twisted.internet.interfaces import IReactorTime

from yurttunnel.cluster.serving_names import ServingNames
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.pki.authorities import AuthorityBundle
from yurttunnel.pki.caller_contexts import OptionalCallerContexts
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import (
    PROXY_CLIENT_PREFIX,
    SERVER_PREFIX,
    proxy_client_template,
    serving_template,
)
from yurttunnel.pki.cluster_identity import NodeIdentification
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.desired_template import TemplateUnknown
from yurttunnel.pki.issuer import CertificateTemplate
from yurttunnel.pki.kubelets import CLUSTER_AUTHORITY
from yurttunnel.pki.metrics import ClusterTrustStats
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE
from yurttunnel.server.trust import ServerTrust, TrustSettings
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL
from yurttunnel.tunnel.tls import SIBLING_ALPN as SIBLING_PROTOCOL


class ClusterServerTrust(ServerTrust):
    """A server's credentials and trust in a cluster. In addition to those of every server, once
    ready:

    - ``siblings``: TLS to the listeners of the other replicas;
    - ``interception``, whose callers may authenticate later, by their requests.
    """

    siblings: ClientContexts
    interception: OptionalCallerContexts

    def __init__(
        self,
        clock: IReactorTime,
        client: IKubeClient,
        cert_dir: Path,
        read_authorities: Callable[[], bytes],
        names: ServingNames,
        settings: TrustSettings,
        accept_common_certificates: bool = False,
    ) -> None:
        """Load the state of an earlier run from ``cert_dir``.

        ``read_authorities()`` returns the cluster's current bundle in PEM form. Raises
        :class:`StateError`, and :class:`BadBundle` if one of the bundles is unusable.
        """
        self._bundle = AuthorityBundle.cluster(clock, read_authorities, self.authorities_changed)
        directory = open_certificate_directory(cert_dir)

        def renewal(
            prefix: str,
            name: str,
            purpose: CertificateTemplate,
            template: Callable[[], CertificateTemplate],
        ) -> CertificateRenewal:
            return CertificateRenewal(
                clock,
                name,
                ClusterIssuer(clock, client, purpose.signer, purpose.usages),
                DatedStore(clock, directory, prefix),
                CLUSTER_SCHEDULE,
                template,
                purpose.problem,
                self._bundle.certificates,
            )

        client_template = proxy_client_template()
        super().__init__(
            clock,
            renewal(
                SERVER_PREFIX,
                "serving certificate",
                serving_template(),
                lambda: _serving_template(names),
            ),
            renewal(
                PROXY_CLIENT_PREFIX,
                "certificate for kubelets and replicas",
                client_template,
                lambda: client_template,
            ),
            lambda: self._bundle.certificates,
            settings,
            lambda: self._bundle.problem,
        )
        self._bundle.setServiceParent(self)
        identification = NodeIdentification(clock, accept_common_certificates)
        self.identify = identification.identify
        self._common_certificates = identification.counters

    async def ready(self) -> None:
        """Wait for both certificates, while the service runs; can be cancelled."""
        await self.serving.when_ready()
        await self.client.when_ready()
        if self._is_built:
            return
        self.build((TUNNEL_PROTOCOL, SIBLING_PROTOCOL), (), CLUSTER_AUTHORITY)
        self.interception = self._live.follow(self.caller_credentials, OptionalCallerContexts)
        self.siblings = self._live.follow(
            partial(self.credentials, self.client),
            partial(ClientContexts, protocol=SIBLING_PROTOCOL),
        )

    def stats(self) -> ClusterTrustStats:
        return replace(super().stats(), common_certificates=self._common_certificates)


def _serving_template(source: ServingNames) -> CertificateTemplate:
    names = source.current()
    if names is None:
        raise TemplateUnknown(source.problem() or "its names are not known yet")
    if not names.dns_names and not names.addresses:
        # The signer requires one (CertificateSigningRequest, kubernetes.io/kubelet-serving).
        raise TemplateUnknown("the server has no name or address by which it is dialed")
    return serving_template(names.dns_names, names.addresses)
