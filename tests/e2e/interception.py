"""The base class for tests of the listeners to which requests for kubelets are redirected."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from tests.e2e.certificates import Identity, authority_of, connect_with_tls
from tests.e2e.clients import Peer, RequestClient
from tests.e2e.http_clients import HttpClient, Response
from tests.e2e.kubelets import Kubelet, Script, serving_identity
from tests.e2e.programs import Program, Tunnel
from tests.e2e.support import EndToEndTestCase

IN_FLIGHT = "yurttunnel_server_total_in_proxy_requests"


def caller_of(tunnel: Tunnel) -> Identity:
    """Return the certificate and key that the server writes for callers."""
    directory = Path(tunnel.server.state)
    (certificate,) = x509.load_pem_x509_certificates((directory / "client.crt").read_bytes())
    return Identity(
        certificate, load_pem_private_key((directory / "client.key").read_bytes(), None)
    )


def write_identity(identity: Identity, stem: str) -> tuple[str, str]:
    """Write a certificate and its key to files; return their paths."""
    certificate, key = Path(f"{stem}.crt"), Path(f"{stem}.key")
    certificate.write_bytes(identity.certificate.public_bytes(Encoding.PEM))
    key.touch(0o600)
    key.write_bytes(identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(certificate), str(key)


class Frontend:
    """One of the two ports, with a kubelet behind it.

    Requests over TLS are forwarded over TLS: the kubelet determines which port it is.
    """

    def __init__(self, case: InterceptionTestCase, tunnel: Tunnel, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.secure = kubelet.secure
        self.name = "10263" if self.secure else "10264"
        self.port = tunnel.server.secure_port if self.secure else tunnel.server.insecure_port
        self.host = f"edge-1:{kubelet.port}"
        self._case = case
        self._caller = caller_of(tunnel)
        self._trusted = authority_of(tunnel.server.state).certificate

    async def client(self, host: str | None = None) -> HttpClient:
        """Connect a client whose requests are for ``host``, by default the kubelet."""
        client = HttpClient(self.host if host is None else host)
        await self.dial(client)
        return client

    async def dial(self, peer: Peer) -> Peer:
        """Connect ``peer`` to the port; the connection is closed at the end of the test."""
        if not self.secure:
            return await self._case.dial(self.port, peer)
        await connect_with_tls(reactor, self.port, peer, self._trusted, self._caller, b"http/1.1")
        return self._case.end_with_test(peer)

    async def get(self, target: str, host: str | None = None, fields=()) -> Response:
        """Send one request on a new connection."""
        client = await self.client(host)
        response = await client.ask(target, fields=fields).whole()
        client.transport.loseConnection()
        await client.when_lost()
        return response

    async def raw(self, text: bytes, finish: bool = False) -> RequestClient:
        """Send raw bytes."""
        return await self.dial(RequestClient(text, finish))


class InterceptionTestCase(EndToEndTestCase):
    """A test case with a tunnel and kubelets behind it."""

    def plain_kubelet(self, script: Script, **options) -> Kubelet:
        """Start a kubelet without TLS; it is stopped at the end of the test."""
        return self._ends_with_test(Kubelet(reactor, script, **options))

    def secure_kubelet(self, tunnel: Tunnel, script: Script, **options) -> Kubelet:
        """Start a kubelet whose certificate is by default issued by the server's authority.

        It also requires the server's certificate.
        """
        authority = authority_of(tunnel.server.state)
        options.setdefault("identity", serving_identity(authority, ["edge-1"], ["127.0.0.1"]))
        options.setdefault("callers_authority", authority.certificate)
        return self._ends_with_test(Kubelet(reactor, script, **options))

    def _ends_with_test(self, kubelet: Kubelet) -> Kubelet:
        self.addCleanup(lambda: Deferred.fromCoroutine(kubelet.stop()))
        return kubelet

    async def start_with_frontends(
        self, script: Script, **options
    ) -> tuple[Tunnel, list[Frontend]]:
        """Start a tunnel, and a kubelet behind each port: one with TLS, and one without."""
        tunnel = await self.start_tunnel(**options)
        return tunnel, self.frontends(tunnel, script)

    def frontends(self, tunnel: Tunnel, script: Script) -> list[Frontend]:
        """Start a kubelet behind each port of a running tunnel."""
        kubelets = (self.secure_kubelet(tunnel, script), self.plain_kubelet(script))
        return [Frontend(self, tunnel, kubelet) for kubelet in kubelets]

    def end_with_test(self, peer: Peer) -> Peer:
        """Close a peer's connection at the end of the test."""
        self._end_peer_with_test(peer)
        return peer

    def descriptors_of(self, tunnel: Tunnel) -> list[tuple[Program, dict[str, str]]]:
        """Return both programs' open descriptors, for :meth:`assert_no_leftovers`."""
        return [(program, program.descriptors()) for program in (tunnel.server, tunnel.agent)]

    async def assert_no_leftovers(
        self,
        tunnel: Tunnel,
        frontends: list[Frontend],
        before: list[tuple[Program, dict[str, str]]],
    ) -> None:
        """Require that nothing remains once clients and kubelets have closed.

        No request is counted as active, and the descriptors are the same as before: the server
        notices when a kubelet closes an idle connection.
        """
        for door in frontends:
            door.kubelet.close_idle()
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors, 8)

        async def no_request() -> bool:
            return await tunnel.server.metric(IN_FLIGHT) == 0

        await self.eventually(no_request, "no request is under way")
        for door in frontends:
            # The other program may be notified of the last one's end a moment later.
            await self.eventually(
                lambda kubelet=door.kubelet: not kubelet.open,
                f"{door.name}: no connection to the kubelet is left",
            )
