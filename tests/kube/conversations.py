"""A client of the API with a server that the test plays."""

from __future__ import annotations

import json

from twisted.internet.defer import fail, succeed
from twisted.internet.protocol import Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import MemoryConnection
from tests.kube.network import Network
from yurttunnel.kube.client import KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import Credentials
from yurttunnel.kube.resources import NODES

SECRET = "a-secret-token"


class Conversation(Protocol):
    """The server's end of a connection, which the test reads and writes."""

    def __init__(self):
        self.received = b""

    def dataReceived(self, data):
        """Store the data."""
        self.received += data


class Source:
    """Credentials that the test changes; ``forgotten`` are the rejected tokens."""

    def __init__(self):
        self.token = SECRET
        self.error = None
        self.forgotten = []
        self.after = None

    def current(self, reactor):
        """Return the credentials."""
        return succeed(Credentials(self.token)) if self.error is None else fail(self.error)

    def forget(self, refused):
        """Record the rejection, and change the token."""
        self.forgotten.append(refused.token)
        self.token = self.after or self.token


class AnswersTestCase(SynchronousTestCase):
    """A client, and the test as its server."""

    def setUp(self):
        """Connect them."""
        self.clock = MemoryReactorClock()
        self.conversations = []
        self.network = Network(self.clock, self.accept)
        self.source = Source()
        self.configuration = KubeConfiguration(
            "http://api:8001/prefix", "default", lambda: b"", self.source
        )
        self.client = KubeClient(self.clock, self.configuration, self.network)
        self.addCleanup(self.stop)

    def stop(self):
        """Close, and assert that nothing is left."""
        closing = self.client.close()
        self.network.settle()
        self.successResultOf(closing)
        self.assertEqual([], self.clock.getDelayedCalls())

    def accept(self):
        """Accept a connection."""
        self.conversations.append(Conversation())
        return MemoryConnection(self.clock).open(self.conversations[-1])

    @property
    def server(self):
        """The newest connection."""
        return self.conversations[-1]

    def requests(self, asked=None):
        """Return the requests of the newest connection since the last call."""
        self.network.settle()
        received, self.server.received = self.server.received, b""
        return received.decode()

    def answer(self, status, body, *fields, complete=True, to=None):
        """Respond with JSON or bytes, by default on the newest connection."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = len(data) if complete else len(data) + 1
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {length}", *fields, "", ""]
        self.network.settle()
        (to or self.server).transport.write("\r\n".join(lines).encode() + data)
        self.network.settle()

    def get(self):
        """Request an object."""
        return self.client.get(NODES, "n1")

    def status(self, code, reason, message="no", **more):
        """Create a ``Status``."""
        return {"kind": "Status", "code": code, "reason": reason, "message": message, **more}
