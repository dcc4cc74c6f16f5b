"""An agent in a cluster, built from its command line, on one reactor in memory."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.kubernetes_objects import service
from tests.network import ProgramReactor, context_with
from tests.pki.signing import SigningApi, issue
from tests.pki.support import Issuer
from tests.pki.test_authorities import bundle
from yurttunnel.agent import cluster, command
from yurttunnel.agent import service as agent_service
from yurttunnel.agent.cluster import IDENTIFIERS_INTERVAL
from yurttunnel.agent.options import Options
from yurttunnel.kube.resources import SERVICES
from yurttunnel.pki.certificate_store import DatedStore, open_certificate_directory
from yurttunnel.pki.certificate_template import serving_template
from yurttunnel.pki.cluster_identity import agent_template, cluster_identity
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.server.agents import AgentListener, AgentListenerSettings, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import CLOSE_TIMEOUT
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits

META = 10266
SERVICE_HOST = "x-tunnel-server-svc.kube-system.svc"


class ClusterTests(SynchronousTestCase):
    """An API and servers in memory, and an agent."""

    def setUp(self):
        """Start an API that signs every request, without a server."""
        self.reactor = ProgramReactor()
        self.issuer = Issuer.make(self, self.reactor)
        self.api = SigningApi(self.issuer, prompt=True)
        self.closed = 0
        self.api.close = self.close_api
        self.cert_dir = Path(self.mktemp())
        self.configurations = []
        self.listeners = []
        self.patch(cluster, "KubeClient", lambda reactor, configuration: self.api)
        self.patch(cluster, "load_configuration", self.load_configuration)
        self.patch(command, "forward_standard_logging", lambda: None)
        self.patch(agent_service, "exit_with_error", lambda reactor, sentence: self.fail(sentence))
        self.addCleanup(self.check_nothing_is_left)

    def close_api(self):
        """Count the call."""
        self.closed += 1

    def load_configuration(self, *arguments):
        """Store the arguments."""
        self.configurations.append(arguments)
        return SimpleNamespace(authorities=lambda: bundle(self.issuer))

    def listen(self, port=10262, *names):
        """Start a server; return its registry."""
        template = serving_template(names or [SERVICE_HOST], [ip_address("127.0.0.9")])
        credentials = issue(self.issuer, template).credentials((self.issuer.authority.certificate,))
        registry = SessionRegistry(self.reactor)
        listener = AgentListener(
            context_with(self.reactor, RefuseStreams()),
            registry,
            lambda identity: False,
            AgentListenerSettings(Limits(), 0.8),
            {},
            identify=cluster_identity,
            replicas=lambda: len(self.listeners),
        )
        self.listeners.append(listener)
        contexts = ServerContexts(credentials)
        self.reactor.listenTCP(port, tls.server_side(self.reactor, contexts, listener))
        return registry

    def announce(self, address="127.0.0.1:10262"):
        """Set the servers' address in the service."""
        self.api.put(SERVICES, service("ClusterIP", annotation=address))
        self.reactor.settle()

    def build(self, *arguments):
        """Build an agent."""
        settings = Options({"NODE_NAME": "edge-1", "NODE_IP": "192.0.2.7"}).settings_of(
            f"--cert-dir={self.cert_dir}", *arguments
        )
        return command.build(self.reactor, settings)

    def start(self, *arguments):
        """Start an agent."""
        agent = self.build(*arguments)
        agent.startService()
        self.addCleanup(self.stop, agent)
        self.reactor.settle()
        return agent

    def stop(self, agent):
        """Stop an agent."""
        if agent.running:
            stopped = agent.stopService()
            self.reactor.pass_time(3)
            self.successResultOf(stopped)

    def restart(self, agent, *arguments):
        """Stop an agent and start another; the port of the first must be free again."""
        self.stop(agent)
        self.reactor.tcpServers[:] = [each for each in self.reactor.tcpServers if each[0] != META]
        return self.start(*arguments)

    def check_nothing_is_left(self):
        """Check that the agent has left no timer."""
        for listener in self.listeners:
            listener.close_sessions(Code.GOING_AWAY, "over")
        self.reactor.pass_time(CLOSE_TIMEOUT + 1)
        self.assertEqual([], self.reactor.getDelayedCalls())

    def ready(self):
        """Return the status and the body of /readyz."""
        return self.reactor.get(META, "/readyz")

    def test_from_nothing(self):
        """The agent gets a certificate, finds the server, connects, and reports it."""
        registry = self.listen()
        self.announce()
        self.start()
        self.assertEqual("edge-1", registry.find("192.0.2.7").node)
        status, body = self.ready()
        self.assertEqual(200, status, body)
        for check in ("servers", "every server", "certificate", "server addresses"):
            self.assertIn(f"{check}: ok\n", body)
        _, metrics = self.reactor.get(META, "/metrics")
        self.assertIn('yurttunnel_agent_servers{state="connected"} 1\n', metrics)
        self.assertIn("yurttunnel_agent_certificate_requests_total", metrics)
        self.assertIn('certificate="ca"', metrics)

    def test_configuration(self):
        """The flags determine how the API is accessed."""
        self.start("--kube-config=/etc/agent.conf")
        self.assertEqual([(Path("/etc/agent.conf"), None)], self.configurations)

    def test_without_api(self):
        """While the API is unreachable the agent waits and reports it; then it connects."""
        registry = self.listen()
        self.announce()
        self.api.unreachable()
        self.start()
        # OpenSSL uses the real time, and certificates become valid five minutes before they are
        # issued.
        self.reactor.pass_time(120, 5)
        status, body = self.ready()
        self.assertEqual(503, status)
        self.assertIn("servers: there is no certificate of node edge-1", body)
        self.assertIn("server addresses: the API has not returned service", body)
        self.api.recover()
        self.reactor.pass_time(90, 1)
        self.assertEqual("edge-1", registry.find("edge-1").node)
        self.assertEqual(200, self.ready()[0])

    def test_no_service(self):
        """Without an address the agent is not ready, and reports what is missing."""
        self.start()
        status, body = self.ready()
        self.assertEqual(503, status)
        self.assertIn("servers: there is no service kube-system/x-tunnel-server-svc", body)

    def test_restart_without_api(self):
        """A second start needs no API: certificate and addresses are on disk."""
        registry = self.listen()
        self.announce()
        agent = self.start()
        self.api.unreachable()
        self.restart(agent)
        self.assertEqual("edge-1", registry.find("edge-1").node)
        self.assertEqual(200, self.ready()[0])

    def test_changed_address(self):
        """When the service's address changes, the session follows."""
        old, new = self.listen(), self.listen(10272)
        self.listeners.pop()
        self.announce()
        self.start()
        self.assertEqual("edge-1", old.find("edge-1").node)
        self.announce("127.0.0.1:10272")
        self.reactor.pass_time(5)
        self.assertEqual("edge-1", new.find("edge-1").node)
        _, body = self.reactor.get(META, "/agents")
        self.assertEqual(["127.0.0.1:10272"], [each["address"] for each in json.loads(body)])

    def test_other_server(self):
        """A server without a certificate for the service's name is not trusted."""
        self.listen(10262, "other.kube-system.svc")
        self.announce()
        self.start()
        status, body = self.ready()
        self.assertEqual(503, status)
        self.assertIn(f"not for {SERVICE_HOST}", body)

    def test_namespace(self):
        """The service and its name depend on the namespace."""
        self.listen(10262, "x-tunnel-server-svc.tunnel.svc")
        moved = service("ClusterIP", annotation="127.0.0.1:10262")
        moved["metadata"]["namespace"] = "tunnel"
        self.api.put(SERVICES, moved)
        self.start("--namespace=tunnel")
        self.assertEqual(200, self.ready()[0])

    def test_given_addresses(self):
        """Addresses on the command line are verified as dialed, without the API."""
        self.listen()
        self.start("--tunnelserver-addr=127.0.0.9:10262")
        status, body = self.ready()
        self.assertEqual(200, status, body)
        self.assertNotIn("server addresses", body)
        self.assertNotIn("services", {plural for _, plural, _ in self.api.calls})

    def test_better_certificate(self):
        """Identifiers that an old certificate does not cover are claimed with the new one."""
        registry = self.listen()
        self.announce()
        directory = open_certificate_directory(self.cert_dir)
        old = issue(self.issuer, agent_template("edge-1", parse_identifiers("host=edge-1")))
        DatedStore(self.reactor, directory, "yurttunnel-agent").save(old)
        self.api.prompt = False
        self.start()
        self.assertEqual(frozenset(), registry.find("edge-1").identifiers.addresses)
        self.reactor.pass_time(10)
        self.api.sign(self.api.created[-1])
        self.reactor.pass_time(IDENTIFIERS_INTERVAL + 20)
        self.assertEqual("edge-1", registry.find("192.0.2.7").node)
        self.assertEqual(200, self.ready()[0])

    def test_stop(self):
        """Stopping closes the connections to the API after everything else."""
        self.listen()
        self.announce()
        agent = self.start()
        self.stop(agent)
        self.assertEqual(1, self.closed)
        self.assertIn(META, self.reactor.closed_ports)

    def test_nothing_before_start(self):
        """Building sends no request and starts no timer."""
        self.build()
        self.assertEqual(([], []), (self.api.calls, self.reactor.getDelayedCalls()))


