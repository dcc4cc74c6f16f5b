"""Tests of reports of steering: metrics, JSON and a section of the status page."""

from __future__ import annotations

import dataclasses
import json

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.steering.page import steering_page, steering_section
from yurttunnel.steering.report import (
    DNS_METRICS,
    PASSTHROUGH_METRICS,
    RESULTS,
    RULES_METRICS,
    AddressReport,
    DnsReport,
    FamilyReport,
    PassthroughReport,
    PortReport,
    RulesReport,
    SteeringReport,
)

FAMILY = FamilyReport(
    version=4,
    backend="nft",
    match="edge-set",
    ports=(PortReport(10250, "192.0.2.1:10263", False), PortReport(10250, "192.0.2.1:10263", True)),
    edge=AddressReport(3, ("192.168.0.1", "192.168.0.2")),
    cloud=AddressReport(1, ("192.0.2.1",)),
    last_sync=1_800_000_060.0,
    last_success=1_800_000_000.0,
    last_change=1_799_999_940.0,
    differed=("the jump from OUTPUT is missing",),
    problem="iptables-restore: <locked>",
    notes=("pods cannot reach 127.0.0.1",),
    syncs={"unchanged": 7, "changed": 2, "repaired": 1},
    flows_cut=5,
)
MISSING = FamilyReport(version=6, problem="there is no ip6tables")
DNS = DnsReport(
    leader=True,
    records=12,
    writes={"ConfigMap": 3, "Service": 1},
    last_write=1_800_000_000.0,
    problem="the Service is headless",
)
PASSTHROUGH = PassthroughReport(
    port=10261, ports=(10250, 9443), connections=9, refused={"no_name": 2, "not_connected": 1}
)
REPORT = SteeringReport(
    RulesReport(state="failing", problem="IPv4: locked", families=(FAMILY, MISSING)),
    DNS,
    PASSTHROUGH,
)


def registry_of(report):
    """Return the registry of a server with ``report``."""
    registry = MetricRegistry()
    registry.add(RULES_METRICS, lambda: report.rules)
    registry.add(DNS_METRICS, lambda: report.dns)
    registry.add(PASSTHROUGH_METRICS, lambda: report.passthrough)
    return registry


def json_of(report):
    """Return the content of ``/steering``."""
    return json.loads(json.dumps(steering_page(lambda: report).show()))


def html_of(report):
    """Return the content of the section of the status page."""
    return steering_section(report).content


def samples(report):
    """Return the samples of a scrape, by name and labels without their common part."""
    return {
        (sample.name.removeprefix("yurttunnel_server_steering_"), *sample.labels.values()): (
            sample.value
        )
        for family in registry_of(report)
        for sample in family.samples
    }


class MetricTests(SynchronousTestCase):
    """The metric families by their names and samples."""

    def test_samples(self):
        """Each value is in its metric family."""
        shown = samples(REPORT)
        for labels, value in {
            ("syncs_total", "ipv4", "unchanged"): 7,
            ("syncs_total", "ipv4", "changed"): 2,
            ("syncs_total", "ipv4", "repaired"): 1,
            ("syncs_total", "ipv4", "failed"): 0,
            ("syncs_total", "ipv6", "failed"): 0,
            ("last_success_timestamp_seconds", "ipv4"): 1_800_000_000,
            ("intercepted_ports", "ipv4"): 1,
            ("intercepted_ports", "ipv6"): 0,
            ("addresses", "ipv4", "edge"): 3,
            ("addresses", "ipv4", "cloud"): 1,
            ("flows_cut_total", "ipv4"): 5,
            ("dns_leader",): 1,
            ("dns_records",): 12,
            ("dns_problem",): 1,
            ("dns_writes_total", "ConfigMap"): 3,
            ("dns_writes_total", "Service"): 1,
            ("passthrough_connections_total",): 9,
            ("passthrough_refusals_total", "no_name"): 2,
        }.items():
            self.assertEqual(value, shown[labels], labels)
        self.assertNotIn(("last_success_timestamp_seconds", "ipv6"), shown)

    def test_dns_problem(self):
        """There is one only on the leading server, while something fails."""
        for leader, problem, value in (
            (True, None, 0),
            (True, "the ConfigMap cannot be written", 1),
            (False, None, 0),
            (False, "the ConfigMap cannot be written", 0),
        ):
            report = SteeringReport(dns=dataclasses.replace(DNS, leader=leader, problem=problem))
            self.assertEqual(value, samples(report)["dns_problem",], (leader, problem))

    def test_names(self):
        """Every name has the prefix, and every family a description."""
        for family in registry_of(REPORT):
            self.assertTrue(family.name.startswith("yurttunnel_server_steering_"))
            self.assertGreater(len(family.documentation), 60)

    def test_bounded(self):
        """The number of series does not depend on the number of nodes."""
        many = dataclasses.replace(FAMILY, edge=AddressReport(5000, ("192.0.2.1",) * 100))
        rules = RulesReport(state="steering", problem=None, families=(many, MISSING))
        self.assertEqual(
            samples(REPORT).keys(), samples(dataclasses.replace(REPORT, rules=rules)).keys()
        )
        syncs = [labels for labels in samples(REPORT) if labels[0] == "syncs_total"]
        self.assertEqual(2 * len(RESULTS), len(syncs))

    def test_switched_off(self):
        """Disabled parts have no metrics."""
        self.assertEqual({}, samples(SteeringReport()))
        names = {labels[0].split("_")[0] for labels in samples(SteeringReport(dns=DNS))}
        self.assertEqual({"dns"}, names)

    def test_scrape(self):
        """The text format of Prometheus can be generated."""
        text = exposition(registry_of(REPORT)).decode()
        self.assertIn(
            'yurttunnel_server_steering_syncs_total{family="ipv4",result="repaired"} 1\n', text
        )


