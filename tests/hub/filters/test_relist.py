"""Making clients list again."""

from __future__ import annotations

import json

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.http.support import Server, request, responses, settle
from tests.hub.filters.fakes import FakeFilters
from yurttunnel.hub.filters.relist import end_when_changed
from yurttunnel.hub.request.accept import forms_of
from yurttunnel.hub.request.callers import caller_of
from yurttunnel.hub.request.parsing import parse_request
from yurttunnel.hub.request.requests import HubCall

TARGET = b"/api/v1/services?watch=true&resourceVersion=7"


class RelistTests(SynchronousTestCase):
    """A watch while filters change."""

    def setUp(self):
        """Create a server of watches."""
        self.server = Server()
        self.filters = FakeFilters()
        self.changed = True
        self.begun = True
        self.fields = ()
        self.server.handler.answer = self.respond

    def respond(self, exchange):
        """Begin the response to a watch, or leave it pending."""
        head = exchange.head
        call = HubCall(exchange, parse_request(head), caller_of(head, True), forms_of(head))
        end_when_changed(self.filters, call, self.changed)
        if self.begun:
            exchange.send_head(200, [(b"Content-Type", b"application/json")])
            exchange.write(b'{"type":"ADDED","object":{}}\n')

    def watch(self):
        """Send a request for a watch; return the server's connection."""
        connection = self.server.connect()
        connection.receive(request(TARGET, b"User-Agent: kube-proxy/v1.34", *self.fields))
        settle(self.server.clock, connection)
        return connection

    def change(self, connection):
        """Change the filters."""
        [end] = self.filters.ends
        end()
        settle(self.server.clock, connection)
        self.assertEqual([], self.filters.ends)

    def test_reported(self):
        """The client of a filtered watch gets an ERROR event, and the watch ends normally."""
        connection = self.watch()
        self.change(connection)
        [(status, _, body, _)] = responses(connection.sent, b"GET")
        self.assertEqual(200, status)
        event = json.loads(body.splitlines()[-1])
        self.assertEqual("ERROR", event["type"])
        status_object = event["object"]
        self.assertEqual(
            ("Status", "Failure", 410),
            (status_object["kind"], status_object["status"], status_object["code"]),
        )
        self.assertEqual("Expired", status_object["reason"])

    def test_cut(self):
        """An unfiltered watch is aborted, so that it does not look complete."""
        self.changed = False
        connection = self.watch()
        self.change(connection)
        self.assertTrue(connection.aborted)
        self.assertNotIn(b"ERROR", connection.sent)

    def test_rejected(self):
        """The response of a rejected watch gets no additional event, but is aborted."""
        self.begun = False
        for fields in ((), [(b"Content-Length", b"20")]):
            connection = self.watch()
            exchange = self.server.handler.exchange
            exchange.send_head(403, fields)
            exchange.write(b'{"kind":"Status"')
            with capturedLogs() as events:
                self.change(connection)
            self.assertTrue(connection.aborted)
            self.assertNotIn(b"ERROR", connection.sent)
            self.assertEqual([], events)

    def test_unanswered(self):
        """A watch whose response has not begun gets a Status, whatever form is accepted."""
        self.begun = False
        self.fields = (b"Accept: application/vnd.kubernetes.protobuf, */*",)
        connection = self.watch()
        self.change(connection)
        [(status, _, body, _)] = responses(connection.sent, b"GET", closed=True)
        status_object = json.loads(body)
        self.assertEqual(
            (410, "Status", "Expired"), (status, status_object["kind"], status_object["reason"])
        )

    def test_ended(self):
        """A watch that has ended for any reason is no longer followed."""
        connection = self.watch()
        self.server.handler.exchange.finish()
        self.assertEqual([], self.filters.ends)
        connection = self.watch()
        connection.abortConnection()
        settle(self.server.clock, connection)
        self.assertEqual([], self.filters.ends)
