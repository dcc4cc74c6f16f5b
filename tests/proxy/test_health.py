"""Tests of the health checks of load balancers: of the node, and of Services on it."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_address, ip_network

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.test_http_site import TcpTransport
from tests.ops.test_meta import parse
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.ops.http_site import PAGES_PER_TURN, LimitedSite
from yurttunnel.ops.listen import CannotListen
from yurttunnel.proxy import health_checks
from yurttunnel.proxy.health import METRICS, HealthPages, SyncHealth
from yurttunnel.proxy.health_checks import HealthCheckServers, listening_hosts
from yurttunnel.proxy.state.virtual_services import HealthCheckNodePort, NodeFacts


def ask(site, clock, path, method="GET"):
    """Send a request for a path on its own connection."""
    transport = TcpTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 40000))
    channel = site.buildProtocol(None)
    channel.makeConnection(transport)
    channel.dataReceived(f"{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    clock.advance(0)
    channel.connectionLost(connectionDone)
    return parse(transport.value())


class NodeTests(SynchronousTestCase):
    """``/healthz`` and ``/livez``."""

    def setUp(self):
        """Start without waiting changes."""
        self.clock = Clock()
        self.clock.advance(1000)
        self.eligible = True
        self.health = SyncHealth(self.clock, 30.0, lambda: self.eligible)
        self.pages = HealthPages(self.health)
        self.site = LimitedSite(self.pages.pages, self.clock)

    def statuses(self):
        """Return the status codes of both pages."""
        return tuple(ask(self.site, self.clock, path).status for path in ("/healthz", "/livez"))

    def test_nothing_waits(self):
        """Both are 200 from the start, as in kube-proxy, and after each sync."""
        self.assertEqual((200, 200), self.statuses())
        self.health.queued()
        self.health.begun()
        self.health.synced()
        self.clock.advance(1000)
        self.assertEqual((200, 200), self.statuses())

    def test_the_proxy_drains(self):
        """It gets no new clients, but must not be killed."""
        self.health.is_draining = True
        self.assertEqual((503, 200), self.statuses())

    def test_a_change_waits(self):
        """It may wait for two sync periods; later changes make no difference."""
        self.health.queued()
        self.clock.advance(59)
        self.health.queued()
        self.assertEqual((200, 200), self.statuses())
        self.clock.advance(1.5)
        self.assertEqual((503, 503), self.statuses())
        self.assertEqual(60.5, self.health.waits())

    def test_a_change_comes_during_a_sync(self):
        """It waits for the next sync."""
        self.health.begun()
        self.health.queued()
        self.clock.advance(1)
        self.health.synced()
        self.clock.advance(60)
        self.assertEqual((503, 503), self.statuses())

    def test_failing_syncs(self):
        """Their changes continue to wait; the first success ends that."""
        self.health.queued()
        for _ in range(5):
            self.clock.advance(15)
            self.health.begun()
        self.assertEqual((503, 503), self.statuses())
        self.health.synced()
        self.assertEqual((200, 200), self.statuses())

    def test_failing_syncs_without_a_change(self):
        """Rules that cannot be checked may be wrong."""
        self.health.begun()
        self.clock.advance(61)
        self.assertEqual((503, 503), self.statuses())

    def programming(self):
        """Return the number of measured endpoint changes, and their seconds."""
        return sum(self.health.programming.buckets), self.health.programming.total_seconds

    def test_how_long_changes_of_endpoints_take(self):
        """From the trigger to the first successful sync after it; each counts once."""
        self.health.queued([1000.5, 1001])
        self.clock.advance(2)
        for _ in range(2):
            self.health.begun()
            self.health.queued([1002])
        self.assertEqual((0, 0), self.programming())
        self.clock.advance(1)
        self.health.synced()
        self.assertEqual((3, 2.5 + 2 + 1), self.programming())
        self.health.begun()
        self.health.synced()
        self.assertEqual((4, 6.5), self.programming())

    def test_changes_of_before(self):
        """Changes from before the start of this process have not waited for it."""
        self.health.queued([999])
        self.health.begun()
        self.health.synced()
        self.assertEqual((0, 0), self.programming())

    def test_a_clock_that_is_ahead(self):
        """The machine that has changed the endpoints has another clock."""
        self.health.queued([2000])
        self.health.begun()
        self.health.synced()
        self.assertEqual((1, 0), self.programming())

    def test_a_node_that_is_about_to_go(self):
        """Load balancers stop using it, but the proxy is not restarted."""
        self.eligible = False
        self.assertEqual((503, 200), self.statuses())

    def test_the_body(self):
        """It has the fields of kube-proxy's, and the time of the last good sync when it fails."""
        self.health.begun()
        self.health.synced()
        self.clock.advance(5)
        answer = ask(self.site, self.clock, "/healthz")
        self.assertEqual("application/json", answer.headers["content-type"])
        well = {
            "lastUpdated": "1970-01-01T00:16:45Z",
            "currentTime": "1970-01-01T00:16:45Z",
            "nodeEligible": True,
        }
        self.assertEqual(well, json.loads(answer.body))
        self.health.queued()
        self.clock.advance(61)
        shown = json.loads(ask(self.site, self.clock, "/livez").body)
        self.assertEqual("1970-01-01T00:16:40Z", shown["lastUpdated"])
        self.assertEqual("1970-01-01T00:17:46Z", shown["currentTime"])

    def test_nothing_else_is_there(self):
        """Other pages are on the port for operators."""
        for path in ("/", "/metrics", "/healthz/a"):
            self.assertEqual(404, ask(self.site, self.clock, path).status, path)

    def test_answers_are_counted(self):
        """By status code, all of them from the start."""
        self.statuses()
        self.eligible = False
        self.statuses()
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.pages)
        text = exposition(registry).decode()
        self.assertIn('kubeproxy_proxy_healthz_total{code="503"} 1\n', text)
        self.assertIn('kubeproxy_proxy_livez_total{code="200"} 2\n', text)
        self.assertIn('kubeproxy_proxy_livez_total{code="503"} 0\n', text)


