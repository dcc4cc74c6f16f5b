"""The operator's pages document exactly the existing messages, metrics and alerts."""

from __future__ import annotations

import ast
import re

import yaml
from twisted.internet.task import Clock
from twisted.trial import unittest

from tests.deploy.messages import TEXT_SOURCES, has_words, key, source_files
from tests.deploy.metrics import RULES, samples
from tests.deploy.reference import (
    FLAGS,
    MESSAGES,
    METRIC,
    METRICS,
    default_values,
    families,
    flags_page,
    messages_by_file,
    messages_page,
    metrics_page,
    named_in,
    rows_of,
)
from tests.deploy.rendering import REPOSITORY
from tests.deploy.test_documents import LIMITS
from yurttunnel.ops import http_site, log_file, log_flood_limit
from yurttunnel.ops.debug import log_level, memory
from yurttunnel.ops.debug import sessions as debug_sessions
from yurttunnel.ops.debug.service import Debug
from yurttunnel.ops.diagnose import meta_pages
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_levels import LogLevelFilter
from yurttunnel.ops.status import events, peers, sessions
from yurttunnel.pki import authority
from yurttunnel.pki.renewal_schedule import CLUSTER_SCHEDULE
from yurttunnel.pki.token import DEFAULT_TOKEN_LIFETIME, MAX_TOKENS
from yurttunnel.server import audit_log as audit
from yurttunnel.server import lost_nodes
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.server.siblings.feed import MAX_NODES
from yurttunnel.server.siblings.service import MAX_SIBLINGS

OPERATIONS = REPOSITORY / "docs" / "operations.md"

PAGES = (OPERATIONS, MESSAGES, METRICS)

ALERT = re.compile(r"Yurt(?:Tunnel|Hub|Proxy)[A-Z]\w+")
DEFECT = "Defect:"
DECLARING = ("counter", "gauge", "histogram", "Metric")
"""The functions that declare a metric (:mod:`yurttunnel.metrics`)."""


def section(title):
    """Return a second-level section of the runbook."""
    (found,) = re.findall(
        rf"^## {title}$(.*?)(?=^## |\Z)", OPERATIONS.read_text(), re.DOTALL | re.MULTILINE
    )
    return found


def first_cells(text):
    """Return the code spans in the first column of tables."""
    return {name for first, *_ in rows_of(text) for name in named_in(first)}


def all_messages():
    """Return the place of each message in the source, by its key."""
    return {
        text: f"{name}:{line}"
        for name, messages in messages_by_file().items()
        for text, line in messages.found.items()
    }


class MessageTests(unittest.SynchronousTestCase):
    """The documented messages are those of the programs."""

    def setUp(self):
        """Collect both."""
        self.messages = all_messages()
        self.documented = {key(code): code for code in first_cells(MESSAGES.read_text())}

    def test_each_is_documented(self):
        """Each message has a row, except defects, which share one."""
        not_found = {
            f"{place}: {text}"
            for text, place in self.messages.items()
            if text not in self.documented and not text.startswith(DEFECT)
        }
        self.assertEqual([], sorted(not_found))
        self.assertIn(f"`{DEFECT}`", MESSAGES.read_text())

    def test_each_exists(self):
        """Each row has a message that exists in the source."""
        outdated = [code for text, code in self.documented.items() if text not in self.messages]
        self.assertEqual([], sorted(outdated))

    def test_each_can_be_searched(self):
        """Each row has a literal word to search for."""
        self.assertEqual([], [code for code in self.documented.values() if not has_words(code)])

    def test_no_message_is_passed_on_from_nowhere(self):
        """Files with messages without literal words are listed with the sources of the text."""
        wordless = {name for name, messages in messages_by_file().items() if messages.wordless}
        self.assertLessEqual(wordless, TEXT_SOURCES.keys())

    def test_text_sources_exist(self):
        """Each listed call, attribute, name and function is in its file."""
        for name, makers in TEXT_SOURCES.items():
            text = (REPOSITORY / name).read_text()
            for maker in makers:
                self.assertRegex(text, rf"\b{maker}\b", name)


