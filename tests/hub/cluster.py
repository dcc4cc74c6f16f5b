"""A cluster that nodes join with bootstrap tokens: its API, on a port of loopback by TLS."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.defer import maybeDeferred

from tests.apiserver.api import ClusterAPI
from tests.e2e.cluster.identities import Identities
from yurtlab.api.store import Store
from yurttunnel.http.server import HTTPFactory
from yurttunnel.pki.callers import OptionalCallerContexts
from yurttunnel.pki.credentials import certificates_to_pem, pin_of
from yurttunnel.quickstart.composition import HTTP_SETTINGS
from yurttunnel.tunnel import tls

TOKEN = "abcdef.0123456789abcdef"


class Cluster:
    """An API that knows :data:`TOKEN`; its files are in ``directory``.

    ``requests`` has who has asked for what: name, method and path are in the attributes.
    """

    def __init__(self, reactor, directory: str) -> None:
        self.identities = Identities(reactor, Path(directory))
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
        self._factory = HTTPFactory(reactor, self.api.handler, HTTP_SETTINGS)
        self.credentials = self.identities.serving("api", ["kubernetes"], "127.0.0.1")
        secured = tls.server_side(reactor, OptionalCallerContexts(self.credentials), self._factory)
        self.port = reactor.listenTCP(0, secured, interface="127.0.0.1")
        self.url = f"https://127.0.0.1:{self.port.getHost().port}"
        self.publish(self.authority)
        self.api.bootstrap_tokens.create(TOKEN)

    def publish(self, *authorities) -> None:
        """Say in ``cluster-info`` who has signed the API's certificate."""
        self.api.bootstrap_tokens.publish(self.url, certificates_to_pem(authorities))

    def close(self):
        """End it."""
        self._factory.close()
        self.api.stop()
        return maybeDeferred(self.port.stopListening)


def _no_nodes(name, port):
    raise AssertionError("no node is asked for anything here")
