"""The content of the status page."""

from __future__ import annotations

import datetime
import re

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.snapshots import snapshot
from tests.ops.status_pages import NOW, Carrying, PageUnderTest
from yurttunnel.agent.process import SERVERS, destination_section
from yurttunnel.ops.failures import MAX_KEPT as MOST_KEPT
from yurttunnel.ops.status.failures import MAX_SHOWN as MOST_FAILED
from yurttunnel.ops.status.page import POLICY, STYLE
from yurttunnel.ops.status.sessions import MAX_SHOWN
from yurttunnel.ops.status.throughput import INTERVAL
from yurttunnel.server.lost_nodes import MAX_SHOWN as MAX_LOST
from yurttunnel.server.lost_nodes import LostNode
from yurttunnel.steering.report import DnsReport, PassthroughReport, RulesReport, SteeringReport
from yurttunnel.tunnel.statistics import SessionSnapshot

HOSTILE = "<script>alert(1)</script><img src=x onerror='x'>\"'&"
MAX_BYTES = 200 * 1024
"""The maximum size of a page, however many nodes there are."""


def days(number: float) -> datetime.datetime:
    """Return the time ``number`` days from :data:`NOW`."""
    return NOW + datetime.timedelta(days=number)


def node(name: str, **changes: object) -> SessionSnapshot:
    """Return a session of a node without problems."""
    arguments = {
        "session_id": name.encode().hex(),
        "since": days(-1),
        "certificate_not_after": days(20),
        **changes,
    }
    return snapshot(node=name, **arguments)


