"""The descriptions of failed handshakes, on the server and on the agent."""

from __future__ import annotations

from OpenSSL import SSL
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.pki.support import Issuer, accept, client_context, handshake
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.tls_errors import problem_with_peer, problem_with_server, rejection_error
from yurttunnel.tunnel.tls import ALPN as TUNNEL_PROTOCOL
from yurttunnel.wire.codes import Code, Refused

VERSIONS = (SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION)


class ProblemTests(TestCase):
    """Sentences for failures of the handshake."""

    def setUp(self) -> None:
        """Create a server."""
        self.issuer = Issuer.make(self)
        self.contexts = ServerContexts(self.issuer.server())

    def problems(
        self, credentials: Credentials | None, protocols: list[bytes], version: int
    ) -> tuple[str, str]:
        """Run a handshake that fails, and return the sentences of server and agent."""
        agent = SSL.Connection(client_context(credentials, protocols, version), None)
        agent.set_connect_state()
        server = accept(self.contexts)
        with self.assertRaises(SSL.Error) as at_server:
            handshake(agent, server)
        agent.bio_write(server.bio_read(10000))
        with self.assertRaises(SSL.Error) as at_agent:
            agent.do_handshake()
            agent.recv(1)
        return (
            problem_with_peer(Failure(at_server.exception)),
            problem_with_server(Failure(at_agent.exception)),
        )

    def test_certificates(self) -> None:
        """Both ends report the fault of an agent's certificate, and the agent also the fix."""
        self.issuer.clock.advance(3600)
        early = self.issuer.node()
        self.issuer.clock.rightNow -= 3600
        for credentials, at_server, at_agent in (
            (self.issuer.expired_node(), "its certificate has expired", "has expired: compare"),
            (early, "is not valid yet: compare", "may not be valid yet"),
            (
                Issuer.make(self).node(),
                "not from this server's authority",
                "not know the authority",
            ),
            (self.issuer.server(), "not valid for this use", "not an agent's certificate"),
        ):
            for version in VERSIONS:
                server, agent = self.problems(credentials, [TUNNEL_PROTOCOL], version)
                self.assertIn(at_server, server)
                self.assertIn(at_agent, agent)

    def test_no_certificate(self) -> None:
        """An agent without a certificate is distinguished from one with an invalid one."""
        server, agent = self.problems(None, [TUNNEL_PROTOCOL], SSL.TLS1_3_VERSION)
        self.assertEqual(server, "it presented no certificate")
        self.assertIn("remove node.pem", agent)

    def test_other_protocol(self) -> None:
        """An agent that has reached another program is advised to check the address."""
        for version in VERSIONS:
            server, agent = self.problems(self.issuer.node(), [b"h2"], version)
            self.assertIn("it offers no protocol that is served here", server)
            self.assertIn("does not speak yurttunnel/1 there", agent)

    def test_old_version(self) -> None:
        """A TLS version that is too old is reported as the problem."""
        context = client_context(self.issuer.node(), [TUNNEL_PROTOCOL], SSL.TLS1_1_VERSION)
        context.set_cipher_list(b"DEFAULT:@SECLEVEL=0")
        agent = SSL.Connection(context, None)
        agent.set_connect_state()
        with self.assertRaises(SSL.Error) as caught:
            handshake(agent, accept(self.contexts))
        self.assertIn("does not support TLS 1.2", problem_with_peer(Failure(caught.exception)))

    def test_no_tls(self) -> None:
        """A peer that does not speak TLS is distinguished from an invalid agent."""
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n"):
            server = accept(self.contexts)
            server.bio_write(greeting)
            with self.assertRaises(SSL.Error) as caught:
                server.do_handshake()
            self.assertIn("does not speak TLS", problem_with_peer(Failure(caught.exception)))

    def test_agent_distrusts_the_server(self) -> None:
        """The server reports that the agent has rejected it."""
        for version in VERSIONS:
            context = client_context(self.issuer.node(), [TUNNEL_PROTOCOL], version)
            context.set_verify(SSL.VERIFY_PEER)
            agent = SSL.Connection(context, None)
            agent.set_connect_state()
            server = accept(self.contexts)
            with self.assertRaises(SSL.Error):
                handshake(agent, server)
            server.bio_write(agent.bio_read(10000))
            with self.assertRaises(SSL.Error) as caught:
                server.do_handshake()
            reason = problem_with_peer(Failure(caught.exception))
            self.assertIn("it does not trust this server's certificate", reason)

    def test_cut(self) -> None:
        """A connection that was lost during the handshake is reported as such."""
        for error in (SSL.Error(), SSL.Error([])):
            self.assertIn("closed during the TLS handshake", problem_with_peer(Failure(error)))

    def test_unknown_words(self) -> None:
        """Unknown errors are passed on, and unknown alerts are described as alerts."""
        for text, reason in (
            ("something new", "something new"),
            ("tlsv1 alert strange thing", "it has sent the TLS alert 'strange thing'"),
        ):
            error = SSL.Error([("SSL routines", "", text)])
            self.assertEqual(problem_with_peer(Failure(error)), reason)

    def test_own_words(self) -> None:
        """A rejection keeps its own text, whatever names are in it."""
        error = rejection_error("its certificate is for 'alert unknown ca'")
        self.assertEqual(
            problem_with_peer(Failure(error)), "its certificate is for 'alert unknown ca'"
        )

    def test_refusals_of_the_session(self) -> None:
        """After a revocation or an excessive claim, the agent reports the fix."""
        for code, words in (
            (Code.REVOKED, "to accept it again, remove node.pem from the agent's --state-dir"),
            (Code.NOT_AUTHORIZED, "remove that from --agent-identifiers"),
        ):
            reason = problem_with_server(Failure(Refused(code, "no")))
            self.assertTrue(reason.startswith(f"no ({code.name}): "))
            self.assertIn(words, reason)
        reason = problem_with_server(Failure(Refused(Code.GOING_AWAY, "about to stop")))
        self.assertEqual(reason, "about to stop (GOING_AWAY)")

    def test_other_failures(self) -> None:
        """Failures outside of TLS keep their texts."""
        failure = Failure(ConnectionRefusedError())
        self.assertEqual(problem_with_server(failure), failure.getErrorMessage())
