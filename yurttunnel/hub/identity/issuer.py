"""The issuer of the hub's certificates: a signer of its cluster, through one of the API servers.

It does not use the hub's own port, because the credentials may be others than the hub's, and
because the hub needs a certificate before anything else of it works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IReactorTime

from yurttunnel.hub.identity.authorities import ClusterAuthorities
from yurttunnel.hub.identity.bootstrap import Bootstrap
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.pki.cluster_issuer import ClusterIssuer
from yurttunnel.pki.credentials import certificates_to_pem, key_to_pem
from yurttunnel.pki.issuer import CertificateTemplate, Chain, IssuedCertificate, NotIssued
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.tunnel.reactor import IReactor

Own = Callable[[], CertificateRenewal]
"""Returns the renewal of the node's client certificate."""


class HubIssuer:
    """Requests certificates as the node if its certificate is valid, else with ``bootstrap``.

    Without ``bootstrap`` it waits for the node's certificate. Each attempt uses the next of
    ``servers``, which are URLs; while it waits for the certificate, it may use any of them.
    """

    final_errors: tuple[type[Exception], ...] = ()

    def __init__(
        self,
        reactor: IReactor,
        servers: Sequence[str],
        template: CertificateTemplate,
        authorities: ClusterAuthorities,
        own: Own,
        bootstrap: Bootstrap | None = None,
    ) -> None:
        self._reactor = reactor
        self._servers = servers
        self._signer, self._usages = template.signer, template.usages
        self._authorities = authorities
        self._own = own
        self._bootstrap = bootstrap
        self._next_server = 0

    async def issue(self, request: bytes, on_waiting: Callable[[str], object]) -> Chain:
        """Return the certificate; see ``Issuer``."""
        own = self._own()
        if self._bootstrap is None and not own.is_usable:
            on_waiting("the node's client certificate is needed first")
            await own.when_ready()
        skip, first = divmod(self._next_server, len(self._servers))
        self._next_server += 1
        servers = [*self._servers[first:], *self._servers[:first]]
        credentials = await self._credentials(servers[0], skip)
        client, *others = clients = [self._client(server, credentials, skip) for server in servers]
        clock: IReactorTime = self._reactor
        issuer = ClusterIssuer(clock, client, self._signer, self._usages, others)
        try:
            return await issuer.issue(request, on_waiting)
        finally:
            for each in clients:
                await each.close()

    def _client(self, server: str, credentials: FileCredentials, skip: int) -> KubeClient:
        configuration = KubeConfiguration(server, "default", self._authorities.pem, credentials)
        return KubeClient(self._reactor, configuration, skip=skip)

    async def _credentials(self, server: str, skip: int) -> FileCredentials:
        own = self._own()
        issued = own.current if own.is_usable else None
        trusted = self._authorities.current
        bootstrap = self._bootstrap
        may_join = bootstrap is not None and bootstrap.is_possible
        if issued is not None and trusted:
            # A certificate of another authority may be from another cluster.
            is_usable = issued.is_from(trusted) and not own.is_rejected
            if is_usable or not may_join:
                return _presenting(issued)
        if bootstrap is None:
            raise NotIssued("the node's client certificate is needed first")
        return await bootstrap.credentials(server, skip)


def _presenting(issued: IssuedCertificate) -> FileCredentials:
    chain = certificates_to_pem([issued.certificate, *issued.chain])
    return FileCredentials(certificate=chain, key=key_to_pem(issued.key))
