"""A server built from its command line, on a reactor in memory."""

from __future__ import annotations

import builtins
import json
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from twisted.application.service import IService
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.fakes import FakeSession, MemoryConnection
from tests.logged import Logged
from tests.network import ProgramReactor, without_thread
from tests.pki.support import EDGE_1, clock_now
from yurttunnel.pki.authority import request_certificate
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.embedded_issuer import EmbeddedIssuer
from yurttunnel.pki.enrolment_messages import EnrolmentRequest
from yurttunnel.pki.identity import format_identifiers
from yurttunnel.pki.issuer import NotIssued
from yurttunnel.pki.token import JoinToken
from yurttunnel.server import command, process, standalone
from yurttunnel.server.options import Options
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.service import ServerService
from yurttunnel.server.standalone_trust import StandaloneServerTrust

META = 10265
PROMISED = (
    "konnectivity_network_proxy_server_dial_duration_seconds",
    "konnectivity_network_proxy_server_registered_agents",
    "konnectivity_network_proxy_server_total_registered_agents",
    "yurttunnel_server_bytes_total",
    "yurttunnel_server_dial_results_total",
    "yurttunnel_server_stream_ends_total",
    "yurttunnel_server_session_ends_total",
    "yurttunnel_server_resumptions_total",
    "yurttunnel_server_session_round_trip_seconds",
    "yurttunnel_server_in_proxy_requests",
    "yurttunnel_server_total_in_proxy_requests",
    "yurttunnel_server_refused_requests_total",
    "yurttunnel_server_kubelet_tls_handshakes_total",
    "yurttunnel_server_kubelet_verifications_total",
    "yurttunnel_server_kubelet_connections",
    "yurttunnel_server_refused_agents_total",
    "yurttunnel_server_certificate_expiry_timestamp_seconds",
    "process_resident_memory_bytes",
)
"""The metrics of yurttunnel 1.2 by their names there, and further documented ones."""


def options(*arguments):
    """Parse a command line."""
    parsed = Options()
    parsed.parseOptions(["--standalone", "--bind-address", "127.0.0.1", *arguments])
    return parsed


class StubbornSession:
    """A session with a stream that does not end."""

    connected = True

    def ended(self):
        """Never fire."""
        return Deferred()

    def drain(self, text):
        """Record it."""

    def close(self, code, text):
        """End."""


