"""A hub with its client and its API servers in memory; tests play the servers."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionLost
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.cluster.fakes import FakeInformers
from tests.fakes import MemoryConnection
from tests.http.support import Server as HTTPServer
from tests.http.support import request, responses, settle
from tests.hub.cache.memory import MemoryCache
from tests.hub.filters.fakes import FakeFilters
from tests.logged import Logged
from yurttunnel.http.client import ClientConnection
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.server import ServerSettings
from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.watches import TrackedWatches
from yurttunnel.hub.forwarding.cached_watches import CachedWatches
from yurttunnel.hub.forwarding.forwarding import Forwarder
from yurttunnel.hub.forwarding.responses import ResponseHandler
from yurttunnel.hub.forwarding.token_reviews import TokenReviews
from yurttunnel.hub.handler import Hub, ListenerHandler
from yurttunnel.hub.interfaces import IIdentity, IOffline
from yurttunnel.hub.limits import Limits
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.requests import ResourceType
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.upstream.connections import Connections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.kubelet_lease import KubeletLease
from yurttunnel.hub.upstream.node_lease import CheckFailed
from yurttunnel.hub.upstream.servers import Balancer, Server

KUBELET = b"User-Agent: kubelet/v1.34.0 (linux/amd64)"
JSON = b"Accept: application/json"
PODS = "/api/v1/pods"
ONE = "/api/v1/namespaces/default/pods/one"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TOKEN = b"Authorization: Bearer abc"


@implementer(IOffline)
class Offline:
    """Records the calls, and responds with a word, if it ``is_cached`` the requested data."""

    def __init__(self):
        self.calls = []
        self.is_cached = succeed(True)

    def respond_if_cached(self, call):
        """Respond, if the data is cached."""

        def failed(failure):
            failure.trap(ExchangeFailed)
            if call.exchange.head_sent:
                call.exchange.abort()
            return False

        return self.is_cached.addCallback(
            lambda is_cached: is_cached and not self.respond(call)
        ).addErrback(failed)

    def respond(self, call):
        """Respond."""
        call.exchange.respond(200, [(b"Content-Type", b"text/plain")], b"from the cache")
        self.calls.append(call)


class Contexts:
    """Contexts of an identity, without TLS."""

    def __init__(self):
        self.on_rotated = []
        self.generation = object()

    def rotate(self):
        """Rotate the contexts."""
        self.generation = object()
        for callback in self.on_rotated:
            callback()


@implementer(IIdentity)
class Identity:
    """A node with a certificate."""

    def __init__(self):
        self.node = Contexts()
        self.anonymous = Contexts()
        self.is_accepted = []

    def problem(self):
        """Return that there is none."""

    def note_acceptance(self, is_accepted):
        """Record the report."""
        self.is_accepted.append(is_accepted)


class PlayedConnections(Connections):
    """Connections to servers that the test plays; ``played`` are the servers' ends."""

    def __init__(self, clock, identity):
        super().__init__(clock, identity)
        self.clock = clock
        self.played = []
        self.keys = []
        self.refuses = {}
        self.hangs = set()
        self.closes = set()

    def _connect(self, key, caller):
        self.keys.append((key.server.host, key.as_node))
        if key.server in self.hangs:
            return Deferred()
        if key.server in self.refuses:
            attempt = Deferred()
            attempt.errback(self.refuses[key.server])
            return attempt
        connection = ClientConnection(self.clock)
        end = MemoryConnection(self.clock).open(connection)
        end.server = key.server
        if key.server in self.closes:
            end.break_off(ConnectionLost())
        self.played.append(end)
        return succeed(connection)


