"""Alerts and dashboard use only metrics, labels and values that exist."""

from __future__ import annotations

import json
import re

import yaml
from twisted.trial import unittest

from tests.deploy.metrics import MONITORING, RULES, SESSION_ENDS, samples
from tests.deploy.reference import default_values
from tests.deploy.rendering import (
    named,
    of_kind,
    render,
    why_not_rendered,
)
from tests.deploy.steering import all_steering_families
from yurttunnel.proxy.health import MAX_PERIODS
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.server.options import Options as ServerOptions

DASHBOARD = MONITORING / "yurttunnel-dashboard.json"

METRIC = re.compile(
    r"\b((?:yurttunnel|konnectivity|process|(?:node_)?yurthub|(?:kube|yurt)proxy)_[a-z0-9_]+)\s*(?:\{([^}]*)\})?",
    re.DOTALL,
)
MATCHER = re.compile(r"(\w+)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)")
BY_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds, and the label of histogram buckets."""


def faults(expression, existing):
    """Yield a sentence for each unknown metric, label and value in a query."""
    expression = expression.replace("$__rate_interval", "5m")
    available = set(BY_PROMETHEUS)
    for name, matchers in METRIC.findall(expression):
        if name not in existing:
            yield f"there is no metric {name}"
            continue
        labels = existing[name]
        available |= labels.keys()
        for label, operator, value in MATCHER.findall(matchers):
            if label in BY_PROMETHEUS:
                continue
            if label not in labels:
                yield f"{name} has no label {label}"
                continue
            if value.startswith("$"):
                continue
            for word in value.split("|") if "~" in operator else [value]:
                if word not in labels[label]:
                    yield f"{name} has no {label} {word}"
    for group in GROUPING.findall(expression):
        for label in group.replace(" ", "").split(","):
            if label not in available:
                yield f"no metric in {expression} has the label {label}"


class FaultsTests(unittest.SynchronousTestCase):
    """The check of the queries."""

    def test_missing_metrics_are_found(self):
        """Unknown metrics, labels, values and groupings are reported."""
        existing = samples()
        for expression, part in (
            ("yurttunnel_server_nothing > 1", "no metric"),
            ('yurttunnel_server_sessions{colour="red"}', "no label colour"),
            ('yurttunnel_server_sessions{state="asleep"}', "no state asleep"),
            ('yurttunnel_server_sessions{state=~"waiting|asleep"}', "no state asleep"),
            (SESSION_ENDS + '{reason=~"revoked|not_authorized"}', "no reason not_authorized"),
            ("sum by (node) (yurttunnel_server_sessions)", "has the label node"),
        ):
            (fault,) = faults(expression, existing)
            self.assertIn(part, fault)
        self.assertEqual([], list(faults('yurttunnel_server_sessions{state="waiting"}', existing)))


class RulesTests(unittest.SynchronousTestCase):
    """The alerting rules."""

    def setUp(self):
        """Read the rules."""
        self.groups = yaml.safe_load(RULES.read_text())["groups"]
        self.rules = [rule for group in self.groups for rule in group["rules"]]

    def test_alerts_use_existing_metrics(self):
        """Each expression uses existing metrics, labels and values."""
        existing = samples()
        for rule in self.rules:
            self.assertEqual([], list(faults(rule["expr"], existing)), rule["alert"])

    def test_every_alert_is_complete(self):
        """Each alert has a unique name, a severity, a summary and a description."""
        names = [rule["alert"] for rule in self.rules]
        self.assertEqual(len(names), len(set(names)))
        for rule in self.rules:
            self.assertLessEqual(
                rule.keys(), {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
            )
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"))
            self.assertEqual({"summary", "description"}, rule["annotations"].keys())
            self.assertGreater(len(rule["annotations"]["description"]), 60)
            self.assertEqual(rule["expr"].count("("), rule["expr"].count(")"), rule["alert"])

    def test_old_firewall_rules_are_reported_after_three_periods(self):
        """The alert fires after three default sync periods."""
        (rule,) = [each for each in self.rules if each["alert"] == "YurtTunnelFirewallRulesOld"]
        defaults = default_values(ServerOptions)
        seconds = 3 * int(defaults["iptables-sync-period"])
        self.assertTrue(rule["expr"].endswith(f"_last_success_timestamp_seconds > {seconds}"))

    def test_pending_changes_of_services_are_reported_after_two_periods(self):
        """The alert fires when the proxy's /healthz fails."""
        (rule,) = [each for each in self.rules if each["alert"] == "YurtProxyChangesWait"]
        defaults = default_values(ProxyOptions)
        seconds = MAX_PERIODS * int(defaults["iptables-sync-period"].removesuffix("s"))
        self.assertEqual(f"yurtproxy_change_age_seconds > {seconds}", rule["expr"])

    def test_texts_use_labels_that_the_expression_leaves(self):
        """Labels in an alert's text are labels of the metrics in its expression."""
        existing = samples()
        for rule in self.rules:
            labels = {"instance"}
            for name, _ in METRIC.findall(rule["expr"]):
                labels |= existing[name].keys()
            for text in rule["annotations"].values():
                self.assertLessEqual(set(re.findall(r"\$labels\.(\w+)", text)), labels)