def luminance(colour: str) -> float:
    """Return the relative luminance of a color such as ``#fff`` or ``#1b1f24`` (WCAG 2.2)."""
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    channels = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class ServerPageTests(SynchronousTestCase):
    """The page of a server."""

    def setUp(self) -> None:
        """Make a page without content."""
        self.status = PageUnderTest()

    def test_nothing(self) -> None:
        """On the page of an empty server each section says that it is empty."""
        page = self.status.render()
        self.assertIn("yurttunnel-server", page.text)
        for section, sentence in (
            ("sessions", "No node is connected."),
            ("lost", "No node is lost."),
            ("failures", "None: every request has been answered by its node."),
            ("streams", "No stream is open."),
            ("certificates", "There is no certificate yet."),
            ("events", "None has been logged since the start."),
        ):
            self.assertIn(sentence, page.sections[section])
        self.assertNotIn("steering", page.sections)
        self.assertNotIn("destinations", page.sections)

    def test_ready(self) -> None:
        """Passed checks are named, and so are failed checks that are not required."""
        self.status.readiness.add("listeners", lambda: None)
        self.status.readiness.add("siblings", lambda: "one is away", required=False)
        page = self.status.render()
        self.assertTrue(page.sections["readiness"].startswith("Ready"))
        self.assertIn("siblings: one is away", page.sections["readiness"])
        self.assertNotIn("Not ready", page.text)

    def test_not_ready(self) -> None:
        """Failed checks are shown, also in the title."""
        self.status.readiness.add("listeners", lambda: "port 10262 is not bound")
        page = self.status.render()
        self.assertTrue(page.sections["readiness"].startswith("Not ready"))
        self.assertIn("port 10262 is not bound", page.sections["readiness"])
        self.assertTrue(page.text.startswith("Not ready: yurttunnel-server on "))

    def test_a_session(self) -> None:
        """A session has node, address, state, age, round trip, streams, version and certificate."""
        self.status.snapshots = [node("edge-1")]
        [row] = self.status.render().rows["sessions"]
        self.assertEqual(
            [
                "edge-1 192.0.2.7:40000",
                "connected 4 resumptions",
                "1 d",
                "62 ms",
                "3",
                "in 0 B/s, out 0 B/s",
                "0.1.0",
                "20 days left",
            ],
            row,
        )

    def test_nodes_connected(self) -> None:
        """A connected node counts once, however many sessions it has; a waiting one does not."""
        for snapshots, tile in (
            ([], "nodes connected0nodes lost"),
            ([node("edge-1")], "nodes connected1nodes lost"),
            ([node("edge-1"), node("edge-1"), node("edge-2")], "nodes connected2nodes lost"),
            (
                [node("edge-1"), node("edge-2", connected=False)],
                "nodes connected11 waiting for its return",
            ),
            ([node("edge-1", connected=False)], "nodes connected01 waiting for its return"),
        ):
            self.status.snapshots = snapshots
            self.assertTrue(self.status.render().sections["overview"].startswith(tile), tile)

    def test_throughput(self) -> None:
        """The throughput of each session and the total are drawn and written."""
        self.status.page.startService()
        self.addCleanup(self.status.page.stopService)
        for received in (0, 1024 * 50):
            self.status.sessions = [Carrying(received)]
            self.status.counters.bytes_received = received
            self.status.clock.advance(INTERVAL)
        self.status.snapshots = [node("edge-1", session_id=b"a".hex())]
        page = self.status.render()
        self.assertIn("in 10.0 KiB/s", page.rows["sessions"][0][5])
        self.assertIn("from nodes10.0 KiB/s", page.sections["overview"])
        self.assertIn("to nodes0 B/s", page.sections["overview"])
        self.assertIn("path", page.names())

    def test_problems_come_first(self) -> None:
        """Lost connections come first, then expired and expiring certificates, then the names."""
        self.status.snapshots = [
            node("b"),
            node("soon", certificate_not_after=days(2)),
            node("a", certificate_not_after=None),
            node("ended", certificate_not_after=days(-1)),
            node("away", connected=False, waits_for=28.9),
        ]
        rows = self.status.render().rows["sessions"]
        self.assertEqual(["away", "ended", "soon", "a", "b"], [row[0].split()[0] for row in rows])
        self.assertEqual(
            "waiting for its return 28 s left, then its streams end 4 resumptions", rows[0][1]
        )
        self.assertEqual("ended 1 d ago", rows[1][7])
        self.assertEqual("2 d left", rows[2][7])

    def test_lost_nodes(self) -> None:
        """A lost node is shown with the time it was last seen and the reason."""
        seen = NOW.timestamp() - 61
        self.status.lost = [LostNode("edge-2", seen, "silent"), LostNode("edge-3", None, "new")]
        self.assertEqual(
            [
                ["edge-2", "1 min 1 s ago", "silent"],
                ["edge-3", "never", "new"],
            ],
            self.status.render().rows["lost"],
        )

    def test_some_lost_or_none(self) -> None:
        """Lost nodes change the mark in more than its color."""
        marks = [
            attributes["class"]
            for lost in ([], [LostNode("edge-2", None, "new")])
            for self.status.lost in [lost]
            for name, attributes in self.status.render().elements
            if name == "span" and attributes["class"] in ("mark ok", "mark bad")
        ]
        self.assertGreater(marks.count("mark ok"), 0)
        self.assertEqual(1, marks.count("mark bad"))

    def test_requests_that_failed(self) -> None:
        """Failed requests follow readiness, newest first, with all details."""
        self.status.failures.note("connect", "192.0.2.1", "edge-1", "r-1", 503, "is away")
        self.status.failures.note("forward", HOSTILE, "edge-2", "r-2", None, HOSTILE)
        page = self.status.render()
        self.assertEqual(["readiness", "failures"], list(page.sections)[:2])
        first, second = page.rows["failures"]
        self.assertEqual([f"{HOSTILE} r-2", "reset", "edge-2", f"{HOSTILE} forward"], first[:4])
        self.assertEqual(["is away r-1", "503", "edge-1", "192.0.2.1 connect"], second[:4])
        self.assertIn("2 since the start", page.sections["failures"])
        [row] = self.status.render("503").rows["failures"]
        self.assertIn("r-1", row[0])

    def test_many_requests_that_failed(self) -> None:
        """The number of shown failures is limited; all failures are counted."""
        for number in range(MOST_KEPT + 9):
            cause = f"{number}: {'x' * 9999}"
            self.status.failures.note("connect", "a", "b", f"r-{number}", 503, cause)
        page = self.status.render()
        self.assertEqual(MOST_FAILED, len(page.rows["failures"]))
        self.assertIn(f"{MOST_KEPT + 9} since the start", page.sections["failures"])
        self.assertLess(len(page.rows["failures"][0][0]), 400)

    def test_repeated_failures(self) -> None:
        """Failures with the same cause share a row, so that others have room."""
        clock, failures = self.status.clock, self.status.failures
        failures.note("connect", "192.0.2.1", "edge-7", "rare", 502, "refused")
        for number in range(30):
            disconnected = f"was seen {number} s ago"
            failures.note("forward", "192.0.2.1", "edge-1", f"r-{number}", None, disconnected)
            clock.advance(1)
        failures.note("forward", "192.0.2.2", "edge-1", "other", None, "is away")
        self.assertEqual(
            [
                ["is away other", "reset", "edge-1", "192.0.2.2 forward", "1", "0 s ago"],
                [
                    *("was seen 29 s ago r-29", "reset", "edge-1", "192.0.2.1 forward", "30"),
                    "1 s ago first 30 s ago",
                ],
                ["refused rare", "502", "edge-7", "192.0.2.1 connect", "1", "30 s ago"],
            ],
            self.status.render().rows["failures"],
        )

    def test_certificates(self) -> None:
        """Certificates are sorted by expiry."""
        self.status.certificates = {"ca": days(3650), "server": days(1.5)}
        self.assertEqual(
            [
                ["server", "1 d 12 h left", "23 November 2026, 15:04 UTC"],
                ["ca", "3,650 days left", "19 November 2036, 03:04 UTC"],
            ],
            self.status.render().rows["certificates"],
        )

    def test_events(self) -> None:
        """The log's warnings and errors are shown while the page's service runs."""
        self.status.page.startService()
        self.addCleanup(self.status.page.stopService)
        Logger("yurttunnel.part").warn("it is {how}", how="late")
        [row] = self.status.render().rows["events"]
        self.assertEqual(["it is late yurttunnel.part", "warning"], row[:2])
        self.assertEqual("1", row[3])

    def test_steering(self) -> None:
        """The steering of traffic has a section."""
        self.status.steering = SteeringReport(
            RulesReport(state="active", problem=None, families=()),
            DnsReport(leader=False, records=7, writes={}),
            PassthroughReport(port=10267, ports=(), connections=9, refused={"no_name": 1}),
        )
        section = self.status.render().sections["steering"]
        for text in ("Rules of the firewall", "active", "another server is", "1 no_name"):
            self.assertIn(text, section)

    def test_hostile_names(self) -> None:
        """Text from peers and callers is escaped everywhere."""
        self.status.page.startService()
        self.addCleanup(self.status.page.stopService)
        self.status.snapshots = [node(HOSTILE, address=HOSTILE, version=HOSTILE)]
        self.status.lost = [LostNode(HOSTILE, None, HOSTILE)]
        self.status.certificates = {HOSTILE: days(9)}
        self.status.readiness.add(HOSTILE, lambda: HOSTILE)
        self.status.steering = SteeringReport(
            RulesReport(state=HOSTILE, problem=HOSTILE, families=())
        )
        Logger("yurttunnel.part").error("{text}", text=HOSTILE)
        page = self.status.render(HOSTILE)
        scripts = [name for name, _ in page.elements if name == "script"]
        self.assertEqual(1, len(scripts))
        self.assertNotIn("img", page.names())
        values = [found["value"] for name, found in page.elements if name == "input"]
        self.assertEqual([HOSTILE], values)
        for section in ("sessions", "lost", "certificates", "readiness", "steering", "events"):
            self.assertIn(HOSTILE, page.sections[section])

    def test_invalid_unicode(self) -> None:
        """A lone surrogate, as in an invalid file name, does not break the page."""
        self.status.lost = [LostNode("edge-\udcff", None, "x")]
        self.assertIn("edge-?", self.status.render().sections["lost"])

    def test_the_filter(self) -> None:
        """The filter searches names, addresses, versions and reasons, ignoring case."""
        self.status.snapshots = [node("edge-1"), node("Mill-2", address="198.51.100.2:4")]
        self.status.lost = [LostNode("mill-3", None, "x"), LostNode("edge-4", None, "x")]
        for desired in ("mill", " MILL ", "mill-"):
            page = self.status.render(desired)
            self.assertEqual(["Mill-2"], [row[0].split()[0] for row in page.rows["sessions"]])
            self.assertEqual(["mill-3"], [row[0] for row in page.rows["lost"]])
            self.assertIn("Show all", page.text)
        self.assertEqual(1, len(self.status.render("198.51").rows["sessions"]))
        self.status.lost.append(LostNode("edge-5", None, "a Mill burnt down"))
        found = [row[0] for row in self.status.render("mill").rows["lost"]]
        self.assertEqual(["mill-3", "edge-5"], found, "why a node was lost is looked into, too")
        page = self.status.render("nobody")
        self.assertIn("Nothing matches the filter.", page.sections["sessions"])
        self.assertIn("Nothing matches the filter.", page.sections["lost"])

    def test_two_thousand_nodes(self) -> None:
        """The page's size is limited; nodes with problems come first, and the rest is counted."""
        self.status.page.startService()
        self.addCleanup(self.status.page.stopService)
        for carried in range(70):
            self.status.sessions = [
                Carrying(sent=carried * number, session_id=f"edge-{number}".encode())
                for number in range(2000)
            ]
            self.status.clock.advance(INTERVAL)
        self.status.snapshots = [
            node(f"edge-{number}", connected=number % 500 != 7) for number in range(2000)
        ]
        self.status.lost = [LostNode(f"lost-{number}", 0.0, "x" * 60) for number in range(10_000)]
        raw = "".join(self.status.page.pieces("", [])).encode()
        self.assertLess(len(raw), MAX_BYTES)
        page = self.status.render()
        self.assertEqual(MAX_SHOWN, len(page.rows["sessions"]))
        self.assertEqual(MAX_LOST, len(page.rows["lost"]))
        self.assertIn(f"{MAX_SHOWN} of 2,000, problems first", page.sections["sessions"])
        self.assertIn("4 waiting for its return", page.sections["overview"])
        names = [row[0].split()[0] for row in page.rows["sessions"][:4]]
        self.assertEqual(["edge-1007", "edge-1507", "edge-507", "edge-7"], names)
        self.assertEqual(1, len(self.status.render("edge-1999").rows["sessions"]))


