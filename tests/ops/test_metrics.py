"""The metrics of server and agent."""

from __future__ import annotations

import datetime
import platform
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.snapshots import NOT_AFTER, SINCE, snapshot
from yurttunnel import __version__
from yurttunnel.agent.process import agent_registry
from yurttunnel.http.pool import PoolStatistics
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.ops.process_stats import add_process_metrics
from yurttunnel.server.frontends.kubelet.metrics import (
    METRICS,
    InterceptionCounters,
    InterceptionStats,
)
from yurttunnel.server.process import server_registry
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget

SERVER_REFERENCE = {
    "konnectivity_network_proxy_server_dial_duration_seconds": "histogram",
    "konnectivity_network_proxy_server_registered_agents": "gauge",
    "konnectivity_network_proxy_server_total_registered_agents": "gauge",
    "yurttunnel_server_in_proxy_requests": "gauge",
    "yurttunnel_server_total_in_proxy_requests": "gauge",
}
"""Names and types of metrics in yurttunnel 1.2 (yurttunnel reference, section 8)."""

AGENT_REFERENCE = {
    "konnectivity_network_proxy_agent_dial_duration_seconds": "histogram",
    "konnectivity_network_proxy_agent_server_connection_failure_count": "counter",
}

PROCESS = {
    "process_cpu_seconds_total": "counter",
    "process_open_fds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
}

OWN = {
    "bytes_total": "counter",
    "dial_results_total": "counter",
    "stream_ends_total": "counter",
    "session_ends_total": "counter",
    "sessions": "gauge",
    "open_streams": "gauge",
    "unacknowledged_bytes": "gauge",
    "sessions_started_total": "counter",
    "connections_lost_total": "counter",
    "resumptions_total": "counter",
    "memory_budget_used_bytes": "gauge",
    "memory_budget_limit_bytes": "gauge",
    "reactor_lag_seconds": "gauge",
    "certificate_expiry_timestamp_seconds": "gauge",
    "build_info": "gauge",
    "session_round_trip_seconds": "gauge",
    "session_open_streams": "gauge",
    "session_bytes_total": "counter",
}

INTERCEPTION = {
    "refused_streams_total": "counter",
    "proxied_requests_total": "counter",
    "refused_requests_total": "counter",
    "proxied_request_duration_seconds": "histogram",
    "kubelet_tls_handshakes_total": "counter",
    "kubelet_verifications_total": "counter",
    "kubelet_connections": "gauge",
    "kubelet_waiting_requests": "gauge",
    "kubelet_pool_events_total": "counter",
}

LATER = SINCE + datetime.timedelta(seconds=1)


