"""The node that a request names, and the address there."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.server.frontends.kubelet.fakes import head
from yurttunnel.http.head import HeadError, RequestHead
from yurttunnel.server.frontends.kubelet.destination import Destination, destination_of


class DestinationTests(SynchronousTestCase):
    """The fields of the destination."""

    def found(self, **fields):
        """Return node, host and port of a request with these fields."""
        destination = destination_of(head(**fields))
        return destination.node, destination.host, destination.port

    def refused(self, request_head, *words):
        """Assert that a request is rejected with ``words`` in one line."""
        error = self.assertRaises(HeadError, destination_of, request_head)
        self.assertEqual(400, error.status)
        for each in words:
            self.assertIn(each, error.text)
        self.assertNotIn("\n", error.text)

    def test_host(self):
        """A caller that believes it has dialed the kubelet names both by Host."""
        for host, name in (
            ("edge-1:10250", "edge-1"),
            ("EDGE-1:10250", "edge-1"),
            ("192.0.2.7:10250", "192.0.2.7"),
            ("[2001:DB8::7]:10250", "2001:db8::7"),
        ):
            self.assertEqual((name, name, 10250), self.found(host=host))

    def test_destination_field(self):
        """X-Tunnel-Proxy-Dest has priority over Host, which then needs no port."""
        self.assertEqual(
            ("192.0.2.7", "192.0.2.7", 10255),
            self.found(host="tunnel.example", x_tunnel_proxy_dest="192.0.2.7:10255"),
        )
        self.assertEqual(
            ("edge-1", "edge-1", 1), self.found(host=None, X_Tunnel_Proxy_Dest="edge-1:1")
        )

    def test_node_field(self):
        """X-Tunnel-Proxy-Host names the node only, in every form that yurttunnel 1.2 accepted."""
        for text, node in (
            ("edge-2", "edge-2"),
            ("edge-2:10250", "edge-2"),
            ("192.0.2.8", "192.0.2.8"),
            ("192.0.2.8:1", "192.0.2.8"),
            ("[2001:db8::8]:1", "2001:db8::8"),
            ("2001:db8::8", "2001:db8::8"),
        ):
            self.assertEqual(
                (node, "127.0.0.1", 10250),
                self.found(host="127.0.0.1:10250", x_tunnel_proxy_host=text),
            )

    def test_all_fields(self):
        """All three together: the node, the destination, and an ignored Host."""
        self.assertEqual(
            ("edge-2", "127.0.0.1", 9100),
            self.found(
                host="localhost:10264",
                x_tunnel_proxy_host="edge-2",
                x_tunnel_proxy_dest="127.0.0.1:9100",
            ),
        )

    def test_empty_fields(self):
        """Empty fields of the tunnel count as absent."""
        self.assertEqual(
            ("edge-1", "edge-1", 10250),
            self.found(x_tunnel_proxy_host="", x_tunnel_proxy_dest=""),
        )

    def test_authority(self):
        """The kubelet gets its host and port in the form of Host."""
        self.assertEqual("edge-1:10250", Destination("n", "edge-1", 10250).authority)
        self.assertEqual("[2001:db8::7]:1", Destination("n", "2001:db8::7", 1).authority)

    def test_no_port(self):
        """A port is mandatory, and the response has the correct form."""
        for host in ("edge-1", "192.0.2.7", "[2001:db8::7]", "2001:db8::7"):
            self.refused(
                head(host=host), "Host is not a destination such as edge-1:10250", "no port"
            )
        self.refused(head(x_tunnel_proxy_dest="edge-1"), "X-Tunnel-Proxy-Dest is not a destination")

    def test_no_destination(self):
        """HTTP/1.0 has requests without Host."""
        self.refused(head(host=None), "the request has no Host", "edge-1:10250")
        self.refused(head(host=""), "the request has no Host")

    def test_nonsense(self):
        """Malformed hosts and ports are quoted."""
        for host in ("edge 1:80", "a@b:80", "edge-1:0", "edge-1:65536", "edge-1:+80", "a/b:1"):
            self.refused(head(host=host), "Host is not a destination", "10250")
        self.refused(head(host="[fe80::1%eth0]:1"), "zone")
        self.refused(
            head(x_tunnel_proxy_host="edge 1"),
            "X-Tunnel-Proxy-Host is not a node",
            "write its name or address",
        )

    def test_not_ascii(self):
        """Bytes that are not text are handled."""
        for name in (b"Host", b"X-Tunnel-Proxy-Dest", b"X-Tunnel-Proxy-Host"):
            fields = [(b"Host", b"edge-1:1")] if name != b"Host" else []
            self.refused(RequestHead(b"GET", b"/", "1.1", [*fields, (name, b"\xe4:1")]), "\\xe4")

    def test_twice(self):
        """Each field may occur once."""
        for name in ("x_tunnel_proxy_host", "x_tunnel_proxy_dest"):
            self.refused(head(**{name: ["a:1", "a:1"]}), "is given more than once")
        self.refused(head(Host=["edge-2:1"]), "Host is given more than once")