class CommandTests(SynchronousTestCase):
    """The server that a command line builds."""

    def setUp(self):
        """Set the state directory."""
        self.reactor = ProgramReactor()
        # The path of a Unix socket in it has at most 107 bytes.
        self.state = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.state, ignore_errors=True)
        self.patch(standalone, "run_in_new_thread", without_thread)
        self.warnings = Logged(self, "yurttunnel", level=LogLevel.warn)
        # The real function changes the logging of the whole process.
        self.forwarded = []
        self.patch(command, "forward_standard_logging", lambda: self.forwarded.append(True))

    def start(self, *arguments):
        """Build and start a server; it is stopped after the test."""
        settings = options("--state-dir", self.state, *arguments).settings
        server = command.build(self.reactor, settings)
        self.assertTrue(IService.providedBy(server))
        server.startService()
        self.addCleanup(self.stop, server)
        return server

    def stop(self, server):
        """Stop a server; nothing may remain."""
        stopped = server.stopService()
        self.reactor.pass_time(3)
        self.successResultOf(stopped)
        self.assertEqual([], self.reactor.getDelayedCalls())

    def test_listeners(self):
        """The server listens on the ports of the flags, including the agents' and the meta port."""
        self.start(
            "--connect-endpoint", "tcp:9001", "--forward", "127.0.0.1:9002=edge-1/127.0.0.1:80",
            "--forward", "9003=edge-1/127.0.0.1:81",
        )  # fmt: skip
        listening = {(interface, port) for port, _, _, interface in self.reactor.tcpServers}
        ports = (10262, 10263, 10264, META, 9001, 9002, 9003)
        self.assertEqual({("127.0.0.1", port) for port in ports}, listening)

    def test_nothing_before_start(self):
        """Building binds nothing and starts no timer."""
        settings = options("--state-dir", self.state).settings
        command.build(self.reactor, settings)
        self.assertEqual(([], []), (self.reactor.tcpServers, self.reactor.getDelayedCalls()))
        self.assertEqual([True], self.forwarded)

    def test_port_in_use(self):
        """A port in use ends the process with a message that names the flag."""

        def in_use(port, *more):
            raise CannotListenError("127.0.0.1", port, OSError(98, "Address already in use"))

        settings = options("--state-dir", self.state).settings
        server = command.build(self.reactor, settings)
        self.reactor.listenTCP = in_use
        error = self.assertRaises(SystemExit, server.startService)
        self.assertIn("--meta-port", str(error))
        self.assertNotIn("\n", str(error))
        server.stopService()

    def test_pages(self):
        """The pages of the meta port are served."""
        self.start()
        self.assertEqual((200, "ok\n"), self.reactor.get(META, "/healthz"))
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual(
            (
                200,
                "listeners: ok\ncertificate: ok\nrevocations: ok\n"
                "room for revocations: ok\ncertificate renewal: ok\n"
                "enrolment: ok\nkubelet trust: ok\nnode history: ok\ncommands: ok\nready\n",
            ),
            (status, body),
        )
        status, body = self.reactor.get(META, "/agents")
        self.assertEqual((200, []), (status, json.loads(body)))
        self.assertEqual(200, self.reactor.get(META, "/")[0])

    def test_draining(self):
        """During the drain /readyz reports it, and revocations take effect."""
        server = self.start()
        [trust] = [part for part in server if isinstance(part, StandaloneServerTrust)]
        [tunnel] = [part for part in server if isinstance(part, ServerService)]
        # A session that does not end.
        self.patch(tunnel._session_owners[0], "sessions", lambda: [StubbornSession()])
        stopped = server.stopService()
        self.reactor.pass_time(1)
        self.assertNoResult(stopped)
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual(503, status)
        self.assertIn("draining", body)
        self.assertTrue(trust.running)
        self.reactor.pass_time(30)
        self.successResultOf(stopped)
        self.assertFalse(trust.running)

    def test_not_renewed(self):
        """A certificate that cannot be renewed is a warning, until it has expired."""
        self.start()
        self.patch(EmbeddedIssuer, "issue", _nothing)
        self.reactor.advance(61 * 86400)
        status, body = self.reactor.get(META, "/readyz")
        self.assertIn("certificate: ok\n", body)
        self.assertIn("certificate renewal: the certificate of the server, valid until ", body)
        self.assertIn("is not renewed: no\n", body)
        self.assertEqual(200, status)
        self.reactor.advance(30 * 86400)
        status, body = self.reactor.get(META, "/readyz")
        self.assertIn("certificate: the certificate of the server has expired at ", body)
        self.assertEqual(503, status)

    def test_nodes_that_are_not_enrolled(self):
        """A state directory that cannot be written is a warning: existing nodes stay."""
        server = self.start()
        [trust] = [part for part in server if isinstance(part, StandaloneServerTrust)]
        trust.enrolment_factory._failures.not_stored("192.0.2.1", StateError("the disk is full"))
        status, body = self.reactor.get(META, "/readyz")
        self.assertIn("enrolment: nodes get no certificates: the disk is full\n", body)
        self.assertEqual(200, status)

    def test_metrics(self):
        """All documented metrics exist by name, before the first agent connects."""
        self.start()
        status, body = self.reactor.get(META, "/metrics")
        self.assertEqual(200, status)
        for name in PROMISED:
            self.assertIn(f"# TYPE {name} ", body)
        for certificate in ("server", "ca", "kubelet-client"):
            self.assertIn(f'certificate="{certificate}"', body)

    def test_flags_arrive(self):
        """Names and addresses of the flags are in the server's certificate."""
        server = self.start("--cert-dns-names", "tunnel.example", "--cert-ips", "192.0.2.10")
        [trust] = [part for part in server if isinstance(part, StandaloneServerTrust)]
        names = str(trust.contexts.credentials.certificate.extensions)
        for name in ("tunnel.example", "192.0.2.10"):
            self.assertIn(name, names)

    def test_interception_addresses(self):
        """Port 10263 is on the agents' address, 10264 on that of the meta pages."""
        self.start("--bind-address", "0.0.0.0", "--insecure-bind-address", "127.0.0.2")
        listening = {port: interface for port, _, _, interface in self.reactor.tcpServers}
        self.assertEqual(
            {10262: "0.0.0.0", 10263: "0.0.0.0", 10264: "127.0.0.2", META: "127.0.0.2"}, listening
        )
        self.assertEqual([], self.warnings)

    def test_open_interception(self):
        """A warning is logged if other machines can connect to port 10264."""
        self.start("--insecure-bind-address", "192.0.2.1")
        [warning] = self.warnings
        self.assertIn("--insecure-port: everybody who can connect to 192.0.2.1 port 10264", warning)

    def request_silent_kubelet(self, *arguments):
        """Start a server, and send a request to a silent kubelet; return the connection."""
        registries = []

        def registry(clock):
            registries.append(SessionRegistry(clock))
            return registries[0]

        self.patch(process, "SessionRegistry", registry)
        self.start(*arguments)
        session = FakeSession("edge-1", hosts=["edge-1"])
        registries[0].add(session)
        caller = MemoryConnection().open(self.reactor.site(10264).buildProtocol(None))
        self.addCleanup(caller.abortConnection)
        caller.receive(b"GET /pods HTTP/1.1\r\nHost: edge-1:10255\r\n\r\n")
        kubelet = session.dials[0].succeed()
        self.assertIn(b"GET /pods HTTP/1.1", kubelet.received)
        return caller

    def test_response_timeout(self):
        """A kubelet has the time of --response-timeout."""
        caller = self.request_silent_kubelet("--response-timeout", "7s")
        for seconds, answered in ((6, False), (2, True)):
            self.reactor.pass_time(seconds)
            caller.turn()
            self.assertEqual(answered, b" 504 " in caller.sent)
        self.assertIn(b"no response within 7 seconds", caller.sent)

    def test_no_response_timeout(self):
        """With --response-timeout 0 a kubelet has unlimited time."""
        caller = self.request_silent_kubelet("--response-timeout", "0")
        for _ in range(20):
            self.reactor.pass_time(10, step=5)
            caller.turn()
        self.assertEqual((b"", 0), (caller.sent, caller.disconnected))

    def test_kubelet_trust(self):
        """A problem with the trust in kubelets is reported, and does not affect readiness."""
        server = self.start()
        [trust] = [part for part in server if isinstance(part, StandaloneServerTrust)]
        trust.client._stored.problem = StateError("the disk is full")
        status, body = self.reactor.get(META, "/readyz")
        self.assertEqual(200, status)
        self.assertIn("the disk is full", body)