class JsonTests(SynchronousTestCase):
    """The page ``/steering``."""

    def test_everything(self):
        """Everything is there by name, times in ISO 8601, in UTC."""
        shown = json_of(REPORT)
        self.assertEqual({"iptables", "dns", "passthrough"}, shown.keys())
        self.assertEqual("failing", shown["iptables"]["state"])
        self.assertEqual("IPv4: locked", shown["iptables"]["problem"])
        family, missing = shown["iptables"]["families"]
        self.assertEqual(
            {
                "version": 4,
                "backend": "nft",
                "match": "edge-set",
                "ports": [
                    {"port": 10250, "leads_to": "192.0.2.1:10263", "from": "this machine"},
                    {"port": 10250, "leads_to": "192.0.2.1:10263", "from": "pods"},
                ],
                "edge_addresses": {"total": 3, "first": ["192.168.0.1", "192.168.0.2"]},
                "cloud_addresses": {"total": 1, "first": ["192.0.2.1"]},
                "last_sync": "2027-01-15T08:01:00Z",
                "last_success": "2027-01-15T08:00:00Z",
                "last_change": "2027-01-15T07:59:00Z",
                "differed": ["the jump from OUTPUT is missing"],
                "problem": "iptables-restore: <locked>",
                "notes": ["pods cannot reach 127.0.0.1"],
                "syncs": {"unchanged": 7, "changed": 2, "repaired": 1},
                "flows_cut": 5,
            },
            family,
        )
        self.assertEqual(
            (6, None, None), (missing["version"], missing["backend"], missing["last_sync"])
        )
        self.assertEqual(
            {
                "leader": True,
                "records": 12,
                "writes": {"ConfigMap": 3, "Service": 1},
                "last_write": "2027-01-15T08:00:00Z",
                "problem": "the Service is headless",
            },
            shown["dns"],
        )
        self.assertEqual(
            {
                "port": 10261,
                "ports": [10250, 9443],
                "connections": 9,
                "refused": {"no_name": 2, "not_connected": 1},
            },
            shown["passthrough"],
        )

    def test_switched_off(self):
        """Disabled parts are null."""
        self.assertEqual(
            {"iptables": None, "dns": None, "passthrough": None},
            json_of(SteeringReport()),
        )


class HtmlTests(SynchronousTestCase):
    """The section of the status page."""

    def test_everything(self):
        """It has the same content, escaped."""
        section = html_of(REPORT)
        self.assertTrue(section.startswith("<h2>Steering</h2>"))
        for words in (
            "failing",
            "10250 from this machine to 192.0.2.1:10263; 10250 from pods to 192.0.2.1:10263",
            "3: 192.168.0.1, 192.168.0.2 and 1 more",
            "1: 192.0.2.1<",
            "2027-01-15T08:00:00Z",
            "the jump from OUTPUT is missing",
            "iptables-restore: &lt;locked&gt;",
            "7 unchanged",
            "there is no ip6tables",
            "never",
            "3 ConfigMap; 1 Service",
            "the Service is headless",
            "2 no_name; 1 not_connected",
        ):
            self.assertIn(words, section)
        self.assertNotIn("<locked>", section)

    def test_switched_off(self):
        """Disabled parts are omitted."""
        self.assertEqual("<h2>Steering</h2>", html_of(SteeringReport()))
        self.assertNotIn("Pass-through", html_of(SteeringReport(dns=DNS)))