class ScrapeTestCase(SynchronousTestCase):
    """The metrics of a process, and a scrape of them."""

    def setUp(self) -> None:
        """Make a process without counts and sessions."""
        self.counters = TunnelCounters()
        self.sessions: list[SessionSnapshot] = []
        self.certificates = {"server": NOT_AFTER}
        self.failed_attempts = 0
        budget = MemoryBudget(100)
        budget.reserve(10)
        self.pool = PoolStatistics()
        self.refusals: Counter[int] = Counter()
        self.interception = InterceptionCounters()
        self.server = server_registry(self.counters, budget, lambda: self.sessions)
        self.server.add(
            METRICS,
            lambda: InterceptionStats(
                counters=self.interception, pool=self.pool, refusals=self.refusals
            ),
        )
        self.agent = agent_registry(
            self.counters,
            budget,
            lambda: self.sessions,
            lambda: self.failed_attempts,
        )
        for name, registry in (("server", self.server), ("agent", self.agent)):
            prefix = f"yurttunnel_{name}_"
            add_process_metrics(registry, prefix, lambda: self.certificates, lambda: 0.125)

    def samples(self, registry: MetricRegistry, name: str) -> dict[tuple[str, ...], float]:
        """Scrape; return the samples of a name by their label values."""
        return {
            tuple(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(exposition(registry).decode())
            for sample in family.samples
            if sample.name == name
        }

    def value(self, registry: MetricRegistry, name: str) -> float:
        """Scrape; return the only sample of a name without labels."""
        [(labels, value)] = self.samples(registry, name).items()
        self.assertEqual((), labels)
        return value

    def announced(self, registry: MetricRegistry) -> dict[str, str]:
        """Return the types by name from the TYPE lines."""
        lines = exposition(registry).decode().splitlines()
        types = [line.split() for line in lines if line.startswith("# TYPE ")]
        self.assertEqual(len(types), len({words[2] for words in types}), "a name twice")
        return {words[2]: words[3] for words in types}


class NameTests(ScrapeTestCase):
    """The names that dashboards and alerts depend on."""

    def test_server(self) -> None:
        """A server has the reference's names, process metrics, and prefixed metrics of its own."""
        own = {f"yurttunnel_server_{name}": kind for name, kind in (OWN | INTERCEPTION).items()}
        announced = self.announced(self.server)
        expected = SERVER_REFERENCE | own
        self.assertEqual(expected, {n: k for n, k in announced.items() if n[:7] != "process"})
        self.assertEqual(PROCESS, {name: announced[name] for name in PROCESS})

    def test_agent(self) -> None:
        """An agent has the reference's names, process metrics, and prefixed metrics of its own."""
        own = {f"yurttunnel_agent_{name}": kind for name, kind in OWN.items()}
        announced = self.announced(self.agent)
        expected = AGENT_REFERENCE | own
        self.assertEqual(expected, {n: k for n, k in announced.items() if n[:7] != "process"})
        self.assertEqual(PROCESS, {name: announced[name] for name in PROCESS})

    def test_help(self) -> None:
        """Every family has a help text that is a sentence."""
        for registry in (self.server, self.agent):
            for family in registry:
                self.assertTrue(family.documentation.endswith("."), family.name)


class ProcessWideTests(ScrapeTestCase):
    """Metrics of all sessions, tested with the server's registry."""

    def test_bytes(self) -> None:
        """Payload bytes are counted by direction."""
        self.counters.bytes_received = 7
        self.counters.bytes_sent = 11
        self.assertEqual(
            {("received",): 7, ("sent",): 11},
            self.samples(self.server, "yurttunnel_server_bytes_total"),
        )

    def test_reasons_from_the_start(self) -> None:
        """Each code of dials, streams and sessions has a sample of 0 from the start."""
        zeros = {(code.name.lower(),): 0.0 for code in Code}
        for name in ("dial_results", "stream_ends", "session_ends"):
            self.assertEqual(zeros, self.samples(self.server, f"yurttunnel_server_{name}_total"))

    def test_reasons(self) -> None:
        """Each end is counted by its reason in lower case, and by nothing else."""
        self.counters.dials[Code.NAME_NOT_RESOLVED] = 1
        self.counters.stream_ends[Code.CONNECTION_LOST] = 2
        self.counters.session_ends[Code.REPLACED] = 3
        for name, reason, count in (
            ("dial_results", "name_not_resolved", 1),
            ("stream_ends", "connection_lost", 2),
            ("session_ends", "replaced", 3),
        ):
            samples = self.samples(self.server, f"yurttunnel_server_{name}_total")
            self.assertEqual(count, samples[(reason,)])
            self.assertEqual(count, sum(samples.values()))

    def test_scraping_counts_nothing(self) -> None:
        """A scrape does not change the counters."""
        exposition(self.server)
        self.assertEqual({}, dict(self.counters.dials))

    def test_session_totals(self) -> None:
        """Started sessions, lost connections and resumptions are read from the counters."""
        self.counters.sessions_started = 5
        self.counters.connections_lost = 4
        self.counters.resumptions = 3
        for name, value in (("sessions_started", 5), ("connections_lost", 4), ("resumptions", 3)):
            self.assertEqual(value, self.value(self.server, f"yurttunnel_server_{name}_total"))

    def test_sessions_by_state(self) -> None:
        """Sessions are counted by connected and waiting; their streams are added up."""
        self.sessions = [
            snapshot(node="a", streams=1),
            snapshot(node="b", streams=2),
            snapshot(node="c", streams=4, connected=False),
        ]
        self.assertEqual(
            {("connected",): 2, ("waiting",): 1},
            self.samples(self.server, "yurttunnel_server_sessions"),
        )
        self.assertEqual(7, self.value(self.server, "yurttunnel_server_open_streams"))
        self.assertEqual(1500, self.value(self.server, "yurttunnel_server_unacknowledged_bytes"))

    def test_resources(self) -> None:
        """Memory budget and reactor lag are read from their functions."""
        self.assertEqual(10, self.value(self.server, "yurttunnel_server_memory_budget_used_bytes"))
        self.assertEqual(
            100, self.value(self.server, "yurttunnel_server_memory_budget_limit_bytes")
        )
        self.assertEqual(0.125, self.value(self.server, "yurttunnel_server_reactor_lag_seconds"))

    def test_certificates(self) -> None:
        """The expiry of each certificate is in Unix seconds, and follows a renewal at once."""
        name = "yurttunnel_server_certificate_expiry_timestamp_seconds"
        self.assertEqual({("server",): 1798859045}, self.samples(self.server, name))
        self.certificates = {
            "server": NOT_AFTER + datetime.timedelta(seconds=60),
            "ca": NOT_AFTER,
        }
        self.assertEqual(
            {("server",): 1798859105, ("ca",): 1798859045}, self.samples(self.server, name)
        )

    def test_build(self) -> None:
        """A constant 1 has the versions of the package and of Python as labels."""
        self.assertEqual(
            {(__version__, platform.python_version()): 1},
            self.samples(self.server, "yurttunnel_server_build_info"),
        )


class ServerTests(ScrapeTestCase):
    """Metrics that only a server has."""

    def test_registered_agents(self) -> None:
        """Each node with a session has 1 if connected, else 0; the total counts connected ones."""
        self.sessions = [snapshot(node="a"), snapshot(node="b", connected=False)]
        name = "konnectivity_network_proxy_server_registered_agents"
        self.assertEqual({("a",): 1, ("b",): 0}, self.samples(self.server, name))
        self.assertIn(f'{name}{{agentID="a"}} 1\n', exposition(self.server).decode())
        self.assertEqual(
            1, self.value(self.server, "konnectivity_network_proxy_server_total_registered_agents")
        )

    def test_dial_durations(self) -> None:
        """Dial durations are one histogram with cumulative buckets and inclusive bounds."""
        for seconds in (0.005, 0.02, 0.02, 20.0, 31.0):
            self.counters.dial_durations.observe(seconds)
        name = "konnectivity_network_proxy_server_dial_duration_seconds"
        self.assertEqual(
            {
                ("0.005",): 1,
                ("0.025",): 3,
                ("0.1",): 3,
                ("0.5",): 3,
                ("2.5",): 3,
                ("10",): 3,
                ("30",): 4,
                ("+Inf",): 5,
            },
            self.samples(self.server, f"{name}_bucket"),
        )
        self.assertEqual(5, self.value(self.server, f"{name}_count"))
        self.assertAlmostEqual(51.045, self.value(self.server, f"{name}_sum"))

    def test_node(self) -> None:
        """Round trip, streams and bytes have the node as label."""
        self.sessions = [snapshot()]
        prefix = "yurttunnel_server_session_"
        self.assertEqual(
            {("edge-1",): 0.0625}, self.samples(self.server, f"{prefix}round_trip_seconds")
        )
        self.assertEqual({("edge-1",): 3}, self.samples(self.server, f"{prefix}open_streams"))
        self.assertEqual(
            {("edge-1", "received"): 1000, ("edge-1", "sent"): 2000},
            self.samples(self.server, f"{prefix}bytes_total"),
        )
        self.assertIn('streams{node="edge-1"} 3\n', exposition(self.server).decode())

    def test_no_round_trip_yet(self) -> None:
        """A node without a measured round trip has no sample of it, but has the others."""
        self.sessions = [snapshot(round_trip=None)]
        prefix = "yurttunnel_server_session_"
        self.assertEqual({}, self.samples(self.server, f"{prefix}round_trip_seconds"))
        self.assertEqual({("edge-1",): 3}, self.samples(self.server, f"{prefix}open_streams"))

    def test_node_leaves(self) -> None:
        """A node that has left has no samples."""
        self.sessions = [snapshot(node="gone")]
        self.assertIn(b'"gone"', exposition(self.server))
        self.sessions = []
        self.assertNotIn(b'"gone"', exposition(self.server))

    def test_two_sessions_of_a_node(self) -> None:
        """Of two sessions of a node the newer one is shown, whatever their order."""
        old, new = snapshot(streams=1, connected=False), snapshot(streams=2, since=LATER)
        for sessions in ([old, new], [new, old]):
            self.sessions = sessions
            self.assertEqual(
                {("edge-1",): 2},
                self.samples(self.server, "yurttunnel_server_session_open_streams"),
            )
            self.assertEqual(
                {("edge-1",): 1},
                self.samples(self.server, "konnectivity_network_proxy_server_registered_agents"),
            )
            self.assertEqual(3, self.value(self.server, "yurttunnel_server_open_streams"))
            text = exposition(self.server).decode()
            self.assertEqual(1, text.count('session_open_streams{node="edge-1"}'))


class InterceptionTests(ScrapeTestCase):
    """A server's metrics of requests to kubelets."""

    def shown(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples of a metric by its name without the prefix."""
        return self.samples(self.server, f"yurttunnel_server_{name}")

    def test_in_flight_requests(self) -> None:
        """Requests in flight are counted by verb and path, and in total."""
        self.interception.in_flight["GET", "/pods"] = 2
        self.interception.in_flight["POST", "/exec"] = 3
        self.assertEqual(
            {("GET", "/pods"): 2, ("POST", "/exec"): 3}, self.shown("in_proxy_requests")
        )
        self.assertEqual({(): 5}, self.shown("total_in_proxy_requests"))

    def test_answered(self) -> None:
        """Completed requests are counted by status as well."""
        self.interception.completed["GET", "/pods", "200"] = 4
        self.assertEqual({("GET", "/pods", "200"): 4}, self.shown("proxied_requests_total"))

    def test_durations(self) -> None:
        """The duration buckets are cumulative, including values over the last bound."""
        for seconds in (0.001, 0.05, 100.0):
            self.interception.durations.observe(seconds)
        name = "proxied_request_duration_seconds"
        buckets = self.shown(f"{name}_bucket")
        self.assertEqual(1, buckets["0.005",])
        self.assertEqual(2, buckets["0.1",])
        self.assertEqual(2, buckets["60",])
        self.assertEqual(3, buckets["+Inf",])
        self.assertEqual({(): 3}, self.shown(f"{name}_count"))
        self.assertAlmostEqual(100.051, self.shown(f"{name}_sum")[()])

    def test_kubelets(self) -> None:
        """TLS handshakes and verification results have samples from the start."""
        self.interception.handshakes["done"] = 2
        self.interception.verdicts["unverified"] = 1
        self.assertEqual(
            {("done",): 2, ("not_trusted",): 0, ("failed",): 0, ("timeout",): 0},
            self.shown("kubelet_tls_handshakes_total"),
        )
        self.assertEqual(
            {("verified",): 0, ("unverified",): 1, ("skipped",): 0},
            self.shown("kubelet_verifications_total"),
        )

    def test_pool(self) -> None:
        """The connection pool has gauges of its state and counters of its events."""
        self.pool = PoolStatistics(
            connects=9, failed_connects=2, reuses=7, refusals=5, idle=4, in_use=3, waiting=6
        )
        self.assertEqual({("in_use",): 3, ("idle",): 4}, self.shown("kubelet_connections"))
        self.assertEqual({(): 6}, self.shown("kubelet_waiting_requests"))
        self.assertEqual(
            {("reuse",): 7, ("connect",): 9, ("connect_failed",): 2, ("refusal",): 5},
            self.shown("kubelet_pool_events_total"),
        )

    def test_refused(self) -> None:
        """Rejected requests are counted by status; common statuses have samples from the start."""
        self.assertEqual({0}, set(self.shown("refused_requests_total").values()))
        self.refusals.update({431: 2, 599: 1})
        shown = self.shown("refused_requests_total")
        self.assertEqual((2, 1, 0), (shown["431",], shown["599",], shown["503",]))


class AgentTests(ScrapeTestCase):
    """Metrics that only an agent has."""

    def test_dial_durations(self) -> None:
        """Dial durations are in a histogram with the agent's prefix."""
        self.counters.dial_durations.observe(1.0)
        name = "konnectivity_network_proxy_agent_dial_duration_seconds"
        self.assertEqual(1, self.value(self.agent, f"{name}_count"))

    def test_connection_failures(self) -> None:
        """Failed attempts and lost connections are two directions of one counter."""
        self.failed_attempts = 5
        self.counters.connections_lost = 2
        name = "konnectivity_network_proxy_agent_server_connection_failure_count"
        text = exposition(self.agent).decode()
        self.assertIn(f'{name}{{direction="to_server"}} 5\n', text)
        self.assertIn(f'{name}{{direction="from_server"}} 2\n', text)

    def test_servers(self) -> None:
        """Sessions have the server's address as label."""
        self.sessions = [
            snapshot(address="192.0.2.1:10262", round_trip=0.25),
            snapshot(address="192.0.2.2:10262", round_trip=0.5),
        ]
        self.assertEqual(
            {("192.0.2.1:10262",): 0.25, ("192.0.2.2:10262",): 0.5},
            self.samples(self.agent, "yurttunnel_agent_session_round_trip_seconds"),
        )
        self.assertIn('streams{server="192.0.2.1:10262"} 3\n', exposition(self.agent).decode())