def declared_in(path):
    """Yield the names of the metrics that a file declares, without the prefix placeholder."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in DECLARING and node.args:
            name = node.args[0 if node.func.id != "Metric" else 1]
            text = name.values[-1] if isinstance(name, ast.JoinedStr) else name
            if isinstance(text, ast.Constant):
                yield text.value + ("_total" if node.func.id == "counter" else "")


class MonitoringTests(unittest.SynchronousTestCase):
    """The documented metrics and alerts are those that exist."""

    def test_metrics(self):
        """The metrics with a row are exactly the existing ones."""
        documented = {code for code in first_cells(METRICS.read_text()) if METRIC.fullmatch(code)}
        names = set(samples())
        for histogram in [each for each in names if each.endswith("_bucket")]:
            name = histogram.removesuffix("_bucket")
            names -= {f"{name}_bucket", f"{name}_count", f"{name}_sum"}
            names.add(name)
        self.assertEqual(names, documented)

    def test_every_metric_is_compared(self):
        """Each metric that is declared in the source is in the compared registries."""
        compared = families()
        declared = [
            (name, path) for path, _ in source_files(REPOSITORY) for name in declared_in(path)
        ]
        self.assertGreater(len(declared), 50)
        for name, path in declared:
            self.assertTrue(any(each.endswith(name) for each in compared), f"{path}: {name}")

    def test_each_metric_has_an_alert_or_a_reason(self):
        """Each metric has an alert or the reason for having none."""
        for metric, *_, alerts, reason in rows_of(METRICS.read_text()):
            self.assertTrue(alerts or reason, metric)

    def test_alerts(self):
        """The reference has all alerts, and no page names an unknown one."""
        groups = yaml.safe_load(RULES.read_text())["groups"]
        alerts = {rule["alert"] for group in groups for rule in group["rules"]}
        self.assertEqual(alerts, set(ALERT.findall(METRICS.read_text())))
        for page in PAGES:
            self.assertLessEqual(set(ALERT.findall(page.read_text())), alerts, page)


class GeneratedTests(unittest.SynchronousTestCase):
    """Generated pages are up to date."""

    def test_references(self):
        """The pages are equal to the output of ``python -m tests.deploy.reference``."""
        pages = ((METRICS, metrics_page()), (MESSAGES, messages_page()), (FLAGS, flags_page()))
        for page, text in pages:
            self.assertEqual(
                text.splitlines(),
                page.read_text().splitlines(),
                f"run python -m tests.deploy.reference for {page.name}",
            )


class ReferenceTests(unittest.SynchronousTestCase):
    """Checks and pages are documented."""

    def test_readiness_checks(self):
        """The table has all checks of /readyz."""
        checks = {
            node.args[0].value
            for path, _ in source_files(REPOSITORY)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add"
            and ast.unparse(node.func.value).endswith("readiness")
            and isinstance(node.args[0], ast.Constant)
        }
        self.assertIn("listeners", checks)
        text = section("Looking inside")
        table = text[text.index("The checks of `/readyz`") : text.index("### /debug")]
        self.assertEqual(checks, first_cells(table))

    def test_meta_pages_are_diagnosed(self):
        """A diagnosis includes each page in the table, of whichever program."""
        text = section("Looking inside")
        cells = first_cells(text[: text.index("### /nodes")]) - {"/debug"}
        named = {cell.removeprefix("/") for cell in cells if not cell.endswith("/NAME")}
        own = {page for page in meta_pages.PAGES if not page.startswith("debug/")}
        self.assertEqual(named, own)

    def test_debug_pages(self):
        """All pages of /debug are documented."""
        clock = Clock()
        pages = Debug(clock, list, ReactorLag(clock), LogLevelFilter()).pages
        named = set(re.findall(r"`/debug/([a-z-]+)", section("Looking inside")))
        self.assertEqual(
            {path.removeprefix("/debug").strip("/") for path in pages}, {*named, "", "*"}
        )

    def test_readme_links_here(self):
        """The README links to the runbook."""
        self.assertIn("docs/operations.md", (REPOSITORY / "README.md").read_text())


class NumberTests(unittest.SynchronousTestCase):
    """Numbers in the documents are those of the programs."""

    def test_in_the_manual(self):
        """Limits, lifetimes and shares in the manual are those of the source."""
        text = " ".join(" ".join(page.read_text() for page in (OPERATIONS, MESSAGES)).split())
        drain = default_values(ServerOptions)["drain-timeout"]
        first, last = CLUSTER_SCHEDULE.renewed_from, CLUSTER_SCHEDULE.renewed_until
        days = authority.DEFAULT_NODE_LIFETIME / authority.DAY
        for phrase in (
            f"`--drain-timeout` ({drain} s;",
            f"up to the number of cloud nodes and {MAX_SIBLINGS};",
            f"More than {MAX_SIBLINGS} servers",
            f"More than {MAX_NODES:,} nodes",
            f"at {100 * first:.0f} to {100 * last:.0f} % of their life",
            f"a node's is valid for {days:.0f} days",
            f"before `--join-token-lifetime` ({DEFAULT_TOKEN_LIFETIME / 3600:.0f} h) is over",
            f"{log_flood_limit.MAX_SHOWN} a minute from one place",
            f"traces allocations for {memory.TRACED_SECONDS / 60:.0f} minutes",
        ):
            self.assertIn(phrase, text)

    def test_in_the_limits(self):
        """The documented limits of meta ports, log and audit log are those of the source."""
        text = LIMITS.read_text()
        for row in (
            "| connections to a meta port whose request has not come |"
            f" {http_site.MAX_AWAITING_REQUEST} |",
            "| connections to it that are being answered, or whose request has a body that is not"
            f" complete | {http_site.MAX_IN_PROGRESS} |",
            f"| connections to it that have their answer | {http_site.MAX_LINGERING} |",
            "| pages made in one turn of the reactor, those for probes apart |"
            f" {http_site.PAGES_PER_TURN} |",
            "| time for the head of a request to it, then for its body, then for the client to take"
            f" the answer and close | {http_site.REQUEST_SECONDS} s each;",
            f"| body of a request to it | {http_site.MAX_BODY_BYTES // 1024} KiB |",
            f"which has the same bounds as a meta port | {MAX_TOKENS} |",
            "| nodes, streams, idle connections and lost nodes on the status page |"
            f" {sessions.MAX_SHOWN}, {peers.MAX_STREAMS}, {peers.MAX_STREAMS},"
            f" {lost_nodes.MAX_SHOWN} |",
            f"| warnings and errors on the status page | {events.MAX_KEPT} |",
            "| sessions and streams in `/debug/sessions` |"
            f" {debug_sessions.MAX_SESSIONS}, {debug_sessions.MAX_STREAMS} |",
            f"| time for which `/debug/memory` traces | {memory.TRACED_SECONDS:.0f} s |",
            "| time of another log level by `/debug/log-level` |"
            f" {log_level.DEFAULT_SECONDS} s, {log_level.MAX_SECONDS} s at most |",
            "| warnings and errors from one place of the program |"
            f" {log_flood_limit.MAX_SHOWN} in {log_flood_limit.PERIOD:.0f} s |",
            f"| line of the audit log | {(audit.MAX_LINE + 1) // 1024} KiB |",
            "| lines of the audit log that wait for the disk |"
            f" {audit.MAX_QUEUED_BYTES // 1024**2} MiB, beside",
            "| time to write the last lines of the audit log at the end |"
            f" {audit.CLOSE_TIMEOUT:.0f} s |",
            "| lines of the log that wait for who reads it |"
            f" {log_file.MAX_WAITING // 1024**2} MiB |",
            f"| time to write the last of them at the end | {log_file.CLOSE_TIMEOUT:.0f} s |",
        ):
            self.assertIn(row, text)
