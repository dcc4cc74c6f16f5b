"""The pages of the meta server."""

from __future__ import annotations

import itertools
import json
import socket
from types import SimpleNamespace
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.diagnose import meta_pages
from yurttunnel.ops.diagnose.meta_pages import Reply, fetch, page_parts

CONNECT = socket.create_connection


class PageTests(SynchronousTestCase):
    """The requested pages, and the findings in the responses."""

    def parts(self, **replies):
        """Return all parts by name; pages without a given response succeed."""
        self.requested = []

        def fetch(host, port, path, seconds=0.0):
            self.requested.append(path)
            return replies.get(path.replace("/", "_"), Reply(200, "ok\n"))

        self.patch(meta_pages, "fetch", fetch)
        return {part.name: part for part in page_parts("yurttunnel-server", "127.0.0.1", 10265)}

    def findings(self, **replies):
        """Return all findings."""
        return [each for part in self.parts(**replies).values() for each in part.findings]

    def test_good(self):
        """A healthy process has no findings, and each page is stored."""
        parts = self.parts(readyz=Reply(200, "listeners: ok\nready\n"))
        self.assertEqual(list(meta_pages.PAGES), self.requested)
        self.assertEqual(len(self.requested), len(parts))
        self.assertEqual("HTTP 200\n\nok\n", parts["pages/debug-stacks"].text)
        self.assertEqual([], [each for part in parts.values() for each in part.findings])

    def test_not_ready(self):
        """The reasons why it is not ready are findings, and so are warnings."""
        body = "listeners: port 10262 is not bound\ncertificate: ok\nnot ready\n"
        self.assertEqual(
            ["yurttunnel-server is not ready: listeners: port 10262 is not bound."],
            self.findings(readyz=Reply(503, body)),
        )
        [finding] = self.findings(readyz=Reply(200, "a: ok\nb: one is away\nready\n"))
        self.assertIn("is ready, with warnings: b: one is away", finding)

    def test_lag(self):
        """A high lag of the reactor is a finding."""
        late = {"lag_seconds": {"latest": 0.0, "worst_of_last_minute": 2.5}}
        [finding] = self.findings(debug_reactor=Reply(200, json.dumps(late)))
        self.assertIn("late by up to 2.5 s", finding)

    def test_agents(self):
        """Sessions without a connection are findings; some are named."""
        agents = [{"node": f"edge-{number}", "connected": number == 0} for number in range(9)]
        [finding] = self.findings(agents=Reply(200, json.dumps(agents)))
        self.assertIn("8 of 9 sessions", finding)
        self.assertIn("edge-1, edge-2, edge-3, edge-4, edge-5 and others", finding)

    def test_nonsense(self):
        """Pages with unexpected content are stored, and cause no error."""
        for body in ("{", "[]", "{}", "null", "7"):
            reply = Reply(200, body)
            self.assertEqual([], self.findings(agents=reply, debug_reactor=reply))

    def test_silent(self):
        """After a page without a response no other is requested; the reason is reported once."""
        parts = self.parts(readyz=Reply(problem="no answer from 127.0.0.1:10265 within 5 s"))
        self.assertEqual(["healthz", "readyz"], self.requested)
        self.assertIn("hangs", parts["pages/readyz"].findings[0])
        self.assertIn("not requested: no answer", parts["pages/metrics"].text)
        self.assertEqual((), parts["pages/metrics"].findings)

    def test_not_running(self):
        """A process that does not run is reported as such."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        reply = fetch("127.0.0.1", port, "healthz")
        self.assertEqual(f"nothing listens on 127.0.0.1:{port}", reply.problem)
        [finding] = self.findings(healthz=reply)
        self.assertIn("does not run here", finding)

    def test_hanging(self):
        """A process that accepts and does not respond delays the diagnosis up to the deadline."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reply = fetch("127.0.0.1", listener.getsockname()[1], "healthz", seconds=0.05)
        self.assertIn("no answer", reply.problem)

    def test_dripping(self):
        """The deadline also applies to an endless response, however fast it sends."""
        now = itertools.count()
        self.patch(meta_pages, "time", SimpleNamespace(monotonic=lambda: next(now)))
        pieces = []
        connection = mock.MagicMock()
        connection.__enter__.return_value.recv = lambda size: pieces.append(b"x") or b"x"
        self.patch(socket, "create_connection", lambda *_, **__: connection)
        reply = fetch("127.0.0.1", 10265, "healthz", seconds=10)
        self.assertEqual("no answer from 127.0.0.1:10265 within 10 s", reply.problem)
        self.assertLess(len(pieces), 11)

    def answered(self, data):
        """Return the parsed response of a program."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", port))
            server, _ = listener.accept()
            self.patch(socket, "create_connection", lambda *_, **__: client)
            server.sendall(data)
            server.close()
            reply = fetch("127.0.0.1", port, "healthz")
        self.patch(socket, "create_connection", CONNECT)
        return reply

    def test_another_program(self):
        """A response that is not HTTP is from another program."""
        for data in (b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b""):
            self.assertIn("another program", self.answered(data).problem, data)

    def test_head(self):
        """The status and the body of a response, which may have no reason phrase."""
        for head in (
            b"HTTP/1.1 503 Service Unavailable\r\nA: b",
            b"HTTP/1.1 503 ",
            b"HTTP/1.1 503",
        ):
            self.assertEqual(Reply(503, "no"), self.answered(head + b"\r\n\r\nno"))
