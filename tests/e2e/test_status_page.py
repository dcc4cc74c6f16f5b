"""The status pages of a real server and a real agent, in a real browser."""

from __future__ import annotations

import os
from bisect import bisect_left

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SkipTest

from benchmarks.ports import free_ports
from tests.e2e.browser import Browser, Page, find_browser
from tests.e2e.clients import Echo, EchoClient
from tests.e2e.faults import FaultProxy
from tests.e2e.interception import InterceptionTestCase
from tests.e2e.kubelets import Request
from tests.e2e.programs import Program, Tunnel
from tests.e2e.test_commands import CommandCase
from yurttunnel import __version__
from yurttunnel.server.frontends.kubelet.metrics import REQUEST_SECONDS_BOUNDS

PICTURES = os.environ.get("YURTTUNNEL_SCREENSHOTS")
"""A directory for pictures of the pages, for people who change them."""

SHAPES = [
    (f"{scheme}-{width}", width, scheme == "dark")
    for scheme in ("light", "dark")
    for width in (390, 900, 1400)
]
"""Names, widths in CSS pixels (a phone, a small window, a desk), and whether it is night."""

WIDTHS = (320, 390, 760, 761, 1000, 1101, 1400)
"""CSS pixels: phones, windows just below and above where tables become cards, and compact, a
desk."""

NAMED = ("button", "link", "searchbox", "table", "image", "heading")
"""Roles whose elements a screen reader names."""

CLICKABLE = "a[href], button, input, select, summary"

SLOW = 0.3
"""The response time of a kubelet in seconds; the histogram has a bucket from 0.1 to 0.5 s."""

SEEN = 60.0
"""Seconds within which a page shows a change; on an idle machine it takes two."""

DURATION = r"[\d.]+ m?s"


def shown_seconds(text: str) -> float:
    """Return the seconds that a tile shows."""
    number, unit = text.split()[-2:]
    return float(number) * {"s": 1.0, "ms": 0.001}[unit]


class BrowserTestCase(InterceptionTestCase):
    """Views pages in a browser."""

    async def setUp(self) -> None:
        """Start a browser."""
        path = find_browser()
        if path is None:
            raise SkipTest("chromium is not installed")
        await super().setUp()
        self.browser = Browser(reactor, path)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.browser.close()))

    async def visit(self, program: Program, query: str = "", **options) -> Page:
        """Open the page of a program."""
        page = await self.browser.open_page(
            options.pop("width", 1400), 900, options.pop("dark", False), **options
        )
        await page.visit(f"http://127.0.0.1:{program.meta_port}/{query}")
        return page

    async def assert_shows(self, page: Page, selector: str, *texts: str) -> None:
        """Require that the element with the selector shows each of the texts."""
        shown = await page.text(selector)
        for text in texts:
            self.assertIn(text, shown)


