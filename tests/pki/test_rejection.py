"""The TLS alerts to peers whose certificates are rejected."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from OpenSSL import SSL
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.support import Issuer, accept, client_context, dial
from yurttunnel.pki.caller_contexts import CallerContexts
from yurttunnel.pki.contexts import ClientContexts, ServerContexts, server_context
from yurttunnel.pki.kubelets import KubeletContexts, KubeletVerification
from yurttunnel.pki.names import CALLER_NAME
from yurttunnel.tunnel.tls import ALPN

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)


def alert_of(client: SSL.Connection, server: SSL.Connection) -> str:
    """Run a handshake that one side rejects, and return the alert that the other side gets."""
    alerts: list[str] = []
    failed: set[SSL.Connection] = set()
    for _ in range(10):
        for one, other in ((client, server), (server, client)):
            try:
                if one not in failed:
                    one.do_handshake()
                    one.recv(1)
            except SSL.WantReadError:
                pass
            except SSL.Error as error:
                failed.add(one)
                alerts += [entry[2] for entry in error.args[0] if " alert " in entry[2]]
            with contextlib.suppress(SSL.WantReadError):
                other.bio_write(one.bio_read(1 << 20))
    return alerts[0].partition(" alert ")[2] if alerts else "none"


class RejectionTests(SynchronousTestCase):
    """Certificates that are valid for OpenSSL, but rejected for their content."""

    def setUp(self) -> None:
        """Create an authority."""
        self.issuer = Issuer.make(self)

    def test_callers(self) -> None:
        """A caller whose name is not allowed gets the alert for its certificate."""
        names = CallerContexts(self.issuer.server("server.test"), ["somebody else"])
        anybody = CallerContexts(self.issuer.server("server.test"), None)
        for version in VERSIONS:
            for contexts, caller in (
                (names, self.issuer.caller()),
                (anybody, self.issuer.node()),
            ):
                client = SSL.Connection(client_context(caller, [b"http/1.1"], version), None)
                client.set_connect_state()
                self.assertEqual(alert_of(client, accept(contexts)), "bad certificate")
            client = SSL.Connection(client_context(self.issuer.caller(), [], version), None)
            client.set_connect_state()
            self.assertEqual(alert_of(client, accept(anybody)), "none")

    def test_servers(self) -> None:
        """A server that is dialed by another name gets it, too."""
        agents = ClientContexts(self.issuer.node())
        server = accept(ServerContexts(self.issuer.server("server.test")))
        refused: list[BaseException] = []
        client = dial(agents, "other.test", refused.append)
        self.assertEqual(alert_of(client, server), "bad certificate")
        self.assertIn("is for server.test and not for other.test", str(refused[0]))

    def test_agents_without_a_protocol(self) -> None:
        """A client without the right ALPN protocol is rejected for that, with a fitting alert."""
        contexts = ServerContexts(self.issuer.server())
        client = SSL.Connection(client_context(self.issuer.node(), []), None)
        client.set_connect_state()
        self.assertEqual(alert_of(client, accept(contexts)), "bad certificate")
        client = SSL.Connection(client_context(self.issuer.node(), [b"other"]), None)
        client.set_connect_state()
        self.assertEqual(alert_of(client, accept(contexts)), "no application protocol")
        client = SSL.Connection(client_context(self.issuer.node(), [ALPN]), None)
        client.set_connect_state()
        self.assertEqual(alert_of(client, accept(contexts)), "none")

    def test_kubelets(self) -> None:
        """A kubelet with another node's certificate gets it, too."""
        contexts = KubeletContexts(self.issuer.clock, self.issuer.caller(), KubeletVerification.CA)
        creator = contexts.creator("edge-1", "10.0.0.5")
        refused: list[BaseException] = []
        transport = SimpleNamespace(failVerification=lambda reason: refused.append(reason.value))
        client = creator.clientConnectionForTLS(transport)
        client.set_connect_state()
        server = SSL.Connection(server_context(self.issuer.server("edge-2")), None)
        server.set_accept_state()
        self.assertEqual(alert_of(client, server), "bad certificate")
        self.assertEqual(len(refused), 1)

    def test_what_openssl_finds_keeps_its_alert(self) -> None:
        """Expired and foreign certificates get OpenSSL's own alerts."""
        contexts = CallerContexts(self.issuer.server(), [CALLER_NAME])
        stranger = Issuer.make(self).caller()
        expired = self.issuer.caller(lifetime=-1)
        for caller, alert in ((stranger, "unknown ca"), (expired, "certificate expired")):
            client = SSL.Connection(client_context(caller, [b"http/1.1"]), None)
            client.set_connect_state()
            self.assertEqual(alert_of(client, accept(contexts)), alert)
