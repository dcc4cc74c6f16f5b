"""The migration page for yurttunnel 1.2 agrees with the programs."""

from __future__ import annotations

import re
from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.agent.kubernetes_objects import service
from tests.deploy.messages import source_files
from tests.deploy.metrics import samples
from tests.deploy.rendering import REPOSITORY
from tests.server.frontends.connecting import ESTABLISHED, ConnectTestCase, connect
from tests.server.frontends.kubelet.delegated_callers import EDGE_1, DelegatedCallersWorld
from tests.server.frontends.kubelet.fakes import head, request
from tests.server.frontends.kubelet.test_resolution import Session
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.policy import DestinationPolicy
from yurttunnel.agent.service_addresses import locations, node_facts, service_facts
from yurttunnel.cluster.services import EXTERNAL_ADDRESS
from yurttunnel.ops.debug.service import Debug
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.server.frontends.kubelet.host_names import HostNames
from yurttunnel.server.options import Options
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.wire.codes import Code

MIGRATION = REPOSITORY / "docs" / "migration.md"


def change(of: str) -> tuple[str, str]:
    """Return the old and the new behavior from the row about ``of``."""
    [(before, now)] = re.findall(
        rf"^\| {re.escape(of)} \|([^|]*)\| ([^|]+) \|$", MIGRATION.read_text(), re.MULTILINE
    )
    return before, now


def status(phrase: str) -> int:
    """Return the status before a phrase in the row about unreachable nodes."""
    _, now = change("an answer for a node that cannot be reached")
    [found] = re.findall(rf"(\d{{3}}) {re.escape(phrase)}", now)
    return int(found)


class ConnectTests(ConnectTestCase):
    """Responses to CONNECT."""

    def test_failures(self) -> None:
        """Each failure has the status on the page."""
        self.assert_answer(
            self.open(connect("edge-9:80")), status("where no agent is connected"), "no agent"
        )
        for code, phrase in (
            (Code.REFUSED, "where the target refuses or cannot be reached"),
            (Code.UNREACHABLE, "where the target refuses or cannot be reached"),
            (Code.TIMEOUT, "where it does not answer"),
            (Code.DENIED, "where the agent's policy denies it"),
        ):
            connection = self.open(connect())
            self.session.dials[-1].fail(code, "a sentence")
            self.assert_answer(connection, status(phrase), "a sentence")

    def test_success(self) -> None:
        """The server responds only after the target has accepted the connection."""
        connection = self.open(connect())
        connection.turns()
        self.assertEqual([], connection.segments)
        self.session.dials[-1].succeed()
        connection.turns()
        self.assertEqual([ESTABLISHED], connection.segments)
        self.assertEqual(200, status("only when the target has accepted"))


class NodeTests(DelegatedCallersWorld):
    """A request to a kubelet that names another node than its connection."""

    def test_connection_for_another_node(self) -> None:
        """The request is rejected with the status on the page."""
        self.redirect(EDGE_1[0])
        caller = self.jane(None, "system:apiserver")
        expected = status("where the connection was for another node")
        self.refuses(caller, expected, "the connection was for edge-1", Host="edge-2:10250")


class HostTests(SynchronousTestCase):
    """A request without TLS."""

    def test_name_of_another_node(self) -> None:
        """The request is rejected with the status on the page."""
        registry = SessionRegistry(Clock())
        for name in ("edge-1", "edge-2"):
            registry.add(Session(name))
        response = request(head(host="edge-1:10250", X_Tunnel_Proxy_Dest="edge-2:10250"))
        response.exchange.secure = False
        HostNames(registry).wrap(self.fail)(response)
        [(refused, _)] = response.exchange.failures
        self.assertEqual(status("where `Host` is the name of another node"), refused)


class AddressesTests(SynchronousTestCase):
    """The addresses that agents dial."""

    def test_cloud_nodes(self) -> None:
        """Cloud nodes are dialed at the first kind of address on the page that they have."""
        _, now = change("what agents dial for a Service of type NodePort")
        kinds = re.findall(r"\w+IP(?=s)", now)
        node = {"status": {"addresses": []}}
        for kind in reversed(kinds):
            node["status"]["addresses"].append({"type": kind, "address": kind})
            self.assertEqual((kind,), node_facts(node).addresses)
        self.assertEqual(["ExternalIP", "InternalIP"], kinds)

    def test_annotation(self) -> None:
        """The annotation takes precedence over nodes, and its port over the Service's."""
        change(f"annotation `{EXTERNAL_ADDRESS}`")
        for kind in ("ClusterIP", "NodePort"):
            facts = service_facts(service(kind, annotation="a.example:443,b.example:444"))
            self.assertEqual((("a.example", 443), ("b.example", 444)), locations(facts, (), ()))


class LoopbackTests(SynchronousTestCase):
    """Operator-defined ports in ``localhost-proxy-ports``."""

    def test_agents_have_to_allow_them(self) -> None:
        """An agent rejects such a port unless it has the flag on the page."""
        _, now = change("ConfigMap `yurt-tunnel-server-cfg`")
        [flag] = re.findall(r"`(--allow-destination=[^`]+)`", now)
        for flags, allowed in (([], False), ([flag.replace("PORT", "9100")], True)):
            settings = AgentOptions({"NODE_NAME": "edge-1", "NODE_IP": "192.168.1.20"}).settings_of(
                *flags
            )
            policy = DestinationPolicy("edge-1", (), settings.allowed_destinations)
            self.assertIs(allowed, policy.may_connect(ip_address("127.0.0.1"), 9100))


class MetricNamesTests(SynchronousTestCase):
    """The hub's metrics with names of the original."""

    def test_original_names(self) -> None:
        """The page names all of them."""
        documented = set(re.findall(r"`(node_yurthub_\w+)`", MIGRATION.read_text()))
        self.assertEqual({name for name in samples() if name.startswith("node_")}, documented)


class RemovedFeaturesTests(SynchronousTestCase):
    """Removed features and their replacements."""

    def test_pprof(self) -> None:
        """/debug has no Go profiles."""
        before, _ = change("`/debug/pprof` on 10265 and 10266")
        self.assertIn("profiles of Go", before)
        clock = Clock()
        pages = Debug(clock, list, ReactorLag(clock), LogLevelFilter()).pages
        self.assertNotIn("/debug/pprof", pages)

    def test_unix_socket(self) -> None:
        """The old socket is gone; the flag on the page makes a Unix socket for CONNECT."""
        _, now = change("Unix socket `/tmp/interceptor-proxier.sock`")
        [flag, endpoint] = re.findall(r"`(--[a-z-]+) (unix:)PATH`", now)[0]
        settings = Options({}).settings_of(
            "--standalone", "--state-dir=S", f"{flag}={endpoint}/run/x.sock"
        )
        self.assertEqual(1, len(settings.connect_endpoints))
        for path, _ in source_files(REPOSITORY):
            self.assertNotIn("interceptor-proxier", path.read_text())