class World(SynchronousTestCase):
    """A client connection, the hub and its servers."""

    servers = ("a", "b")
    local = True
    limits = (250, 250)
    check_seconds = 2

    def setUp(self):
        """Start with all servers healthy."""
        self.server = HTTPServer(ServerSettings(body_timeout=60, min_body_bytes=1))
        self.clock = self.server.clock
        self.api_servers = [Server(name, 443) for name in self.servers]
        self.ill = set()
        self.silent = set()
        self.checked = []
        self.connections = PlayedConnections(self.clock, Identity())
        self.health = Health(
            self.clock,
            self.api_servers,
            self.check,
            self.connections.close_server,
            HealthSettings(10, self.check_seconds, 1, 2, 40),
        )
        self.cache = self.make_cache()
        self.users = {}
        self.reviewed = []
        self.filters = self.make_filters()
        self.informers = FakeInformers()
        configuration = HubConfiguration(self.informers, "kube-system", ())
        self.policy = Policy(configuration, lambda is_cached: None)
        self.offline = self.make_offline()
        self.kubelet_lease = KubeletLease(self.clock, "edge-1", 40)
        self.responses = ResponseHandler(self.clock, self.cache, self.policy)
        self.followed = TrackedWatches(self.clock)
        self.followed.startService()
        self.tokens = TokenReviews(self.clock, self.cache, self.user_of)
        self.forwarder = Forwarder(
            self.clock,
            self.connections,
            Balancer(self.api_servers, rotates=False),
            self.health,
            self.responses,
            CachedWatches(
                self.policy, configuration, self.followed, self.cache, self.tokens.has_owner
            ),
            self.tokens,
            self.offline,
        )
        self.limited = Limits(self.clock, *self.limits)
        self.hub = Hub(
            self.clock,
            self.health,
            self.forwarder,
            self.offline,
            self.filters,
            self.kubelet_lease,
            self.limited,
        )
        self.server.handler.answer = lambda exchange: ListenerHandler(
            self.hub, self.local
        ).request_received(exchange)
        self.lines = Logged(self, "yurttunnel.hub")
        self.addCleanup(self.end)
        self.begin()
        self.client = self.server.connect()

    def make_filters(self):
        """Create the filters; none by default."""
        return FakeFilters()

    def make_cache(self):
        """Create the cache; in memory by default."""
        return MemoryCache(self.clock)

    def make_offline(self):
        """Create the offline side; it responds with a word by default."""
        return Offline()

    def begin(self):
        """Start the health checks."""
        self.health.startService()

    def end(self):
        """Stop everything; no timer may be left."""
        self.successResultOf(self.health.stopService())
        self.followed.stopService()
        self.server.factory.close()
        self.connections.close()
        self.forwarder.close()
        self.responses.close()
        self.hub.close()
        self.settle()
        self.assertEqual([], self.clock.getDelayedCalls())

    def user_of(self, token):
        """Return the owner of a token that the test has set, empty for others."""
        self.reviewed.append(token)
        found = self.users.get(token, "")
        return found if isinstance(found, Deferred) else succeed(found)

    async def check(self, server, fresh):
        """Run the health check that the test has set."""
        self.checked.append(server.host)
        if server in self.silent:
            await Deferred()
        if server in self.ill:
            raise CheckFailed("connection refused")

    # -- actions -------------------------------------------------------------------------------

    def settle(self):
        """Run everything that is pending."""
        settle(self.clock, self.client, *self.connections.played)

    def pass_time(self, seconds, step=0.1):
        """Advance the clock."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.settle()

    def send_request(self, target, *fields, method=b"GET", body=b"", host=b"127.0.0.1:10261"):
        """Send a request from the client."""
        if body:
            fields = (*fields, b"Content-Length: %d" % len(body))
        self.client.receive(request(target.encode(), *fields, method=method, body=body, host=host))
        self.settle()

    def received_request(self, number=-1):
        """Return what a server has received, as text."""
        return self.connections.played[number].sent.decode()

    def respond(self, data, number=-1):
        """Send data from a server."""
        self.connections.played[number].receive(data)
        self.settle()

    def respond_json(self, obj, status=b"200 OK", number=-1, *fields):
        """Respond with an object from a server."""
        body = obj if isinstance(obj, bytes) else json.dumps(obj).encode()
        head = [b"HTTP/1.1 " + status, b"Content-Type: application/json", *fields]
        head.append(b"Content-Length: %d" % len(body))
        self.respond(b"\r\n".join([*head, b"", b""]) + body, number)

    def client_responses(self, *methods, closed=False):
        """Return the client's responses as pairs of status and body."""
        self.settle()
        found = responses(self.client.sent, *(methods or ("GET",)), closed=closed)
        return [(status, body) for status, _, body, _ in found]

    # -- the cache -----------------------------------------------------------------------------

    def collection(self, resource="pods", form="json", client="kubelet", group="", view=""):
        """Return a collection."""
        return Collection(client, str(ResourceType(group, "v1", resource)), form, view)

    def cached(self, name, namespace="default", **which):
        """Return the cached version of an object, ``None`` if it is not cached."""
        found = self.successResultOf(self.cache.get(self.collection(**which), namespace, name))
        return None if found is None else found.item.version

    def cached_list(self, **which):
        """Return the names in a collection, ``None`` if it is not cached."""
        listed = self.successResultOf(self.cache.list(Scope(self.collection(**which))))
        if listed is None:
            return None
        names = [item.name for item in self.successResultOf(listed.read())]
        listed.close()
        return names


def pod(name, version="1", node="edge-1", namespace="default", **labels):
    """Create a pod."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    if labels:
        metadata["labels"] = labels
    spec = {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_list(*pods, version="9", token=""):
    """Create a list of pods."""
    items = [{key: pod[key] for key in ("metadata", "spec")} for pod in pods]
    metadata = {"resourceVersion": version}
    if token:
        metadata["continue"] = token
    return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}


def event(type, obj):
    """Create a frame of a watch."""
    return json.dumps({"type": type, "object": obj}).encode() + b"\n"


def chunk(data):
    """Create a chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