class ErrorTests(SynchronousTestCase):
    """Configuration errors end the process with a one-line message."""

    def setUp(self):
        """Protect global state."""
        # The reactor that runs the tests keeps its clock: the program would replace it by its own.
        self.patch(reactor, "seconds", reactor.seconds)

    def options(self, *arguments):
        """Parse a command line."""
        options = Options({"NODE_NAME": "edge-1", "NODE_IP": "192.0.2.7"})
        options.parseOptions([f"--cert-dir={self.mktemp()}", *arguments])
        return options

    def assert_refused(self, words, options):
        """Check the message."""
        error = self.assertRaises(SystemExit, command.makeService, options)
        self.assertIn(words, error.code)
        self.assertNotIn("\n", error.code)

    def test_missing_kube_config(self):
        """A missing file is named."""
        self.assert_refused(
            "/missing/kubelet.conf", self.options("--kube-config=/missing/kubelet.conf")
        )

    def test_no_cluster(self):
        """Without a cluster the message says what is missing."""
        self.assert_refused("--standalone", self.options("--kube-config=/missing/kubelet.conf"))

    def test_broken_kube_config(self):
        """So is a malformed file."""
        path = Path(self.mktemp())
        path.write_text("nonsense: [")
        self.assert_refused(str(path), self.options(f"--kube-config={path}"))

    def test_directory(self):
        """An unusable directory is named with its flag."""
        issuer = Issuer.make(self)
        self.patch(
            cluster,
            "load_configuration",
            lambda *arguments: SimpleNamespace(authorities=lambda: bundle(issuer)),
        )
        self.patch(cluster, "KubeClient", lambda reactor, configuration: None)
        path = Path(self.mktemp())
        path.touch()
        self.assert_refused("--cert-dir: ", self.options(f"--cert-dir={path}"))

    def test_authorities(self):
        """Malformed authorities are reported."""
        self.patch(
            cluster,
            "load_configuration",
            lambda *arguments: SimpleNamespace(authorities=lambda: b"nonsense"),
        )
        self.patch(cluster, "KubeClient", lambda reactor, configuration: None)
        self.assert_refused("the authorities of the Kubernetes API: ", self.options())