async def _nothing(*_):
    raise NotIssued("no")


class MakeServiceTests(SynchronousTestCase):
    """Errors that end the process at the start."""

    def setUp(self):
        """Set the state directory."""
        # The reactor that runs the tests keeps its clock: the program would replace it by its own.
        self.patch(reactor, "seconds", reactor.seconds)
        self.state = self.mktemp()

    def make(self, *arguments):
        """Create the service; return how the process ends."""
        parsed = options("--state-dir", self.state, *arguments)
        return self.assertRaises(SystemExit, command.makeService, parsed).code

    def enroll(self):
        """Enroll a node in the state directory."""
        trust = StandaloneServerTrust(clock_now(), self.state, ["127.0.0.1"])
        token = JoinToken.parse(Path(self.state, "join-token").read_text())
        request = EnrolmentRequest(
            node="edge-1",
            identifiers=format_identifiers(EDGE_1),
            csr=request_certificate(new_key()),
            token_id=token.token_id,
            token_secret=token.secret,
        )
        trust.enrolment_factory._admission.decide(request, None, "192.0.2.7")

    def test_state(self):
        """An unusable state directory causes a one-line error with the flag and the path."""
        Path(self.state).touch()
        sentence = self.make()
        self.assertTrue(sentence.startswith("--state-dir: "), sentence)
        self.assertIn(self.state, sentence)
        self.assertNotIn("\n", sentence)

    def test_kubelet_ca(self):
        """An unusable file of authorities causes a one-line error with the flag and the path."""
        sentence = self.make("--kubelet-ca", "nowhere.crt")
        self.assertTrue(sentence.startswith("--kubelet-ca: "), sentence)
        self.assertIn("nowhere.crt", sentence)
        self.assertNotIn("\n", sentence)

    def test_middleware(self):
        """A middleware that is not installed causes a one-line error with the flag and the name."""
        sentence = self.make("--middleware", "no-such-middleware")
        self.assertTrue(sentence.startswith("--middleware: "), sentence)
        self.assertIn("'no-such-middleware'", sentence)
        self.assertNotIn("\n", sentence)

    def test_revoke(self):
        """--revoke-node revokes, reports it, and exits with status 0."""
        self.enroll()
        printed = []
        with mock.patch.object(builtins, "print", printed.append):
            self.assertEqual(0, self.make("--revoke-node", "edge-1"))
            self.assertEqual(0, self.make("--revoke-node", "edge-9"))
        first, second = printed
        self.assertEqual("node edge-1 is revoked", first)
        self.assertIn("node edge-9 was not enrolled", second)

    def test_revoke_nowhere(self):
        """Without a state directory nothing is revoked or created."""
        sentence = self.make("--revoke-node", "edge-1")
        self.assertTrue(sentence.startswith("--state-dir: "), sentence)
        self.assertFalse(Path(self.state).exists())


class ClusterTests(SynchronousTestCase):
    """Errors that end the process at the start, in a cluster."""

    def setUp(self):
        """Protect global state."""
        # The reactor that runs the tests keeps its clock: the program would replace it by its own.
        self.patch(reactor, "seconds", reactor.seconds)

    def make(self, *arguments):
        """Create the service; return how the process ends."""
        parsed = Options()
        parsed.parseOptions(["--cert-dir", self.mktemp(), *arguments])
        sentence = self.assertRaises(SystemExit, command.makeService, parsed).code
        self.assertNotIn("\n", sentence)
        return sentence

    def test_no_cluster(self):
        """Outside of a pod, and without a kubeconfig, the missing flags are named."""
        sentence = self.make()
        for word in ("the Kubernetes API: ", "--kube-config", "--standalone"):
            self.assertIn(word, sentence)

    def test_kubeconfig(self):
        """An unreadable kubeconfig causes a one-line error with its path."""
        self.assertIn("nowhere.conf", self.make("--kube-config", "nowhere.conf"))


class SubjectTests(SynchronousTestCase):
    """The contents of a bundle of ``--diagnose``."""

    def test_firewall(self):
        """Firewall rules are included if the server creates any: not in the standalone mode."""
        self.assertIsNone(command.subject(options().settings).own_lines)
        for flags, has_rules in ((), True), (("--enable-iptables=false",), False):
            settings = Options().settings_of("--kube-config=config", *flags)
            found = command.subject(settings)
            self.assertEqual(has_rules, found.own_lines is not None)
            self.assertEqual("yurttunnel", found.own_table)
