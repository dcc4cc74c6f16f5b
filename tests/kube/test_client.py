"""The client's contract, with the embedded API."""

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
    """A connection with an administrator's certificate."""

    def getPeerCertificate(self):
        """Return the certificate."""
        return X509.from_cryptography(certificate())


class EmbeddedApiTests(ClientContract, ApiTestCase):
    """The contract, with a cluster's API."""

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
        """Transfer all pending data."""
        self.network.settle()

    def pass_time(self, seconds):
        """Advance the clock."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.settle()

    def forget_history(self):
        """Make enough changes that the first ones are forgotten."""
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
        """Idle connections are closed after a minute, before the API closes them in a request."""
        self.done(self.client.list(CONFIG_MAPS))
        self.pass_time(59)
        self.done(self.client.list(CONFIG_MAPS))
        self.pass_time(59)
        self.assertEqual(1, len(self.network.links))
        self.pass_time(1)
        self.done(self.client.list(CONFIG_MAPS))
        self.assertEqual(2, len(self.network.links))
