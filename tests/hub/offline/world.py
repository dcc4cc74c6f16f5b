"""A node while offline: the hub's responses over a connection in memory."""

from __future__ import annotations

import json
import math

from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.cluster.fakes import FakeInformers
from tests.http.support import Server, request, responses, settle
from tests.hub.cache.memory import MemoryCache
from tests.hub.filters.fakes import FakeFilters
from tests.hub.request.tokens import subject
from yurttunnel.hub.cache.interfaces import CachedDocument, Collection, Scope
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta
from yurttunnel.hub.offline.placeholder import SECRET_BYTES, PlaceholderTokens
from yurttunnel.hub.offline.service import Offline, OfflineSettings
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.accept import forms_of
from yurttunnel.hub.request.callers import caller_of, read_token
from yurttunnel.hub.request.parsing import parse_request
from yurttunnel.hub.request.requests import HubCall

NOW = 1_750_000_000
TYPES = {
    "pods.v1.core": TypeMeta("v1", "Pod"),
    "configmaps.v1.core": TypeMeta("v1", "ConfigMap"),
    "secrets.v1.core": TypeMeta("v1", "Secret"),
    "nodes.v1.core": TypeMeta("v1", "Node"),
    "services.v1.core": TypeMeta("v1", "Service"),
}


@implementer(IConnectivity)
class Connectivity:
    """Offline, until a test changes it."""

    def __init__(self):
        self.online = False
        self._callbacks = []

    def on_change(self, callback):
        """See ``IConnectivity``."""
        self._callbacks.append(callback)

    def change(self, online):
        """Change the state."""
        self.online = online
        for callback in self._callbacks:
            callback(online)


def item(name, version=1, namespace="n", node="", labels=None, **more):
    """Create an item in JSON."""
    metadata = {"name": name, "resourceVersion": str(version)}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = labels
    metadata["creationTimestamp"] = "2025-06-15T15:01:40Z"
    body = json.dumps({"metadata": metadata, **more}).encode()
    return Item(namespace, name, str(version), labels or {}, node, body)


def collection(client="kubelet", resource="pods.v1.core", form="json", view=""):
    """Return a collection."""
    return Collection(client, resource, form, view)


class OfflineTestCase(SynchronousTestCase):
    """``node`` is edge-1; its hub has a cache in memory.

    Requests arrive on loopback, unless ``local`` is false; ``share_holder`` is the client whose
    share they use. ``body`` is the body if it was read already. With ``if_kept`` requests are
    served only if cached; ``found`` says whether they were.
    """

    local = True
    if_kept = False
    body = None
    share_holder = None
    placeholders = True

    def setUp(self):
        """Start the offline side."""
        self.server = Server()
        self.clock = self.server.clock
        self.clock.advance(NOW)
        self.cache = MemoryCache(self.clock)
        self.connectivity = Connectivity()
        self.filters = FakeFilters()
        self.sent = []
        self.found = []
        self.send = lambda event: succeed(201)
        self.tokens = PlaceholderTokens(b"s" * SECRET_BYTES, self.clock.seconds)
        self.policy = Policy(HubConfiguration(FakeInformers(), "kube-system", ()), lambda _: None)
        self.offline = Offline(
            self.clock,
            self.cache,
            self.policy,
            self.filters,
            self.connectivity,
            self._send,
            OfflineSettings("edge-1", placeholders=self.tokens if self.placeholders else None),
        )
        self.offline.startService()
        self.addCleanup(self.stop)
        self.server.handler.answer = self.respond

    def stop(self):
        """Stop it; nothing may be left."""
        self.successResultOf(self.offline.stopService())
        self.assertEqual(0, self.cache.listed, "a snapshot was not closed")

    def _send(self, event):
        self.sent.append(event)
        return self.send(event)

    def respond(self, exchange):
        """Serve a request like the hub's listeners."""
        head = exchange.head
        request, caller = parse_request(head), caller_of(head, self.local)
        call = HubCall(exchange, request, caller, forms_of(head), self.share_holder, self.body)
        if self.if_kept:
            self.offline.respond_if_cached(call).addCallback(self.found.append)
        else:
            self.offline.respond(call)

    # -- the cache -----------------------------------------------------------------------------

    def store(self, resource, *items, version=5, client="kubelet", form="json", **scope):
        """Cache a complete list."""
        listing = self.cache.begin_list(Scope(collection(client, resource, form), **scope), "")
        listing.add(items)
        listing.complete(ListMeta(TYPES[resource], str(version)))

    def store_one(self, resource, one, client="kubelet", form="json"):
        """Cache an object."""
        self.cache.upsert(collection(client, resource, form), TYPES[resource], one)

    def store_document(self, path, body, content_type="application/json", form="application/json"):
        """Cache a document."""
        self.cache.store_document("", path, form, CachedDocument(content_type, body))

    def accept(self, token, until=math.inf):
        """Store that the API has accepted a token."""
        self.cache.store_token(read_token(token).digest, subject(token), until)

    # -- requests ------------------------------------------------------------------------------

    def open(self, target, *fields, agent=b"kubelet/v1", method=b"GET", body=b""):
        """Send a request; return the connection."""
        connection = self.server.connect()
        fields = [b"User-Agent: " + agent, *fields]
        if body:
            fields.append(b"Content-Length: %d" % len(body))
        connection.receive(request(target.encode(), *fields, method=method, body=body))
        settle(self.clock, connection)
        return connection

    def send_request(self, target, *fields, method=b"GET", **more):
        """Return the status, fields and body of a response."""
        connection = self.open(target, *fields, method=method, **more)
        closed = connection.closed_with is not None
        ((status, headers, body, _),) = responses(connection.sent, method, closed=closed)
        return status, headers, body

    def get_json(self, target, *fields, **more):
        """Return the status and content of a response in JSON."""
        status, headers, body = self.send_request(target, *fields, **more)
        self.assertEqual(b"application/json", headers[b"content-type"])
        return status, json.loads(body)

    def names(self, target, *fields, **more):
        """Return the names in a list; the response must be one."""
        status, content = self.get_json(target, *fields, **more)
        self.assertEqual(200, status, content)
        return [one["metadata"]["name"] for one in content["items"]]

    def assert_status(self, status, reason, text, target, *fields, **more):
        """Assert that the response is a ``Status``; return it."""
        found, content = self.get_json(target, *fields, **more)
        self.assertEqual("Status", content["kind"], content)
        self.assertEqual((status, reason), (found, content["reason"]), content)
        self.assertEqual(status, content["code"])
        self.assertIn(text, content["message"])
        return content