class DashboardTests(unittest.SynchronousTestCase):
    """The Grafana dashboard."""

    def setUp(self):
        """Read the dashboard."""
        self.dashboard = json.loads(DASHBOARD.read_text())
        every = self.dashboard["panels"]
        self.rows = [each for each in every if each["type"] == "row"]
        # The panels of a collapsed row are nested in it.
        self.panels = [each for each in every if each["type"] != "row"]
        self.panels += [each for row in self.rows for each in row["panels"]]

    def test_panels_use_existing_metrics(self):
        """Queries and legends use existing metrics and labels."""
        existing = samples()
        for panel in self.panels:
            self.assertTrue(panel["targets"], panel["title"])
            for target in panel["targets"]:
                self.assertEqual([], list(faults(target["expr"], existing)), panel["title"])
                names = [name for name, _ in METRIC.findall(target["expr"])]
                labels = BY_PROMETHEUS.union(*(existing[name].keys() for name in names))
                self.assertLessEqual(
                    set(re.findall(r"{{(\w+)}}", target["legendFormat"])), labels, panel["title"]
                )

    def test_steering_is_shown_as_a_whole(self):
        """The panels show all metrics of firewall rules, DNS records and pass-through.

        Only the number of intercepted ports is left out, since only the configuration changes it.
        """
        shown = {
            name
            for panel in self.panels
            for target in panel["targets"]
            for name, _ in METRIC.findall(target["expr"])
        }
        steering = {sample.name for family in all_steering_families() for sample in family.samples}
        self.assertEqual({"yurttunnel_server_steering_intercepted_ports"}, steering - shown)

    def test_annotations_use_existing_metrics(self):
        """Lost nodes are marked, by a label of the query."""
        existing = samples()
        lost, broken = self.dashboard["annotations"]["list"]
        for each in (lost, broken):
            self.assertEqual([], list(faults(each["expr"], existing)), each["name"])
        self.assertIn("by (agentID)", lost["expr"])
        self.assertIn("{{agentID}}", lost["titleFormat"])
        self.assertIn('agentID=~"$node"', lost["expr"])

    def test_a_node_can_be_chosen(self):
        """The node variable has the values of a label, and the panels for chosen nodes use it."""
        (node,) = [each for each in self.dashboard["templating"]["list"] if each["name"] == "node"]
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", node["definition"]).groups()
        self.assertEqual(node["definition"], node["query"]["query"])
        self.assertIn(label, samples()[name])
        (row,) = [each for each in self.rows if each["title"] == "Chosen nodes"]
        for panel in row["panels"]:
            for target in panel["targets"]:
                self.assertIn('node=~"$node"', target["expr"], panel["title"])

    def test_links_point_to_the_status_page(self):
        """The dashboard links to the status page, and a row of a table to that page's node."""
        (link,) = self.dashboard["links"]
        self.assertEqual("${status_page}/", link["url"])
        tables = [each for each in self.panels if each["title"].endswith("est nodes")]
        self.assertEqual(2, len(tables))
        for table in tables:
            (link,) = table["fieldConfig"]["defaults"]["links"]
            self.assertEqual("${status_page}/?q=${__data.fields.node}", link["url"])

    def test_only_the_first_row_is_open(self):
        """Only the first row, with the nodes, is expanded, so other panels run no queries."""
        self.assertEqual(
            [False] + [True] * (len(self.rows) - 1), [each["collapsed"] for each in self.rows]
        )
        self.assertEqual("Nodes", self.rows[0]["title"])
        for row in self.rows:
            self.assertEqual(row["collapsed"], bool(row["panels"]), row["title"])

    def test_variables_exist(self):
        """The queries use all variables of the dashboard and no others, except Grafana's."""
        defined = {each["name"] for each in self.dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]\w*)", DASHBOARD.read_text()))
        self.assertEqual(defined, used)

    def test_panels_do_not_overlap(self):
        """Panels have unique ids and do not overlap."""
        every = [*self.rows, *self.panels]
        self.assertEqual(len(every), len({each["id"] for each in every}))
        self.assert_apart(self.dashboard["panels"])
        for row in self.rows:
            self.assert_apart(row["panels"])

    def assert_apart(self, panels):
        """Check that panels that are shown together do not overlap."""
        cells: set[tuple[int, int]] = set()
        for each in panels:
            place = each["gridPos"]
            covered = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            self.assertEqual(set(), cells & covered, each["title"])
            cells |= covered
            self.assertLessEqual(place["x"] + place["w"], 24)


