"""Tests of the status page, ``/services``, and metrics."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.status_pages import ParsedPage
from tests.proxy.services import endpoint, key, service
from yurttunnel.metrics import Durations, MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.page import StatusPage
from yurttunnel.ops.status.view import StatusSources
from yurttunnel.proxy.health import SyncHealth
from yurttunnel.proxy.interfaces import EndpointStats, KernelStats, SocketStats
from yurttunnel.proxy.metrics import METRICS, ProxyStats
from yurttunnel.proxy.page import (
    MAX_ENDPOINTS,
    MAX_SHOWN,
    problems_section,
    services_page,
    services_section,
    syncs_section,
)
from yurttunnel.proxy.socket_manager import ServiceStatus
from yurttunnel.proxy.state.virtual_services import (
    NoEndpointsAction,
    Portal,
    PortalKind,
    Problem,
    Protocol,
)

CLUSTER_IP = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.1"), 80)
NODE_PORT = Portal(PortalKind.NODE_PORT, None, 30080)
WELL = ServiceStatus(
    service([1, 2], portals=(CLUSTER_IP, NODE_PORT)),
    40000,
    (EndpointStats(endpoint(1), 1, 0, "", None), EndpointStats(endpoint(2), 0, 0, "", None)),
    SocketStats(active=1, total=1234, failed=0, received=2048, sent=3 << 20),
)
STATS = SocketStats(active=0, total=5, failed=5, received=0, sent=0)
ILL = ServiceStatus(
    service([3], key=key("api", Protocol.UDP)),
    40001,
    (EndpointStats(endpoint(3), 0, 5, "connection refused", 130.0),),
    STATS,
)
BY_KERNEL = ServiceStatus(service([1], key=key("kernel")), None, (), KernelStats(12, 4321))
UNREAD = ServiceStatus(
    service([1], key=key("busy", Protocol.UDP)), None, (), KernelStats(None, 4321)
)
NONE = ServiceStatus(
    service([], key=key("db"), no_endpoints_action=NoEndpointsAction.DROPPED),
    None,
    (),
    KernelStats(0, None),
)


class PageTestCase(SynchronousTestCase):
    """A status page with what a test puts into ``statuses`` and ``problems``."""

    def setUp(self):
        """Start empty."""
        self.clock = Clock()
        self.clock.advance(100)
        self.statuses = []
        self.problems = []
        self.health = SyncHealth(self.clock, 30.0, lambda: True)
        self.proxier = None
        sections = (
            problems_section(lambda: self.problems),
            services_section(self.clock, lambda: self.statuses),
            syncs_section(self.health, lambda: self.proxier),
        )
        self.page = StatusPage(
            self.clock,
            StatusSources(
                program="yurtproxy",
                readiness=Readiness(),
                certificates=None,
                sections=sections,
            ),
            float,
        )

    def render(self, desired=""):
        """Render the page."""
        return ParsedPage("".join(self.page.pieces(desired, [])).encode())


class StatusTests(PageTestCase):
    """The sections of the status page."""

    def test_services(self):
        """Each with its addresses, endpoints and counters; those with failures come first."""
        self.statuses = [WELL, ILL, NONE]
        ill, none, well = self.render().rows["services"]
        self.assertEqual("shop/web:http TCP IPv4", well[0])
        self.assertEqual("cluster IP 10.96.0.1 port 80 node port 30080", well[1])
        self.assertEqual("10.0.0.1:80 10.0.0.2:80", well[2])
        self.assertEqual(["40000", "1 of 1,234", "2.0 KiB in, 3.0 MiB out"], well[3:])
        self.assertIn("ejected for 30 s", ill[2])
        self.assertIn("5 failed dials, the last: connection refused", ill[2])
        self.assertIn("5 without endpoint", ill[4])
        self.assertEqual("none: clients are dropped", none[2])
        self.assertEqual(["the kernel", "", ""], none[3:])

    def test_by_the_kernel(self):
        """It has counted connections, but no bytes; for a large table no open connections.

        A portal may have open ones that another service counts in its total.
        """
        served_elsewhere = ServiceStatus(
            service([1], key=key("local")), None, (), KernelStats(7, None)
        )
        self.statuses = [UNREAD, BY_KERNEL, served_elsewhere]
        unread, known, elsewhere = self.render().rows["services"]
        self.assertEqual(["the kernel", "7", ""], elsewhere[3:])
        self.assertEqual(["the kernel", "12 of 4,321", ""], known[3:])
        self.assertEqual(["the kernel", "4,321 in total", ""], unread[3:])

    def test_without_a_socket(self):
        """It gets one with its first endpoints."""
        nothing = SocketStats(active=0, total=0, failed=0, received=0, sent=0)
        self.statuses = [ServiceStatus(service([]), None, (), nothing)]
        (row,) = self.render().rows["services"]
        self.assertEqual("none: clients are refused", row[2])
        self.assertEqual(["none yet", "0 of 0"], row[3:5])

    def test_syncs(self):
        """When the last one succeeded, how long it took, and what waits for the next."""

        class Figures:
            syncs = {"ok": 1234, "repaired": 0, "failed": 2}
            last_took = None

        self.proxier = Figures
        self.assertIn("none yet", self.render().sections["syncs"])
        self.health.begun()
        self.health.synced()
        Figures.last_took = 0.0123
        self.clock.advance(7)
        self.health.queued()
        self.clock.advance(3)
        found = self.render().sections["syncs"]
        for each in ("10 s ago", "12 ms", "3 s", "1,234 ok, 0 repaired, 2 failed"):
            self.assertIn(each, found)

    def test_nothing_is_served(self):
        """The page says so, and has no problems, nor syncs before the state is known."""
        page = self.render()
        self.assertNotIn("syncs", page.sections)
        self.assertIn("No Service has an address that is served here", page.sections["services"])
        self.assertNotIn("problems", page.sections)
        self.assertNotIn("certificates", page.sections)

    def test_many(self):
        """A page has some of them, and the filter finds the others."""
        self.statuses = [
            ServiceStatus(service([1], key=key(f"s{number}")), number, (), STATS)
            for number in range(150)
        ]
        self.assertEqual(MAX_SHOWN, len(self.render().rows["services"]))
        self.assertIn("100 of 150", self.render().sections["services"])
        (row,) = self.render("shop/S149:").rows["services"]
        self.assertIn("s149", row[0])

    def test_many_endpoints(self):
        """Some endpoints of a service are shown."""
        self.statuses = [ServiceStatus(service(range(1, 101)), 1, (), STATS)]
        (row,) = self.render().rows["services"]
        self.assertIn(f"and {100 - MAX_ENDPOINTS} more", row[2])

    def test_problems(self):
        """What is not served as it should be, and why."""
        self.problems = [Problem("shop/web", "its <port> is taken")]
        page = self.render()
        self.assertEqual([["shop/web", "its <port> is taken"]], page.rows["problems"])


class JsonTests(PageTestCase):
    """The page ``/services``."""

    def test_all_of_them(self):
        """With all that is known."""
        page = services_page(self.clock, lambda: [WELL, ILL, BY_KERNEL, UNREAD, NONE])
        well, ill, by_kernel, unread, none = page.show()
        self.assertEqual("services", page.name)
        self.assertEqual(("shop/web:http", "TCP", 4, "all"), tuple(well.values())[:4])
        self.assertEqual((40000, 1, 1234), (well["proxy_port"], well["active"], well["total"]))
        expected = {
            "endpoint": "10.0.0.3:80",
            "active": 0,
            "failures": 5,
            "last_failure": "connection refused",
            "left_out_for_seconds": 30.0,
        }
        self.assertEqual([expected], ill["endpoints"])
        self.assertEqual((12, 4321), (by_kernel["active"], by_kernel["total"]))
        self.assertEqual(4321, unread["total"])
        self.assertNotIn("active", unread)
        self.assertNotIn("total", none)


class MetricTests(SynchronousTestCase):
    """The content of a scrape."""

    def test_figures(self):
        """Sums over all services, by protocol."""
        clock = Clock()
        health = SyncHealth(clock, 30.0, lambda: True)

        class Figures:
            syncs = {"ok": 2, "failed": 1}
            durations = Durations((1.0,))
            problems = (Problem("a", "b"), Problem("c", "d"), Problem("e", "f"))
            own_problems = 1
            deleted_entries = 7

        totals = {
            (Protocol.TCP, "total"): 1234,
            (Protocol.TCP, "failed"): 5,
            (Protocol.TCP, "received"): 2048,
        }
        registry = MetricRegistry()
        statuses = [WELL, ILL, NONE]
        draining = {Protocol.UDP: 4}
        registry.add(METRICS, lambda: ProxyStats(Figures, health, statuses, totals, draining))
        health.queued()
        health.begun()
        health.queued([0.5])
        clock.advance(1)
        health.begun()
        health.synced()
        health.queued()
        clock.advance(3)
        lines = set(exposition(registry).decode().splitlines())
        for line in (
            'yurtproxy_syncs_total{result="failed"} 1',
            "yurtproxy_change_age_seconds 3.0",
            'yurtproxy_problems{of="node"} 1',
            'yurtproxy_problems{of="objects"} 2',
            "yurtproxy_services_without_endpoints 1",
            "yurtproxy_services 3",
            "yurtproxy_endpoints 3",
            "yurtproxy_ejected_endpoints 1",
            'yurtproxy_connections{protocol="TCP"} 1',
            'yurtproxy_connections{protocol="UDP"} 4',
            'yurtproxy_accepted_connections_total{protocol="TCP"} 1234',
            'yurtproxy_failed_connections_total{protocol="TCP"} 5',
            'yurtproxy_received_bytes_total{protocol="TCP"} 2048',
            'yurtproxy_received_bytes_total{protocol="UDP"} 0',
            "yurtproxy_forgotten_flows_total 7",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.0",
            'kubeproxy_network_programming_duration_seconds_bucket{le="0.25"} 0',
            'kubeproxy_network_programming_duration_seconds_bucket{le="0.5"} 1',
            "kubeproxy_network_programming_duration_seconds_sum 0.5",
        ):
            self.assertIn(line, lines)
        statuses.append(BY_KERNEL)
        self.assertIn('yurtproxy_connections{protocol="TCP"} 13', exposition(registry).decode())
        statuses.append(UNREAD)
        self.assertNotIn("yurtproxy_connections{", exposition(registry).decode())
        health.last_synced = None
        self.assertNotIn("\nyurtproxy_services_without", exposition(registry).decode())
