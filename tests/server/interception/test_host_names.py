"""Names that a web page makes lead to the port without TLS."""

from __future__ import annotations

import socket

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.server.interception.fakes import head, request
from tests.server.interception.test_resolution import Session
from yurttunnel.server.interception.destination import Destination
from yurttunnel.server.interception.host_names import HostNames
from yurttunnel.server.interception.middleware import IMiddleware
from yurttunnel.server.registry import SessionRegistry

FOREIGN = ("evil.example:10264", "edge-1.evil.example:80", "127.0.0.1.evil.example", "evil.example")


class HostNamesTests(SynchronousTestCase):
    """Requests without TLS, whose destination may be known already."""

    def setUp(self):
        """Connect edge-1, which also serves what nobody else does, and a machine beside it."""
        self.registry = SessionRegistry(Clock())
        self.registry.add(Session("edge-1", "host=printer.site&default-route=true"))
        self.middleware = HostNames(self.registry, lambda host: host == "edge-9")
        self.passed = []

    def ask(self, request_head, **known):
        """Send a request through it; give how it was refused, ``None`` if it was not."""
        asked = request(request_head)
        asked.exchange.secure = False
        for name, value in known.items():
            setattr(asked, name, value)
        self.middleware.wrap(self.passed.append)(asked)
        if not asked.exchange.failures:
            self.assertIs(self.passed.pop(), asked)
            return None
        self.assertEqual(self.passed, [])
        [(status, text)] = asked.exchange.failures
        self.assertEqual((status, asked.refusal), (421, text))
        self.assertIn("ask for an IP address or localhost", text)
        self.assertNotIn("\n", text)
        return status

    def test_interface(self):
        """It is a middleware."""
        verifyObject(IMiddleware, self.middleware)

    def test_pages(self):
        """A page's own name reaches nobody, whatever else the page sends."""
        for host in FOREIGN:
            for fields in (
                {"X_Tunnel_Proxy_Dest": "edge-1:10250"},
                {"X_Tunnel_Proxy_Host": "edge-1"},
                {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
                {"X_Tunnel_Proxy_Dest": ["a:1", "b:1"]},
            ):
                self.assertEqual(421, self.ask(head(host=host, **fields)), (host, fields))
            destination = Destination("edge-1", "10.0.0.1", 10250)
            self.assertEqual(421, self.ask(head(host=host), destination=destination), host)
        # The agent serves hosts that nobody else does.
        self.assertEqual(421, self.ask(head(host="evil.example:10264")))

    def test_own_names(self):
        """Addresses, names of this machine and those of nodes say where they want to."""
        own = ("127.0.0.1:10264", "[::1]:10264", "192.0.2.7:1", "localhost:10264", "LOCALHOST")
        nodes = ("edge-1:10250", "Edge-1.:80", "printer.site:9100", "edge-9:10250")
        for host in (*own, f"{socket.gethostname()}:10264", *nodes):
            for fields in ({}, {"X_Tunnel_Proxy_Dest": "edge-1:10250"}):
                self.assertIsNone(self.ask(head(host=host, **fields)), host)

    def test_nobody_there(self):
        """Who reaches nobody is told that by the proxy, and of bad fields as well."""
        self.registry.remove(self.registry.direct("edge-1"))
        self.assertIsNone(self.ask(head(host="edge-1:10250")))
        self.assertIsNone(self.ask(head(host=None)))
        self.assertIsNone(self.ask(head(host="edge 1")))

    def test_proven(self):
        """Where the connection has decided, Host says nothing; over TLS it is the caller's."""
        destination = Destination("edge-1", "10.0.0.1", 10250)
        asked = head(host="evil.example:10264")
        self.assertIsNone(self.ask(asked, destination=destination, proven=True))
        secured = request(asked)
        self.middleware.wrap(self.passed.append)(secured)
        self.assertEqual(self.passed, [secured])
