"""Names that a web page resolves to the port without TLS."""

from __future__ import annotations

import socket

from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.server.frontends.kubelet.fakes import head, request
from tests.server.frontends.kubelet.test_resolution import Session
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.registry import SessionRegistry

FOREIGN = ("evil.example:10264", "edge-1.evil.example:80", "127.0.0.1.evil.example", "evil.example")

CALLED = {"edge-1": {"edge-1"}, "edge-9": {"edge-9"}, "evil.node": {"edge-9", "edge-8"}}
"""The names known to the cluster; edge-9 has chosen one."""


class HostNamesTests(SynchronousTestCase):
    """Requests without TLS, some with a known destination."""

    def setUp(self):
        """Connect edge-1, which also serves unclaimed hosts, and a machine behind it."""
        self.registry = SessionRegistry(Clock())
        self.registry.add(Session("edge-1", "host=printer.site&default-route=true"))
        self.middleware = HostNames(self.registry, lambda host: CALLED.get(host, ()))
        self.passed = []

    def rejection_of(self, request_head, *words, **known):
        """Send a request through it; return the status of a rejection, ``None`` without one.

        The text of the rejection must have ``words``.
        """
        intercepted = request(request_head)
        intercepted.exchange.secure = False
        for name, value in known.items():
            setattr(intercepted, name, value)
        self.middleware.wrap(self.passed.append)(intercepted)
        if not intercepted.exchange.failures:
            self.assertIs(self.passed.pop(), intercepted)
            return None
        self.assertEqual(self.passed, [])
        [(status, text)] = intercepted.exchange.failures
        self.assertEqual(intercepted.refusal, text)
        self.assertNotIn("\n", text)
        for word in words:
            self.assertIn(word, text)
        return status

    def test_interface(self):
        """``HostNames`` provides ``IMiddleware``."""
        verifyObject(IMiddleware, self.middleware)

    def test_pages(self):
        """A page's own name reaches no node, whatever else the page sends."""
        for host in FOREIGN:
            for fields in (
                {"X_Tunnel_Proxy_Dest": "edge-1:10250"},
                {"X_Tunnel_Proxy_Host": "edge-1"},
                {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
                {"X_Tunnel_Proxy_Dest": ["a:1", "b:1"]},
            ):
                request_head = head(host=host, **fields)
                self.assertEqual(
                    421,
                    self.rejection_of(request_head, "an IP address or localhost"),
                    (host, fields),
                )
            destination = Destination("edge-1", "10.0.0.1", 10250)
            self.assertEqual(421, self.rejection_of(head(host=host), destination=destination), host)
        # The agent serves unclaimed hosts.
        self.assertEqual(421, self.rejection_of(head(host="evil.example:10264")))

    def test_own_names(self):
        """Addresses, names of this machine and names of nodes may choose the destination."""
        own = ("127.0.0.1:10264", "[::1]:10264", "192.0.2.7:1", "localhost:10264", "LOCALHOST")
        nodes = ("edge-1:10250", "Edge-1.:80", "printer.site:9100")
        for host in (*own, f"{socket.gethostname()}:10264", *nodes):
            for fields in ({}, {"X_Tunnel_Proxy_Dest": "edge-1:10250"}):
                self.assertIsNone(self.rejection_of(head(host=host, **fields)), host)

    def test_names_that_nodes_have_chosen(self):
        """A node's name reaches that node, whatever fields and the pod in the path contain."""
        self.registry.add(Session("edge-9"))
        for host, node in (("edge-9:10250", "edge-9"), ("evil.node:10264", "edge-9")):
            destination = Destination(node, "10.0.0.9", 10255)
            self.assertIsNone(self.rejection_of(head(host=host), destination=destination))
            for field in (
                {"X_Tunnel_Proxy_Dest": "edge-1:10255"},
                {"X_Tunnel_Proxy_Dest": "127.0.0.1:10266", "X_Tunnel_Proxy_Host": "edge-1"},
                {"X_Tunnel_Proxy_Host": "edge-1"},
            ):
                request_head = head(host=host, **field)
                self.assertEqual(
                    421, self.rejection_of(request_head, "and the request is for edge-1"), host
                )
            # Determined by the pod in the path.
            there = Destination("edge-1", "10.0.0.1", 10255)
            self.assertEqual(421, self.rejection_of(head(host=host), destination=there), host)

    def test_node_that_is_cut_off(self):
        """The cluster knows its name, so the proxy reports the error."""
        for fields in ({}, {"X_Tunnel_Proxy_Dest": "edge-9:10250"}):
            destination = Destination("edge-9", "edge-9", 10250)
            self.registry.belongs_to_other_node = lambda node, host: host == "edge-9" != node
            request_head = head(host="edge-9:10250", **fields)
            self.assertIsNone(self.rejection_of(request_head, destination=destination))

    def test_pages_of_other_sites(self):
        """A browser's requests for pages of other sites are rejected, whatever they request."""
        for host in ("localhost:10264", "127.0.0.1:10264", "edge-1:10255"):
            for fields in (
                {"Sec_Fetch_Site": "cross-site"},
                {"Sec_Fetch_Site": "same-site"},
                {"Sec_Fetch_Site": ["none", "cross-site"]},
                {"Origin": "http://evil.example"},
                {"Origin": "null"},
                {"Origin": f"https://{host}"},
                {"Origin": "http://localhost"},
            ):
                request_head = head(host=host, X_Tunnel_Proxy_Dest="edge-1:10255", **fields)
                self.assertEqual(403, self.rejection_of(request_head, "web pages"), (host, fields))
            for fields in ({"Sec_Fetch_Site": "none"}, {"Origin": f"http://{host}"}):
                request_head = head(host=host, X_Tunnel_Proxy_Dest="edge-1:10255", **fields)
                self.assertIsNone(self.rejection_of(request_head), (host, fields))

    def test_port_of_this_listener(self):
        """The port of this listener in Host is not a port of a node."""
        here = StringTransport().getHost().port
        destination = Destination("edge-1", "10.0.0.1", here)
        for host in (f"localhost:{here}", f"127.0.0.1:{here}", f"edge-1:{here}"):
            for known in ({"destination": destination}, {}):
                status = self.rejection_of(head(host=host), "X-Tunnel-Proxy-Dest", **known)
                self.assertEqual(421, status, host)
            request_head = head(host=host, X_Tunnel_Proxy_Dest=f"edge-1:{here}")
            self.assertIsNone(self.rejection_of(request_head), host)

    def test_nobody_there(self):
        """The proxy reports unreachable destinations, and bad fields."""
        self.registry.remove(self.registry.direct("edge-1"))
        self.assertIsNone(self.rejection_of(head(host="edge-1:10250")))
        self.assertIsNone(self.rejection_of(head(host=None)))
        self.assertIsNone(self.rejection_of(head(host="edge 1")))

    def test_proven(self):
        """If the connection has determined the destination, Host does not count; over TLS the
        caller chooses it.
        """
        destination = Destination("edge-1", "10.0.0.1", 10250)
        request_head = head(host="evil.example:10264")
        self.assertIsNone(self.rejection_of(request_head, destination=destination, proven=True))
        secured = request(request_head)
        self.middleware.wrap(self.passed.append)(secured)
        self.assertEqual(self.passed, [secured])