class AgentPageTests(SynchronousTestCase):
    """The page of an agent."""

    def test_differences_of_an_agent(self) -> None:
        """An agent's page has servers and permitted destinations, and no lost nodes."""
        status = PageUnderTest(
            "yurttunnel-agent",
            terms=SERVERS,
            sections=[lambda _: destination_section(["10.0.0.0/8", HOSTILE])],
        )
        page = status.render()
        self.assertIn("No server is connected.", page.sections["sessions"])
        self.assertIn("10.0.0.0/8", page.sections["destinations"])
        self.assertIn(HOSTILE, page.sections["destinations"])
        self.assertNotIn("lost", page.sections)

    def test_no_column_without_content(self) -> None:
        """The certificates of servers are unknown, so the column is left out."""
        status = PageUnderTest("yurttunnel-agent", terms=SERVERS, sections=())
        status.snapshots = [node("192.0.2.1:10262", certificate_not_after=None)]
        status.snapshots[0] = node(
            "192.0.2.1:10262", address="192.0.2.1:10262", certificate_not_after=None
        )
        [row] = status.render().rows["sessions"]
        self.assertEqual(7, len(row))
        self.assertEqual("192.0.2.1:10262", row[0])


class DocumentTests(SynchronousTestCase):
    """The HTML document."""

    def setUp(self) -> None:
        """Render a page."""
        self.status = PageUnderTest()
        self.status.snapshots = [node("edge-1")]
        self.raw = "".join(self.status.page.pieces("", [("healthz", "the process runs")]))
        self.page = self.status.render()

    def test_the_policy_names_script_and_style(self) -> None:
        """The policy permits the page's own script and style by their hashes, and nothing else."""
        self.assertIn(b"default-src 'none'", POLICY)
        self.assertNotIn(b"unsafe", POLICY)
        for kind in ("script", "style"):
            self.assertRegex(POLICY.decode(), rf"{kind}-src 'sha256-[A-Za-z0-9+/]{{43}}='")

    def test_nothing_inline_but_those(self) -> None:
        """No element has an inline style or event handler, which the policy would block."""
        for name, attributes in self.page.elements:
            for attribute in attributes:
                self.assertFalse(attribute == "style" or attribute.startswith("on"), name)

    def test_no_external_resources(self) -> None:
        """Every URL on the page is local or a data URL."""
        for _, attributes in self.page.elements:
            for attribute in ("href", "src", "action"):
                value = attributes.get(attribute)
                if value is not None:
                    self.assertTrue(re.match(r"/(?!/)|data:", value), value)
        self.assertNotIn("@import", self.raw)
        self.assertNotIn("url(", self.raw)

    def test_language_and_headings(self) -> None:
        """The page has a language, a title, one first heading, and a label for its field."""
        self.assertIn(("html", {"lang": "en"}), self.page.elements)
        self.assertEqual(1, sum(name == "h1" for name, _ in self.page.elements))
        self.assertIn(("label", {"for": "q"}), self.page.elements)
        self.assertTrue({"title", "main", "header", "footer", "caption"} <= self.page.names())

    def test_ids_are_unique(self) -> None:
        """Element ids are unique, since the script replaces elements by id."""
        ids = [found["id"] for _, found in self.page.elements if "id" in found]
        self.assertEqual(len(set(ids)), len(ids))

    def test_without_scripts(self) -> None:
        """Browsers without JavaScript have a refresh and a link."""
        self.assertIn('<noscript><meta http-equiv="refresh" content="30"></noscript>', self.raw)
        self.assertIn('<noscript><a href="/">Refresh</a></noscript>', self.raw)
        filtered = self.status.render("a&b \udcff")
        self.assertIn(("a", {"href": "/?q=a%26b%20%3F"}), filtered.elements)

    def test_contrast(self) -> None:
        """All text has sufficient contrast in both color schemes (WCAG 2.2, 1.4.3)."""
        day, night = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
        for rules in (day, night):
            colours = dict(re.findall(r"--(\w+): (#\w+);", rules))
            for paper in ("page", "panel"):
                for ink in ("ink", "soft", "accent", "ok", "warn", "bad"):
                    ratio = contrast(colours[ink], colours[paper])
                    self.assertGreaterEqual(ratio, 4.5, (ink, paper, colours))

    def test_day_and_night(self) -> None:
        """There are styles for light and dark schemes, narrow screens and printing."""
        for rule in ("prefers-color-scheme: dark", "max-width: 1100px", "@media print"):
            self.assertIn(rule, self.raw)
