"""A cluster that nodes join with bootstrap tokens: its API, with TLS on loopback."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.defer import maybeDeferred

from tests.apiserver.api import ClusterAPI
from tests.apiserver.signer import CertificateSigner
from tests.e2e.cluster.identities import Identities
from yurtlab.api.resources import SERVICES
from yurtlab.api.store import Store
from yurttunnel.http.server import HTTPFactory
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.loading import load_configuration
from yurttunnel.ops.services import CloseOnStop, StoppedInReverse
from yurttunnel.pki.caller_contexts import OptionalCallerContexts
from yurttunnel.pki.credentials import certificates_to_pem, pin_of
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.server.approver import ApprovalCounters, Approver
from yurttunnel.tunnel import tls

TOKEN = "abcdef.0123456789abcdef"
SERVICE_ADDRESS = "10.96.0.1"
SIGNED_SECONDS = 86400.0


class Cluster:
    """An API that accepts :data:`TOKEN`; its files are in ``directory``.

    ``requests`` has the callers and their requests: name, method and path are in the attributes.
    """

    def __init__(self, reactor, directory: str) -> None:
        self._reactor = reactor
        self._controllers = StoppedInReverse()
        self.identities = Identities(reactor, Path(directory).absolute())
        self.authority = self.identities.authority.certificate
        self.pin = pin_of(self.authority)
        self.requests: list = []
        self.store = Store(reactor)
        self.api = ClusterAPI(
            reactor,
            self.store,
            _no_nodes,
            on_request=lambda *request: self.requests.append(request),
            join=True,
        )
        self._factory = HTTPFactory(reactor, self.api, HTTP_SETTINGS)
        self.credentials = self.identities.serving("api", ["kubernetes"], "127.0.0.1")
        secured = tls.server_side(reactor, OptionalCallerContexts(self.credentials), self._factory)
        self.port = reactor.listenTCP(0, secured, interface="127.0.0.1")
        self.url = f"https://127.0.0.1:{self.port.getHost().port}"
        self.publish(self.authority)
        self.api.bootstrap_tokens.create(TOKEN)
        service = {"metadata": {"name": "kubernetes"}, "spec": {"clusterIP": SERVICE_ADDRESS}}
        self.store.create(SERVICES, "default", service)

    def publish(self, *authorities) -> None:
        """Write the authorities of the API's certificate to ``cluster-info``."""
        self.api.bootstrap_tokens.publish(self.url, certificates_to_pem(authorities))

    def run_controllers(self) -> None:
        """Start to approve certificate requests, with the tunnel's approver, and to sign them."""
        kubeconfig = self.identities.client_kubeconfig("admin", self.url, "admin", "system:masters")
        client = KubeClient(self._reactor, load_configuration(kubeconfig))
        informers = Informers(self._reactor, client)
        events = EventRecorder(self._reactor, client, "approver", "here")
        self.counters = ApprovalCounters()
        approver = Approver(self._reactor, client, informers, events, "kube-system", self.counters)
        authority = self.identities.signing_authority()
        signer = CertificateSigner(self._reactor, client, informers, authority, SIGNED_SECONDS)
        for part in (CloseOnStop(client.close), informers, events, signer, approver):
            part.setServiceParent(self._controllers)
        self._controllers.startService()

    async def close(self) -> None:
        """Stop it."""
        if self._controllers.running:
            await self._controllers.stopService()
        self._factory.close()
        self.api.stop()
        await maybeDeferred(self.port.stopListening)


def _no_nodes(name, port):
    raise AssertionError("no node is asked for anything here")
