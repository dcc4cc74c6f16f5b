"""The requirements of kube-apiserver on the proxy of its egress selector.

``Apiserver`` reads a response as ``tunnelHTTPConnect`` does, in k8s.io/apiserver (v0.31)
pkg/server/egressselector/egress_selector.go: one read of up to 4096 bytes, which must end where the
head ends, and only the status line counts.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports
from tests.e2e.clients import Peer
from tests.e2e.programs import Tunnel
from tests.e2e.support import EndToEndTestCase, TwistedTransports

BANNER = b"SSH-2.0-edge\r\n"
DIALS = 50
"""Enough for bytes that follow the 200 too early to be seen on any machine: without care for that
every third dial on a Unix socket has some."""


class SpeaksFirst(Peer):
    """A target that sends first, as SSH servers do."""

    def connectionMade(self) -> None:
        """Send."""
        super().connectionMade()
        self.transport.write(BANNER)


class ProxyError(Exception):
    """The proxy has violated a requirement; the text is kube-apiserver's error."""


@dataclass
class Apiserver:
    """A kube-apiserver that dials through ``connect``; it blocks."""

    connect: Callable[[], socket.socket]

    def dial(self, address: str) -> socket.socket:
        """Dial through the proxy; raises :class:`ProxyError`."""
        connection = self.connect()
        try:
            head = f"CONNECT {address} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            connection.sendall(head.encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                more = connection.recv(4096)
                if not more:
                    raise ProxyError(f"reading HTTP response failed: unexpected EOF: {answer!r}")
                answer += more
            lines, _, rest = answer.partition(b"\r\n\r\n")
            _, code, status = lines.decode().partition("\r\n")[0].split(" ", 2)
            if code != "200":
                raise ProxyError(f"code {code}: {code} {status}")
            if rest:
                raise ProxyError(f"unexpected {len(rest)} bytes of buffered data: {rest!r}")
        except BaseException:
            connection.close()
            raise
        return connection

    def dial_and_receive(self, address: str) -> bytes:
        """Dial, and return the first data of the target."""
        with self.dial(address) as connection:
            received = b""
            while len(received) < len(BANNER) and (more := connection.recv(4096)):
                received += more
            return received

    def complaint(self, address: str) -> str:
        """Dial, which must fail, and return kube-apiserver's error."""
        try:
            self.dial(address).close()
        except ProxyError as error:
            return str(error)
        raise AssertionError(f"{address} was reached")


class EgressTests(EndToEndTestCase):
    """kube-apiserver reaches nodes through a Unix socket, and through TCP with TLS."""

    async def start(self) -> tuple[Tunnel, dict[str, Apiserver]]:
        """Start a tunnel; return it with a kube-apiserver for each transport."""
        port = free_ports.take()
        tunnel = await self.start_tunnel(server_extra=("--connect-endpoint", f"ssl:{port}"))
        state = tunnel.server.state

        def by_unix_socket() -> socket.socket:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(20)
            connection.connect(tunnel.socket_path)
            return connection

        def by_tls() -> socket.socket:
            context = ssl.create_default_context(cafile=f"{state}/ca.crt")
            context.load_cert_chain(f"{state}/client.crt", f"{state}/client.key")
            plain = socket.create_connection(("127.0.0.1", port), timeout=20)
            return context.wrap_socket(plain, server_hostname="localhost")

        return tunnel, {"UDS": Apiserver(by_unix_socket), "TCP": Apiserver(by_tls)}

    async def test_no_data_is_in_the_read_with_the_head(self) -> None:
        """Data of a target that sends first is delivered, and never in the read with the head."""
        target = self.listen(SpeaksFirst)
        _, apiservers = await self.start()
        for transport, apiserver in apiservers.items():
            for _ in range(DIALS):
                received = await deferToThread(
                    apiserver.dial_and_receive, f"127.0.0.1:{target.port}"
                )
                self.assertEqual(received, BANNER, transport)

    async def test_failures_have_a_reason(self) -> None:
        """The error passed on by kube-apiserver has the status and the reason."""
        closed = free_ports.take()
        tunnel, apiservers = await self.start()
        for apiserver in apiservers.values():
            for address, words in (
                ("edge-9:10250", "code 503: 503 no agent is connected for edge-9"),
                (f"127.0.0.1:{closed}", f"code 502: 502 connect 127.0.0.1:{closed} from edge-1"),
            ):
                received = await deferToThread(apiserver.complaint, address)
                self.assertIn(words, received)
        self.assertTrue(tunnel.server.running)


class TwistedEgressTests(TwistedTransports, EgressTests):
    """The same over Twisted's own transports."""
