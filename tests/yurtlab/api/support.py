"""The API in memory, and its clients."""

from __future__ import annotations

import datetime
import functools
import json

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from OpenSSL.crypto import X509
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.http.support import SecureConnection, Server, responses, settle
from yurtlab.api.resources import NODES, PODS
from yurtlab.api.service import KubernetesAPI
from yurtlab.api.store import Store
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.server import HTTPFactory

NOW = 1_750_000_000
"""The time at which tests begin: 2025-06-15T15:06:40Z."""

PODS_PATH = "/api/v1/namespaces/default/pods"
WEB = f"{PODS_PATH}/web"
MAPS = "/api/v1/namespaces/default/configmaps"

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def pod(name="web", **spec):
    """Make a pod."""
    containers = [{"name": "main", "image": "none"}]
    metadata = {"name": name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
    }


def config_map(name="settings", **data):
    """Make a ConfigMap."""
    return {"metadata": {"name": name}, "data": data}


def node(name="edge-1", port=10250, **spec):
    """Make a node that is ready."""
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"metadata": {"name": name}, "spec": spec, "status": status}


@functools.cache
def certificate(common_names=("ada",), groups=("system:masters",)):
    """Make a client certificate, signed by itself: TLS verifies the issuer."""
    key = Ed25519PrivateKey.generate()
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names]
        + [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in groups]
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now)
    return builder.sign(key, None)


def user(name, *groups):
    """Make the certificate of a user."""
    return certificate((name,), groups)


class CertifiedConnection(SecureConnection):
    """A client's connection by TLS, with a certificate."""

    certificate = None

    def getPeerCertificate(self):
        """Return it."""
        return X509.from_cryptography(self.certificate)


class Client:
    """A client's connection to the API; ``known`` is its certificate, or whether it uses ada's."""

    def __init__(self, case, known=True):
        self._case = case
        self.connection = case.server.connect(self._connection(known))
        self._read = 0

    def _connection(self, known):
        if not known:
            return SecureConnection
        presented = certificate() if known is True else known
        return type("Connection", (CertifiedConnection,), {"certificate": presented})

    def send(self, method, path, body=None, *, fields=()):
        """Send a request."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body)
        data = data.encode() if isinstance(data, str) else data
        lines = [f"{method} {path} HTTP/1.1", "Host: api:6443", *fields]
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
        self.connection.receive("\r\n".join([*lines, "", ""]).encode() + data)
        self.settle()

    def settle(self):
        """Run all pending calls."""
        settle(self._case.clock, self.connection, *self._case.origins)

    @property
    def received(self):
        """Return the data received since the last response."""
        return self.connection.sent[self._read :]

    def response(self, method="GET"):
        """Return the complete response received: status, fields and body."""
        self.settle()
        ((status, fields, body, _),) = responses(self.received, method)
        self._read = len(self.connection.sent)
        return status, fields, body

    def events(self):
        """Return the events of a watch so far."""
        _, _, rest = self.received.partition(b"\r\n\r\n")
        events = []
        while rest and not rest.startswith(b"0\r\n"):
            size, _, rest = rest.partition(b"\r\n")
            chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            events += [json.loads(line) for line in chunk.splitlines()]
        return events


class ApiTestCase(SynchronousTestCase):
    """An API with one node, whose kubelet is simulated by the test."""

    def setUp(self):
        """Start it."""
        self.server = Server()
        self.clock = self.server.clock
        self.clock.advance(NOW)
        self.origins = []
        self.dialed = []
        self.store = Store(self.clock)
        self.api = self.make_api()
        self.server.factory = HTTPFactory(self.clock, self.api)
        self.addCleanup(self.server.factory.close)
        self.addCleanup(self.api.stop)
        self.store.create(NODES, None, node())

    def make_api(self):
        """Make the lab's API."""
        return KubernetesAPI(self.clock, self.store, self.connections)

    def connections(self, name, port):
        """Return a function that connects to nodes."""

        def acquire(**how):
            self.dialed.append((name, port))
            acquired = Deferred()
            self.connect_node(acquired)
            return acquired

        return acquire

    def connect_node(self, acquired):
        """Connect to the node; tests may override this."""
        connection = ClientConnection(self.clock)
        self.origins.append(MemoryConnection(self.clock).open(connection))
        acquired.callback(connection)

    def exchange(self, method, path, body=None, *, known=True, **options):
        """Make a request on a new connection, and return status, fields and body."""
        client = Client(self, known)
        client.send(method, path, body, **options)
        return client.response(method)

    def call(self, method, path, body=None, *, accept=None, media_type=None, token=None, **options):
        """Make a request, and return the status and the JSON of the response."""
        fields = [f"Accept: {accept}"] if accept else []
        if token:
            fields.append(f"Authorization: Bearer {token}")
            options["known"] = False
        if media_type:
            fields.append(f"Content-Type: {media_type}")
        status, _, answer = self.exchange(method, path, body, fields=fields, **options)
        return status, json.loads(answer)

    def create(self, body=None, path=PODS_PATH, **options):
        """Create an object, which must succeed."""
        status, created = self.call("POST", path, body or pod(), **options)
        self.assertEqual(201, status, created)
        return created

    def assert_error(self, answer, status, reason, message):
        """Check that a response is this ``Status``."""
        found, content = answer
        self.assertEqual(
            (status, "Status", "Failure", reason, message, status),
            (
                found,
                content.get("kind"),
                content.get("status"),
                content.get("reason"),
                content.get("message"),
                content.get("code"),
            ),
        )

    def watch(self, path, **options):
        """Start a watch, and return its client."""
        client = Client(self)
        client.send("GET", path, **options)
        return client

    def names(self, kind=PODS, namespace=None):
        """Return the names of the stored objects."""
        return [one["metadata"]["name"] for one in self.store.list(kind, namespace)]