class StatusPageTests(BrowserTestCase):
    """Both pages, in one browser."""

    async def setUp(self) -> None:
        """Start a tunnel with a stream in it."""
        await super().setUp()
        self.echo = self.listen(Echo)
        self.tunnel = await self.start_tunnel(forwards=(self.echo.port,))
        self.client = await self.open_stream()

    async def open_stream(self) -> EchoClient:
        """Open another stream, which stays open."""
        client = await self.dial(self.tunnel.forward_ports[0], EchoClient(reactor))
        await client.round_trip()
        return client

    async def test_the_server_shows_its_node_and_stream(self) -> None:
        """Node, stream, readiness and certificates are shown, without errors in the console."""
        page = await self.visit(self.tunnel.server)
        await self.assert_shows(page, "h1", "yurttunnel-server")
        await self.assert_shows(page, "#readiness h2", "Ready")
        await self.assert_shows(page, "#sessions", "edge-1", "connected", __version__, "days left")
        await self.assert_shows(page, "#streams", "edge-1", f"127.0.0.1:{self.echo.port}", "open")
        await self.assert_shows(page, "#certificates", "server", "ca", "days left")
        await self.assert_shows(page, "#lost", "No node is lost.")
        await self.assert_shows(page, "#failures", "None: every request has been answered")
        await self.assert_shows(page, "#streams", "127.0.0.1:", "forward")
        await self.assert_shows(page, "#entries", "--forward", "--secure-port", "edge-1/127.0.0.1")
        await self.assert_shows(page, "#add", "join-token", "yurttunnel agent")
        self.assertEqual(page.console_errors, [])

    async def test_the_agent_shows_its_server_and_destinations(self) -> None:
        """Its server, the stream, and the allowed destinations are shown."""
        page = await self.visit(self.tunnel.agent)
        await self.assert_shows(page, "h1", "yurttunnel-agent")
        await self.assert_shows(page, "#sessions", f"127.0.0.1:{self.tunnel.server.agent_port}")
        await self.assert_shows(page, "#streams", f"127.0.0.1:{self.echo.port}")
        await self.assert_shows(page, "#destinations", "127.0.0.1, every port: the node's own")
        self.assertEqual(page.console_errors, [])

    async def test_it_is_live(self) -> None:
        """A new stream, and the loss of the node, appear without a reload."""
        page = await self.visit(self.tunnel.server)
        await page.evaluate("window.sameDocument = true")
        await self.assert_shows(page, "#streams h2", "1")
        await self.open_stream()

        async def two() -> bool:
            return "2" in await page.text("#streams h2")

        await self.eventually(two, "the page shows the second stream", SEEN)
        await self.tunnel.agent.stop()

        async def lost() -> bool:
            return "edge-1" in await page.text("#lost")

        await self.eventually(lost, "the page shows that the node is lost", SEEN)
        await self.assert_shows(page, "#sessions", "No node is connected.")
        self.assertTrue(await page.evaluate("window.sameDocument"))
        self.assertEqual(page.console_errors, [])

    async def test_a_bar_under_the_pointer(self) -> None:
        """The figures of a chart are shown while the pointer is over it."""
        page = await self.visit(self.tunnel.server)
        moved = "new PointerEvent('pointermove', {bubbles: true, clientX: box.right - 1})"
        chart = "document.querySelector('#sessions .spark')"
        await page.evaluate(
            f"var box = {chart}.getBoundingClientRect(); {chart}.dispatchEvent({moved})"
        )
        self.assertRegex(await page.text("#hint"), r"^about [\d.]+ [KM]?i?B/s, 5 s ago$")
        await page.evaluate(f"document.body.dispatchEvent({moved})")
        self.assertTrue(await page.evaluate("document.getElementById('hint').hidden"))
        self.assertEqual(page.console_errors, [])

    async def test_text_of_a_bar(self) -> None:
        """Figures are rounded to a few digits, and have no exponent."""
        page = await self.visit(self.tunnel.server)
        for limit, unit, written in (
            ("0.15", "s", "150 ms"),
            ("0.0997", "s", "100 ms"),
            ("0.9999", "s", "1000 ms"),
            ("1.3", "s", "1.3 s"),
            ("99.7", "B/s", "100 B/s"),
            ("999.7", "B/s", "1000 B/s"),
            ("1500000", "B/s", "1.4 MiB/s"),
            ("0.2", "/s", "0.2/s"),
        ):
            shown = await page.evaluate(
                f"""(function () {{
                    var chart = document.querySelector("#sessions .spark");
                    chart.innerHTML = '<path d="m59.5 24v-24"/>';
                    chart.setAttribute("data-most", "{limit}");
                    chart.setAttribute("data-unit", "{unit}");
                    var right = chart.getBoundingClientRect().right - 1;
                    chart.dispatchEvent(
                        new PointerEvent("pointermove", {{bubbles: true, clientX: right}})
                    );
                    return document.getElementById("hint").textContent;
                }})()"""
            )
            self.assertEqual(f"about {written}, 5 s ago", shown)

    async def test_by_keyboard(self) -> None:
        """Tables can be sorted by their column heads, and stay sorted on the live page."""
        await self.open_stream()
        page = await self.visit(self.tunnel.server)
        age = "document.querySelector('#streams .sort[id$=\"-5\"]')"

        async def two() -> bool:
            return bool(await page.evaluate(f"{age} !== null"))

        await self.eventually(two, "the table of two streams can be sorted", SEEN)
        for order in ("descending", "ascending"):
            await page.evaluate(f"{age}.focus()")
            await page.press("Enter")
            await page.evaluate("window.before = document.querySelector('#streams tbody')")
            shown = await page.evaluate(f"{age}.parentElement.getAttribute('aria-sort')")
            self.assertEqual(order, shown)

            async def replaced() -> bool:
                return bool(
                    await page.evaluate("document.querySelector('#streams tbody') !== before")
                )

            await self.eventually(replaced, "the page is refreshed", SEEN)
            shown = await page.evaluate(f"{age}.parentElement.getAttribute('aria-sort')")
            self.assertEqual(order, shown)
            self.assertTrue(await page.evaluate(f"document.activeElement === {age}"))

    async def test_all_elements_by_tab_key(self) -> None:
        """All clickable elements are reached with the Tab key, in order, with a visible focus."""
        await self.open_stream()
        page = await self.visit(self.tunnel.server)

        async def two() -> bool:
            return bool(await page.evaluate("document.querySelector('#streams .sort') !== null"))

        await self.eventually(two, "the table of two streams can be sorted", SEEN)
        # Nothing is replaced meanwhile.
        await page.evaluate("document.getElementById('pause').click()")
        await page.evaluate(
            f"window.all = Array.from(document.querySelectorAll({CLICKABLE!r}))"
            ".filter(each => each.checkVisibility())"
        )
        count = await page.evaluate("all.length")
        self.assertGreater(count, 10)
        reached = []
        for _ in range(count):
            await page.press("Tab")
            style = "getComputedStyle(document.activeElement)"
            reached.append(await page.evaluate("all.indexOf(document.activeElement)"))
            self.assertEqual("solid", await page.evaluate(f"{style}.outlineStyle"))
        self.assertEqual(list(range(count)), reached)
        for kind in (".sort", "#pause", "input[name=q]", "a[href*='node=']"):
            found = await page.evaluate(f"all.some(each => each.matches({kind!r}))")
            self.assertTrue(found, kind)

    async def test_accessible_names(self) -> None:
        """All controls and contents have accessible names."""
        for query, expected in (
            (
                "",
                {
                    ("heading", "Failed requests"),
                    ("table", "Sessions with nodes"),
                    ("table", "Listeners and their targets"),
                    ("searchbox", "Filter"),
                    ("button", "Pause"),
                    ("link", "edge-1"),
                },
            ),
            (
                "?node=edge-1",
                {
                    ("heading", "edge-1"),
                    ("heading", "Disconnections"),
                    ("table", "Properties of the node"),
                    ("table", "Sessions with nodes"),
                    ("link", "All nodes"),
                },
            ),
        ):
            page = await self.visit(self.tunnel.server, query)
            nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
            told = [
                (node["role"]["value"], node.get("name", {}).get("value", ""))
                for node in nodes
                if not node["ignored"]
            ]
            self.assertEqual([], [role for role, name in told if role in NAMED and not name])
            self.assertLessEqual(expected, set(told))

    async def test_unreachable_process(self) -> None:
        """After the end of the process the page shows the age of its content."""
        page = await self.visit(self.tunnel.agent)
        await self.assert_shows(page, "#live", "Live")
        await self.tunnel.agent.stop()

        async def is_unreachable_shown() -> bool:
            return "No answer since" in await page.text("#live")

        await self.eventually(is_unreachable_shown, "the page says that nobody answers", SEEN)
        await self.assert_shows(page, "h1", "yurttunnel-agent")

    async def test_pause(self) -> None:
        """Refreshing can be paused and resumed."""
        page = await self.visit(self.tunnel.server)
        await page.evaluate("document.getElementById('pause').click()")
        await self.assert_shows(page, "#live", "Paused")
        await page.evaluate("document.getElementById('pause').click()")
        await self.assert_shows(page, "#live", "Live")

    async def test_without_scripts(self) -> None:
        """Without JavaScript everything is shown, and refreshed by itself or by a link."""
        page = await self.visit(self.tunnel.server, scripts=False)
        await self.assert_shows(page, "#sessions", "edge-1", "connected")
        await self.assert_shows(page, ".live", "Refresh")
        self.assertEqual(
            "30", await page.evaluate("document.querySelector('meta[http-equiv=refresh]').content")
        )
        self.assertEqual(page.console_errors, [])

    async def test_the_filter(self) -> None:
        """Rows that do not match are hidden; the live page keeps the filter."""
        page = await self.visit(self.tunnel.server, "?q=edge-2")
        await self.assert_shows(page, "#sessions", "Nothing matches the filter.")
        self.assertEqual("edge-2", await page.evaluate("document.getElementById('q').value"))
        await page.visit(f"http://127.0.0.1:{self.tunnel.server.meta_port}/?q=EDGE-1")
        await self.assert_shows(page, "#sessions", "edge-1")

    async def test_it_fits(self) -> None:
        """On no screen size is anything wider than the screen, also with wide letters."""
        server = self.tunnel.server
        for program, query in ((server, ""), (server, "?node=edge-1"), (self.tunnel.agent, "")):
            page = await self.visit(program, query)
            for font in ("sans-serif", "monospace"):
                set_font = f"document.documentElement.style.setProperty('--text', '{font}')"
                await page.evaluate(set_font)
                for width in WIDTHS:
                    await page.resize(width, 900)
                    wide = await page.evaluate("document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width, font)
            self.assertEqual(page.console_errors, [])

    async def test_compact(self) -> None:
        """Below 1,100 pixels the rows of tables are lower than above."""
        page = await self.visit(self.tunnel.server)
        # The content must not change between two measurements.
        await page.evaluate("document.getElementById('pause').click()")
        rows = "Array.from(document.querySelectorAll('tbody tr'), row => row.offsetHeight)"
        await page.resize(1101, 900)
        roomy = await page.evaluate(rows)
        await page.resize(1099, 900)
        compact = await page.evaluate(rows)
        self.assertLess(4, len(compact))
        for low, high in zip(compact, roomy, strict=True):
            self.assertLess(low, high)
        self.assertEqual(page.console_errors, [])

    async def test_day_and_night(self) -> None:
        """It is light or dark as the browser prefers, on a phone and on a desktop."""
        colours = set()
        for name, width, dark in SHAPES:
            for kind, program, query in (
                ("server", self.tunnel.server, ""),
                ("node", self.tunnel.server, "?node=edge-1"),
                ("agent", self.tunnel.agent, ""),
            ):
                page = await self.visit(program, query, width=width, dark=dark)
                paper = await page.evaluate("getComputedStyle(document.body).backgroundColor")
                colours.add((dark, paper))
                self.assertEqual(page.console_errors, [])
                if PICTURES:
                    await page.screenshot(f"{PICTURES}/{kind}-{name}.png")
        self.assertEqual(2, len(colours), colours)

    async def test_no_external_requests(self) -> None:
        """The browser sends requests to this process only."""
        page = await self.visit(self.tunnel.server)
        origin = f"http://127.0.0.1:{self.tunnel.server.meta_port}/"
        for url in page.requested:
            self.assertTrue(url.startswith((origin, "data:")), url)


class FailedRequestTests(BrowserTestCase):
    """Failed requests on the pages."""

    async def test_a_request_that_failed(self) -> None:
        """It is at the top, with its reason, and on the page of its node."""
        tunnel = await self.start_tunnel(forwards=(free_ports.take(),))
        await self.assert_disconnects(tunnel.forward_ports[0])
        page = await self.visit(tunnel.server)

        async def told() -> bool:
            return "refused" in await page.text("#failures")

        await self.eventually(told, "the page shows the request that failed", SEEN)
        await self.assert_shows(page, "#failures", "edge-1", "forward", "127.0.0.1", "reset")
        # A short name is not broken at its hyphen, even beside a long message.
        lines = await page.evaluate("""(row => {
          row.querySelector('.text').textContent = 'a long message '.repeat(20);
          const range = document.createRange();
          range.selectNodeContents(row.querySelector('td[data-label=Node]'));
          return range.getClientRects().length;
        })(document.querySelector('#failures tbody tr'))""")
        self.assertEqual(1, lines)
        await page.visit(await page.evaluate("document.querySelector('#sessions a').href"))
        await self.assert_shows(page, "main", "Identifiers")
        await self.assert_shows(page, "#node", "connected", "host=edge-1", __version__)
        await self.assert_shows(page, "#failures", "refused", "forward")
        await self.assert_shows(page, "#disconnections", "None is recorded.")
        self.assertEqual(page.console_errors, [])


class EnrolmentOnly(FaultProxy):
    """Accepts one connection, by which a node enrols, and closes all later ones."""

    def _build(self, address):
        accepted = super()._build(address)
        return accepted if self.accepted == 1 else None


class HistoryTests(CommandCase, BrowserTestCase):
    """The history on the pages: requests, and nodes that disconnected or never connected."""

    async def tiles(self, page: Page) -> dict[str, list[str]]:
        """Return the content of each tile by its name."""
        texts = "Array.from(tile.querySelectorAll('dd'), each => each.innerText)"
        return await page.evaluate(
            "Object.fromEntries(Array.from(document.querySelectorAll('#overview .tiles > div'),"
            f" tile => [tile.querySelector('dt').innerText, {texts}]))"
        )

    async def test_rate_and_duration_of_requests(self) -> None:
        """Tiles have the rate with its chart, the median, and the 95th percentile."""

        async def answer_slowly(request: Request) -> None:
            await deferLater(reactor, SLOW)
            request.answer()

        tunnel, frontends = await self.start_with_frontends(answer_slowly)
        page = await self.visit(tunnel.server)
        tiles = await self.tiles(page)
        self.assertEqual(["0/s"], [each.strip() for each in tiles["requests"] if each.strip()])
        self.assertEqual((["none"], ["none"]), (tiles["median request"], tiles["median dial"]))

        took: list[float] = []

        async def counted() -> bool:
            for door in frontends:
                began = reactor.seconds()
                await door.get("/logs")
                took.append(reactor.seconds() - began)
            tiles = await self.tiles(page)
            return tiles["requests"][0] != "0/s" and tiles["median request"] != ["none"]

        await self.eventually(counted, "the page shows the requests", SEEN)
        tiles = await self.tiles(page)
        self.assertRegex(tiles["requests"][0], r"^[\d.]+/s$")
        bars = "document.querySelector('#overview .tiles .spark path').getAttribute('d')"
        self.assertRegex(await page.evaluate(bars), r"v-\d")
        median, slow = tiles["median request"]
        self.assertRegex(median, f"^{DURATION}$")
        self.assertRegex(slow, f"^95 % within {DURATION}$")
        # Evenly within the bucket of the histogram that they are in.
        last = REQUEST_SECONDS_BOUNDS[bisect_left(REQUEST_SECONDS_BOUNDS, max(took))]
        figures = [0.25, shown_seconds(median), shown_seconds(slow), last]
        self.assertEqual(sorted(figures), figures)
        self.assertRegex(tiles["median dial"][0], r"^[\d.]+ ms$")
        self.assertEqual(page.console_errors, [])

    async def start_proxied(self) -> tuple[Tunnel, FaultProxy]:
        """Start a tunnel, with a proxy between agent and server."""
        proxies: list[FaultProxy] = []

        def proxied(port: int) -> int:
            proxies.append(self.fault_proxy(port))
            return proxies[0].port

        tunnel = await self.start_tunnel(proxied=proxied)
        return tunnel, proxies[0]

    async def test_state_after_a_restart(self) -> None:
        """Lost nodes with the reasons, and absent nodes: on the page, and by the command."""
        tunnel, proxy = await self.start_proxied()
        server = tunnel.server
        page = await self.visit(server, "?node=edge-1")

        async def charted() -> bool:
            bars = "document.querySelector('#round-trip .spark path')"
            return bool(await page.evaluate(f"{bars} && /v-/.test({bars}.getAttribute('d'))"))

        await self.eventually(charted, "the round trip has a chart", SEEN)
        await self.assert_shows(page, "#round-trip", "Round trip", "ms", "last 5 minutes")
        label = "document.querySelector('#round-trip .spark').getAttribute('aria-label')"
        self.assertRegex(await page.evaluate(label), r"^round trip, now [\d.]+ ms, at most ")

        # A reset connection, after which the session continues, and then the session's end.
        self.assertEqual(1, proxy.for_all("reset"))

        async def noted() -> bool:
            return "Why" in await page.text("#disconnections")

        await self.eventually(noted, "the page shows the disconnection", SEEN)
        back = "reconnected, its session is resumed"
        await self.eventually(lambda: back in server.log, "the agent is back")
        await tunnel.agent.stop()
        first = EnrolmentOnly(reactor, server.agent_port)
        first.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(first.stop()))
        absent = tunnel.another_agent(node="edge-2", state="B", server_port=first.port)
        absent.start()

        async def enrolled() -> bool:
            return "edge-2" in await self.done("nodes", "--state-dir", server.state)

        await self.eventually(enrolled, "edge-2 has enrolled", SEEN, 0.2)
        await absent.stop()

        before = await self.assert_nodes_shown(server)
        await server.stop()
        server.start()
        await server.ready()
        self.assertEqual(before, await self.assert_nodes_shown(server))

    async def assert_nodes_shown(self, server: Program) -> list[str]:
        """Check both nodes on the page and in the command: disconnections, and states."""
        page = await self.visit(server)
        await self.assert_shows(page, "#lost h2", "Lost nodes 2")
        rows = "Array.from(document.querySelectorAll('#{} tbody tr'), row => row.innerText)"
        lost, absent = await page.evaluate(rows.format("lost"))
        self.assertRegex(lost, r"^edge-1\t.+ ago\t\S+")
        self.assertRegex(absent, r"^edge-2\tnever\tenrolled on .+, but its agent has not connected")
        tiles = await self.tiles(page)
        self.assertEqual((["0"], ["2"]), (tiles["nodes connected"], tiles["nodes lost"]))
        table = await self.done("nodes", "--state-dir", server.state)
        self.assertRegex(table, r"(?m)^edge-1 +lost .* 127\.0\.0\.1:\d+ ")
        self.assertRegex(table, r"(?m)^edge-2 +absent +- .*enrolled on .+, but its agent has not")

        await page.visit(f"http://127.0.0.1:{server.meta_port}/?node=edge-2")
        await self.assert_shows(page, "#node", "absent", "enrolled on")
        await page.visit(f"http://127.0.0.1:{server.meta_port}/?node=edge-1")
        await self.assert_shows(page, "#node", "lost", "127.0.0.1", __version__)
        told = await page.evaluate(rows.format("disconnections"))
        reasons = [row.split("\t")[0] for row in told]
        self.assertEqual(2, len(reasons))
        self.assertIn(reasons[0], lost)
        self.assertEqual(page.console_errors, [])
        return [*reasons, *(line.split()[1] for line in table.splitlines())]