class ServiceTests(SynchronousTestCase):
    """The ports of ``healthCheckNodePort``."""

    def setUp(self):
        """Start without ports."""
        self.reactor = MemoryReactorClock()
        self.alive = True
        self.hosts = ["::"]
        self.servers = HealthCheckServers(self.reactor, lambda: self.hosts, lambda: self.alive)

    def update(self, desired):
        """Serve the ``desired`` ports."""
        self.successResultOf(self.servers.update(desired))

    def answer(self, path="/"):
        """Send a request to the port that was opened last."""
        *_, (port, site, _, host) = self.reactor.tcpServers
        self.assertEqual((30500, "::"), (port, host))
        answer = ask(site, self.reactor, path)
        return answer.status, json.loads(answer.body), answer.headers

    def test_endpoints_on_this_node(self):
        """Any path is answered with their number, as in kube-proxy."""
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 2)})
        status, shown, headers = self.answer()
        self.assertEqual(200, status)
        expected = {
            "service": {"namespace": "shop", "name": "web"},
            "localEndpoints": 2,
            "serviceProxyHealthy": True,
        }
        self.assertEqual(expected, shown)
        self.assertEqual("2", headers["x-load-balancing-endpoint-weight"])
        self.assertEqual(200, self.answer("/healthz")[0])

    def test_none_on_this_node(self):
        """The check fails, so that load balancers go elsewhere; the port stays the same."""
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 1)})
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 0)})
        self.assertEqual(503, self.answer()[0])
        self.assertEqual(1, len(self.reactor.tcpServers))

    def test_a_flood(self):
        """Many requests at once, for any paths, are answered at once."""
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 2)})
        *_, (_, site, _, _) = self.reactor.tcpServers
        for _ in range(2 * PAGES_PER_TURN):
            transport = TcpTransport(peerAddress=IPv4Address("TCP", "192.0.2.1", 40000))
            channel = site.buildProtocol(None)
            channel.makeConnection(transport)
            channel.dataReceived(b"GET /probe HTTP/1.1\r\nHost: a\r\n\r\n")
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 200 "))

    def test_removed_service(self):
        """A client that connected before its port was closed learns that it has no endpoints."""
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 2)})
        self.update({})
        status, shown, headers = self.answer()
        self.assertEqual((503, 0), (status, shown["localEndpoints"]))
        self.assertEqual("0", headers["x-load-balancing-endpoint-weight"])
        self.assertEqual([], self.flushLoggedErrors())

    def test_a_proxy_that_does_not_keep_up(self):
        """It may send clients to removed endpoints."""
        self.update({30500: HealthCheckNodePort(30500, "shop", "web", 2)})
        self.alive = False
        status, shown, _ = self.answer()
        self.assertEqual((503, False), (status, shown["serviceProxyHealthy"]))

    def test_a_port_in_use(self):
        """It is a problem of that Service, and retried with the next update."""
        good = HealthCheckNodePort(30500, "shop", "web", 1)
        bad = HealthCheckNodePort(30501, "shop", "api", 1)
        listen = health_checks.listen_tcp

        def refused(reactor, flag, host, port, site):
            if port == bad.port:
                raise CannotListen(flag, "another process listens there")
            return listen(reactor, flag, host, port, site)

        self.patch(health_checks, "listen_tcp", refused)
        self.update({30500: good, 30501: bad})
        (problem,) = self.servers.problems()
        self.assertEqual("shop/api", problem.what)
        self.assertIn("another process listens there", problem.text)
        self.patch(health_checks, "listen_tcp", listen)
        self.update({30500: good, 30501: bad})
        self.assertEqual([], list(self.servers.problems()))
        self.assertEqual([30500, 30501], [server[0] for server in self.reactor.tcpServers])

    def test_addresses_of_node_ports(self):
        """Health checks are only served there, also when the addresses change."""
        check = {30500: HealthCheckNodePort(30500, "shop", "web", 1)}
        opened = []
        for self.hosts in (["10.0.0.1", "fd00::1"], ["10.0.0.1", "fd00::2"]):
            self.update(check)
            opened.append({server[3] for server in self.reactor.tcpServers})
            self.reactor.tcpServers.clear()
        self.assertEqual([{"10.0.0.1", "fd00::1"}, {"fd00::2"}], opened)

    def test_which_addresses(self):
        """All addresses, unless node ports are limited to some networks; all of a family without
        networks. Very many addresses count as all.
        """
        own = ("127.0.0.1", "10.0.0.1", "192.0.2.1", "::1", "fd00::1", "fe80::1")
        facts = NodeFacts("here", addresses=frozenset(map(ip_address, own)))
        self.assertEqual(["::"], listening_hosts(facts))
        self.assertEqual(["0.0.0.0"], listening_hosts(replace(facts, versions=(4,))))
        for number, expected in ((1, {"10.0.0.1", "::1", "fd00::1"}), (17, {"::"})):
            more = frozenset(ip_address("10.0.0.0") + each for each in range(1, number + 1))
            some = replace(
                facts,
                addresses=facts.addresses | more,
                node_port_networks=(ip_network("10.0.0.0/8"),),
            )
            self.assertEqual(expected, set(listening_hosts(some)))

    def test_one_address_in_place_of_all(self):
        """It is opened once the one for all is closed, which takes a reactor turn."""
        closing = Deferred()
        listen = health_checks.listen_tcp

        def listening(*arguments):
            opened = listen(*arguments)
            opened.stopListening = lambda: closing
            return opened

        self.patch(health_checks, "listen_tcp", listening)
        check = {30500: HealthCheckNodePort(30500, "shop", "web", 1)}
        self.update(check)
        self.reactor.tcpServers.clear()
        self.hosts = ["10.0.0.1"]
        updating = self.servers.update(check)
        self.assertEqual([], self.reactor.tcpServers)
        closing.callback(None)
        self.successResultOf(updating)
        self.assertEqual(["10.0.0.1"], [server[3] for server in self.reactor.tcpServers])

    def test_ports_that_are_wanted_no_more(self):
        """They are closed, at the end all of them."""
        closed = []
        checks = {port: HealthCheckNodePort(port, "shop", "web", 1) for port in (30500, 30501)}
        listen = health_checks.listen_tcp

        def listening(reactor, flag, host, port, site):
            opened = listen(reactor, flag, host, port, site)
            opened.stopListening = lambda: closed.append(port)
            return opened

        self.patch(health_checks, "listen_tcp", listening)
        self.update(checks)
        self.update({30500: checks[30500]})
        self.assertEqual([30501], closed)
        self.successResultOf(self.servers.stop())
        self.assertEqual([30501, 30500], closed)
