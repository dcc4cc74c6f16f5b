"""Contents of callers, kubelets and agents in messages are passed on unchanged, or rejected."""

from __future__ import annotations

import gzip
import zlib

from tests.server.frontends.kubelet.world import World
from yurttunnel.http.request_body import read_body
from yurttunnel.wire.codes import Code

EVIL = b"X-Evil"


class CompressionTests(World):
    """The proxy decompresses nothing, so a decompression bomb has no effect."""

    def test_answers(self) -> None:
        """A compressed response is passed on with its bytes, its length and its coding."""
        bomb = gzip.compress(bytes(8 << 20))
        self.kubelet.answer = lambda exchange: exchange.respond(
            200, [(b"Content-Encoding", b"gzip")], bomb
        )
        caller = self.dial()
        self.send_request(caller, Accept_Encoding="gzip")
        head, _, body = caller.received.partition(b"\r\n\r\n")
        self.assertEqual(bomb, body)
        self.assertIn(b"Content-Encoding: gzip", head)
        self.assertIn(b"Content-Length: %d" % len(bomb), head)

    def test_requests(self) -> None:
        """A compressed request is passed on unread."""
        bodies: list[bytes] = []

        def keep(exchange) -> None:
            read_body(exchange, 1 << 20).addCallback(bodies.append)

        self.kubelet.answer = keep
        bomb = zlib.compress(bytes(1 << 20))
        lengths = {"Content_Length": str(len(bomb)), "Content_Encoding": "deflate"}
        self.send_request(self.dial(), "/run/ns/pod/c", "POST", bomb, **lengths)
        self.assertEqual([b"deflate"], self.kubelet.head.values(b"content-encoding"))
        self.assertEqual([bomb], bodies)

    def test_codings_of_the_transfer(self) -> None:
        """A compressed transfer coding, which a proxy would have to decode, is rejected."""
        for coding in ("gzip, chunked", "deflate", "chunked, gzip"):
            caller = self.dial()
            self.send_request(caller, method="POST", Transfer_Encoding=coding)
            self.assertRegex(caller.received, rb"\AHTTP/1\.1 (400|501) ")
        self.assertEqual([], self.connected)


class InjectionTests(World):
    """No name from a caller or an agent can inject a header field or a log line."""

    def only_fields_of_ours(self, received: bytes) -> None:
        """Assert that there is one response, without a field of the attacker's."""
        head, _, body = received.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        self.assertFalse([line for line in lines[1:] if line.startswith(EVIL)], received)
        for line in lines:
            self.assertFalse(set(line) & set(b"\r\n\0"), received)
        self.assertEqual(1, received.count(b"HTTP/1.1 "), received)
        lengths = [line for line in lines if line.lower().startswith(b"content-length")]
        self.assertEqual([b"Content-Length: %d" % len(body)], lengths)

    def test_destinations(self) -> None:
        """An invalid destination is rejected, and quoted without unsafe characters."""
        for host in (
            "edge-1:10250\x00",
            "edge-1\tX-Evil: 1:10250",
            "edge-1 X-Evil: 1:10250",
            "edge-1@evil:10250",
            "edge-1/../evil:10250",
            "edge-1\\evil:10250",
            "[::1%25eth0]:10250",
            "edge-1%0d%0aX-Evil:%201:10250",
            "\u202eedge-1:10250",
            "*:10250",
            "e" * 300 + ":10250",
        ):
            for caller in (self.dial(), self.dial_insecurely()):
                self.send_request(caller, Host=host)
                self.assertRegex(caller.received, rb"\AHTTP/1\.1 (400|503) ", host)
                self.only_fields_of_ours(caller.received)
        self.assertEqual([], self.connected)

    def test_names_of_nodes(self) -> None:
        """An invalid node name that is given apart from the destination is rejected."""
        for name in ("edge-1\x00", "edge-1 x", "../edge-1", "edge-1%0d%0aX-Evil: 1", "é", "*"):
            caller = self.dial()
            self.send_request(caller, X_Tunnel_Proxy_Host=name)
            self.assertRegex(caller.received, rb"\AHTTP/1\.1 (400|503) ", name)
            self.only_fields_of_ours(caller.received)
        self.assertEqual([], self.connected)

    def test_reason_of_an_agent(self) -> None:
        """An agent's reason for a refusal ends neither the response head nor a line."""
        reason = "no\r\nX-Evil: 1\r\n\r\nHTTP/1.1 200 OK\x1b[2J\u2028"
        self.pair.acceptor.answer = lambda request: request.fail(Code.REFUSED, reason)
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 502)
        head, _, body = caller.received.partition(b"\r\n\r\n")
        self.assertNotIn(b"\r\n" + EVIL, head)
        self.assertEqual(1, len(body.decode().strip().splitlines()), body)
        self.assertNotIn(b"\x1b", caller.received)

    def test_lines_of_the_log(self) -> None:
        """A path and a request id with encoded line ends are one line in the log."""
        caller = self.dial()
        self.send_request(caller, "/metrics?%0aforged", X_Request_Id="a b%0aforged")
        self.answered(caller, 200)
        self.assertTrue(self.lines)
        for line in self.lines:
            self.assertEqual(1, len(line.splitlines()), line)