class KubeletRequestTests(BrowserTestCase):
    """Connections to kubelets on the page, which several callers share."""

    async def test_requests_to_kubelets(self) -> None:
        """The caller of a connection is shown while it uses it; then it is shown as idle,
        separately."""
        waiting: list[Deferred[None]] = []

        async def answer_later(request: Request) -> None:
            waiting.append(Deferred())
            await waiting[-1]
            request.answer()

        tunnel, frontends = await self.start_with_frontends(answer_later)
        page = await self.visit(tunnel.server)

        async def told(section: str, asker: str) -> bool:
            rows = f"document.querySelectorAll('#{section} tbody tr')"
            texts = await page.evaluate(f"Array.from({rows}, row => row.innerText)")
            return all(
                any(f":{door.kubelet.port}\t" in text and asker in text for text in texts)
                for door in frontends
            )

        clients = [await door.client() for door in frontends]
        answers = [client.ask("/logs") for client in clients]
        await self.eventually(lambda: len(waiting) == 2, "both requests have arrived", SEEN)
        await self.eventually(
            lambda: told("streams", "127.0.0.1\nkubelets"), "who asks is shown", SEEN
        )
        for each in waiting:
            each.callback(None)
        for answer in answers:
            await answer.whole()
        await self.eventually(
            lambda: told("idle", "kubelets"), "idle connections have a table of their own", SEEN
        )
        self.assertEqual(page.console_errors, [])
