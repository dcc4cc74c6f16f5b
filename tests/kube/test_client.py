"""The client: it keeps the contract with the embedded API, and survives answers of all kinds."""

from __future__ import annotations

from OpenSSL.crypto import X509

from tests.apiserver.support import ApiTestCase
from tests.http.support import SecureConnection
from tests.kube.contract_client import ClientContract
from tests.kube.network import Network
from tests.yurtlab.api.support import certificate
from yurtlab.api import resources as stored
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import FileCredentials
from yurttunnel.kube.resources import CONFIG_MAPS


class Administrator(SecureConnection):
    """A connection with the certificate of somebody who may do everything."""

    def getPeerCertificate(self):
        """Return it."""
        return X509.from_cryptography(certificate())


class EmbeddedApiTests(ClientContract, ApiTestCase):
    """The contract, against the API of a cluster."""

    def setUp(self):
        """Connect a client."""
        super().setUp()
        self.network = Network(self.clock, lambda: self.server.connect(Administrator))
        configuration = KubeConfiguration(
            "http://api:8001", "default", lambda: b"", FileCredentials()
        )
        self.client = KubeClient(self.clock, configuration, self.network)
        self.addCleanup(self.client.close)

    def settle(self):
        """Let everything move."""
        self.network.settle()

    def pass_time(self, seconds):
        """Let time pass."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.settle()

    def forget_history(self):
        """Make so many changes that the first are forgotten."""
        namespace = "forgotten"
        for number in range(600):
            body = {"metadata": {"name": f"c{number}"}}
            self.store.create(stored.CONFIG_MAPS, namespace, body)
        for number in range(600):
            self.store.remove(stored.CONFIG_MAPS, namespace, f"c{number}")

    def cut_off(self):
        """Lose all connections."""
        self.network.cut_off()

    def test_idle_connections(self):
        """They are closed after a minute, before the API does it in the middle of a request."""
        self.done(self.client.list(CONFIG_MAPS))
        self.pass_time(59)
        self.done(self.client.list(CONFIG_MAPS))
        self.pass_time(59)
        self.assertEqual(1, len(self.network.links))
        self.pass_time(1)
        self.done(self.client.list(CONFIG_MAPS))
        self.assertEqual(2, len(self.network.links))