class ProcessTests(unittest.SynchronousTestCase):
    """Process metrics of different programs are distinguishable."""

    def test_the_programs_of_a_node_have_names_of_their_own(self):
        """With the scrape configuration on the page each program has its own instance label."""
        [text] = re.findall(r"```yaml\n(.*?)```", (MONITORING / "README.md").read_text(), re.DOTALL)
        [job] = yaml.safe_load(text)["scrape_configs"]
        [static], [relabel] = job["static_configs"], job["relabel_configs"]
        self.assertEqual(
            ("instance", ["__address__"]), (relabel["target_label"], relabel["source_labels"])
        )
        made = relabel["replacement"].replace("$1", r"\1")
        instances = {re.sub(f"^{relabel['regex']}$", made, target) for target in static["targets"]}
        self.assertEqual({f"NODE:{port}" for port in (10249, 10265, 10266, 10267)}, instances)

    def test_other_programs_are_left_out(self):
        """Queries of process metrics are joined with the programs' own, to exclude others."""
        rules = yaml.safe_load(RULES.read_text())["groups"]
        expressions = [rule["expr"] for group in rules for rule in group["rules"]]
        expressions += re.findall(r'"expr": "(.*)"', DASHBOARD.read_text())
        of_processes = [each for each in expressions if "process_" in each]
        self.assertEqual(3, len(of_processes))
        for each in of_processes:
            self.assertIn(" and on (instance, job) ", each)


class ConfigMapTests(unittest.SynchronousTestCase):
    """The objects that ``kubectl apply -k`` creates."""

    skip = why_not_rendered()

    def test_the_files_are_in_config_maps(self):
        """The ConfigMaps contain the unchanged files and have fixed names."""
        objects = render(MONITORING)
        self.assertEqual(2, len(of_kind(objects, "ConfigMap")))
        rules = named(objects, "ConfigMap", "yurt-tunnel-rules")
        self.assertEqual({RULES.name: RULES.read_text()}, rules["data"])
        dashboard = named(objects, "ConfigMap", "yurt-tunnel-dashboard")
        self.assertEqual({DASHBOARD.name: DASHBOARD.read_text()}, dashboard["data"])
        self.assertEqual("1", dashboard["metadata"]["labels"]["grafana_dashboard"])
