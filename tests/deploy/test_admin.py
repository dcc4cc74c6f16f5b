"""The page about the command and its socket: all commands, and the socket's responses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlencode

from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.reference import named_in, rows_of
from tests.deploy.rendering import REPOSITORY
from tests.deploy.test_operations import section
from tests.ops.test_meta import Answer, parse
from tests.server.admin_pages import (
    CONNECTED,
    LOST,
    SocketPages,
    ThreadlessReactor,
    agent_pages,
    hub_pages,
    proxy_pages,
    server_pages,
)
from yurttunnel.cli.commands import all_commands
from yurttunnel.ops.debug.pages import Parameters

PAGE = REPOSITORY / "docs" / "admin.md"

OF_EVERY_PROGRAM = {"GET /v1", "GET /v1/process"}

_COMMAND = re.compile(r"yurttunnel ([a-z -]+[a-z])")


def part(heading: str) -> str:
    """Return the section of the page below a second-level heading, or the part before the first."""
    found: str = PAGE.read_text().partition(f"\n## {heading}\n" if heading else "\n")[2]
    return found.partition("\n## ")[0]


class CommandTests(SynchronousTestCase):
    """The table of commands."""

    def test_each_command_has_its_row(self) -> None:
        """The table has all commands, in the order of the help."""
        rows = [_COMMAND.findall(first) for first, *_ in rows_of(part(""))]
        self.assertEqual([[each.name] for each in all_commands().each()], rows)


class SocketTests(SynchronousTestCase):
    """The table of the paths below ``/v1``."""

    def setUp(self) -> None:
        """Read the table and make a server."""
        self.rows = {
            named_in(request)[0]: (named_in(parameters), named_in(fields))
            for request, parameters, fields in rows_of(part("The socket"))
        }
        reactor = ThreadlessReactor()
        reactor.advance(1_800_000_000)
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.server = server_pages(reactor, self.directory)
        self.addCleanup(self.server.reset_debug)

    def ask(self, request: str, parameters: Parameters | None = None) -> Answer:
        """Send a request to the server."""
        target = f"{request}?{urlencode(parameters)}" if parameters else request
        line = f"{target} HTTP/1.0\r\n\r\n"
        return parse(self.server.send(line.encode()))

    def answered(self, request: str, **parameters: str) -> dict[str, object]:
        """Send a request that must succeed, and compare the response with its row."""
        answer = self.ask(request, parameters)
        self.assertEqual(200, answer.status, answer.body)
        answer_json: dict[str, object] = json.loads(answer.body)
        documented, fields = self.rows.pop(request)
        self.assertEqual([*parameters], documented, request)
        if request == "GET /v1/process":
            fields.remove("node")
        self.assertEqual(named(answer_json), fields, request)
        return answer_json

    def test_fields(self) -> None:
        """Each response has the fields of its row, for the parameters in the row."""
        made = self.answered("POST /v1/tokens", lifetime="1h")
        opened = self.answered(
            "POST /v1/forwards", forward="9000=edge-1/127.0.0.1:80", replace="true"
        )
        self.answered("POST /v1/revocations", node="edge-9")
        for request in [each for each in self.rows if each.startswith("GET ")]:
            self.answered(request)
        self.answered("POST /v1/tokens/revoke", id=str(made["id"]))
        self.answered("POST /v1/forwards/remove", listen=str(opened["listen"]))
        self.assertEqual({}, self.rows)

    def test_parameters(self) -> None:
        """No path accepts a parameter that is not in its row."""
        for request, (documented, _) in self.rows.items():
            if documented:
                refused = self.ask(request, {"other": "x"})
                self.assertEqual(400, refused.status)
                expected = f"each once: {', '.join(documented)}\n"
                self.assertIn(expected, refused.body.decode(), request)

    def test_a_server(self) -> None:
        """A server without a cluster serves each request of the table, and no other."""
        self.assertEqual(self.rows.keys(), served(self.server))

    def test_other_programs(self) -> None:
        """Other programs serve only ``/v1/process``, with the name of their node."""
        self.assertLess(OF_EVERY_PROGRAM, self.rows.keys())
        _, fields = self.rows["GET /v1/process"]
        for make in (agent_pages, hub_pages, proxy_pages):
            with self.subTest(make.__name__):
                pages = make(ThreadlessReactor(), self.directory)
                self.addCleanup(pages.reset_debug)
                self.assertEqual(OF_EVERY_PROGRAM, served(pages))
                self.assertEqual(
                    sorted(fields), sorted(named(json.loads(pages.site.ask("/v1/process").body)))
                )

    def test_nodes(self) -> None:
        """The responses for ``yurttunnel nodes`` and ``node`` have the fields of the runbook."""
        text = section("Looking inside").partition("\n### /nodes\n")[2]
        table, _, further = text.partition("\n`/nodes/NAME` has these fields")
        fields = {name for first, *_ in rows_of(table) for name in named_in(first)}
        nodes = json.loads(self.ask("GET /nodes").body)["nodes"]
        self.assertEqual({CONNECTED, LOST}, {each["node"] for each in nodes})
        for each in nodes:
            self.assertEqual(fields, each.keys())
            more = json.loads(self.ask(f"GET /nodes/{each['node']}").body).keys() - fields
            self.assertEqual(4, len(more))
            self.assertLessEqual(more, {*named_in(further)})

    def test_pages_of_the_meta_port_alone(self) -> None:
        """A hub's socket accepts no token and does not list pods."""
        hub = hub_pages(ThreadlessReactor(), self.directory)
        self.addCleanup(hub.reset_debug)
        for target, method, status in (("/v1/token", "POST", 404), ("/pods", "GET", 403)):
            self.assertIn(f"`{target}`", part("The socket"))
            self.assertEqual(status, hub.site.ask(target, method).status, target)


def served(pages: SocketPages) -> set[str]:
    """Return the requests below ``/v1`` that are served, by the allowed methods of each path."""
    listed = json.loads(pages.site.ask("/v1").body)["paths"]
    found = set()
    for path in ("/v1", *listed):
        [allowed] = re.findall(r"only (.+) are allowed", pages.site.ask(path, "PUT").body.decode())
        found |= {f"{method} {path}" for method in allowed.split(", ") if method != "HEAD"}
    return found


def named(answer_json: dict[str, object]) -> list[str]:
    """Return the fields of a response; a list is followed by the fields of its first object."""
    found = []
    for name, value in answer_json.items():
        found.append(name)
        if isinstance(value, list) and isinstance(value[0], dict):
            found += value[0]
    return found
