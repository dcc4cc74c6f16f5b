"""Authorization on the port with TLS in a cluster, with real TLS and HTTP in memory."""

from __future__ import annotations

import json

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Factory
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.fakes import Recorder
from tests.kube.fakes import FakeKubeClient
from tests.pki.support import Issuer, client_context
from tests.server.frontends.kubelet.world import World
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition
from yurttunnel.pki.caller_contexts import HTTP_PROTOCOL, OptionalCallerContexts
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.server.frontends.kubelet.authorization import Authorization
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware
from yurttunnel.server.frontends.kubelet.reviews import METRICS, AuthorizationCounters, Reviews
from yurttunnel.tunnel import tls

ALLOWED = "kube-apiserver-kubelet-client"


class Api:
    """Responds to reviews: ``tokens`` are users by token, ``rules`` are the permissions."""

    def __init__(self, client):
        self.tokens = {}
        self.rules = set()
        self.requests = []
        client.answers["create", "tokenreviews"] = self.review_token
        client.answers["create", "subjectaccessreviews"] = self.review_access

    def review_token(self, body):
        """Respond like the API."""
        self.requests.append("token")
        name = self.tokens.get(body["spec"]["token"])
        if name is None:
            return {"status": {"error": "invalid bearer token"}}
        user = {"username": name, "groups": ["system:authenticated"]}
        return {"status": {"authenticated": True, "user": user}}

    def review_access(self, body):
        """Respond like the API."""
        spec = body["spec"]
        what = spec["resourceAttributes"]
        rule = (spec["user"], what["verb"], what["subresource"], what["name"])
        self.requests.append(rule)
        return {"status": {"allowed": rule in self.rules}}


@implementer(IOpenSSLClientConnectionCreator)
class UnverifiedTLS:
    """The TLS of a caller that does not verify, with or without certificate and server name."""

    def __init__(self, credentials, server_name):
        self._credentials = credentials
        self._server_name = server_name

    def clientConnectionForTLS(self, tlsProtocol):
        """Return the TLS state of a connection."""
        connection = SSL.Connection(client_context(self._credentials, [HTTP_PROTOCOL]), None)
        if self._server_name is not None:
            connection.set_tlsext_host_name(self._server_name.encode())
        return connection


@implementer(IMiddleware)
class Passed:
    """A middleware that counts requests."""

    count = 0

    def wrap(self, handler):
        """See ``IMiddleware``."""

        def counted(request):
            self.count += 1
            handler(request)

        return counted


@implementer(IMiddleware)
class BrokenMiddleware:
    """A middleware with a defect."""

    def wrap(self, handler):
        """See ``IMiddleware``."""
        return lambda request: 1 // 0


class AuthorizedWorld(World):
    """A server in a cluster."""

    api = None

    @property
    def middlewares(self):
        """Create the middleware once there is a clock."""
        self.client = FakeKubeClient(self.clock)
        self.api = Api(self.client)
        self.decided = AuthorizationCounters()
        self.reviews = Reviews(self.clock, self.client, self.decided)
        self.reviews.startService()
        self.addCleanup(lambda: self.successResultOf(self.reviews.stopService()))
        self.serving = OptionalCallerContexts(self.issuer.server("edge-1"))
        self.authorization = Authorization(
            self.clock, self.reviews, CertificateUsers([ALLOWED]), self.registry, self.decided
        )
        self.passed = Passed()
        return [self.authorization, self.passed]

    def secured(self):
        """Return the far end of a connection to the port with TLS."""
        factory = self.interception.secure
        return tls.server_side(self.reactor, self.serving, factory).buildProtocol(None)

    def user(self, name, organization=None):
        """Create a user's certificate, and connect with it."""
        key = new_key()
        certificate = self.issuer.authority.sign_client(key.public_key(), name, organization)
        return self.dial(self.issuer.authority.credentials(key, certificate))

    def dial_anonymously(self, credentials=None):
        """Connect without a certificate, or with one of another authority."""
        return self.connect(credentials)

    def connect(self, credentials, server_name=None):
        """Connect over TLS without verification."""
        caller = Recorder()
        creator = UnverifiedTLS(credentials, server_name)
        near = tls.client_side(self.reactor, creator, Factory.forProtocol(lambda: caller))
        self.link(near.buildProtocol(None), self.secured())
        return caller

    def decisions(self, **expected):
        """Assert the counted decisions, by result and proof."""
        found = {"__".join(labels): count for labels, count in self.decided.decisions.items()}
        self.assertEqual(expected, found)


class CertificateTests(AuthorizedWorld):
    """Callers with a certificate."""

    def test_allowed_name(self):
        """kube-apiserver is admitted by its name, without a review."""
        caller = self.dial()
        self.send_request(caller, Authorization="Basic abc")
        self.answered(caller, 200, "metric 1\n")
        self.assertEqual([], self.api.requests)
        self.decisions(allowed__allowed_name=1)
        # Not used by the server, so it is passed on to the kubelet.
        self.assertEqual([b"Basic abc"], self.kubelet.head.values(b"authorization"))

    def test_nodes(self):
        """A node with the name of an allowed caller is not accepted as that."""
        node = self.issuer.node(ALLOWED, parse_identifiers(f"host={ALLOWED}"))
        caller = self.dial(node)
        self.send_request(caller)
        self.answered(caller, 403, f"'{ALLOWED}' may not get nodes/metrics of node edge-1")
        kubelet = self.user(ALLOWED, "system:nodes")
        self.send_request(kubelet)
        self.answered(kubelet, 403)
        self.decisions(denied__certificate=2)

    def test_user(self):
        """Another caller is admitted if the API allows it."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        caller = self.user("jane")
        self.send_request(caller)
        self.answered(caller, 200)
        self.send_request(caller, "/exec/a/b/c", method="POST")
        self.answered(caller, 403, "'jane' may not create nodes/proxy of node edge-1", "'create'")
        self.decisions(allowed__certificate=1, denied__certificate=1)
        self.assertEqual(1, len(self.connected))
        self.assertTrue(any("'jane' may not" in line for line in self.lines), self.lines)

    def test_either(self):
        """If kubelets accept one of two permissions, either suffices."""
        self.api.rules.update(
            {("jane", "get", "pods", "edge-1"), ("joe", "get", "proxy", "edge-1")}
        )
        for name in ("jane", "joe"):
            caller = self.user(name)
            self.send_request(caller, "/pods")
            self.answered(caller, 200)
        eve = self.user("eve")
        self.send_request(eve, "/pods")
        self.answered(eve, 403, "get nodes/pods of node edge-1 or get nodes/proxy of node edge-1")

    def test_other_ports(self):
        """The permission for the kubelet's metrics does not cover those of other programs."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        caller = self.user("jane")
        self.send_request(caller, Host="edge-1:9100")
        self.answered(caller, 403, "get nodes/proxy of node edge-1")

    def test_certificate_before_token(self):
        """A certificate has priority over a token, which is passed on."""
        self.api.tokens["good"] = "joe"
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        caller = self.user("jane")
        self.send_request(caller, Authorization="Bearer good")
        self.answered(caller, 200)
        self.assertNotIn("token", self.api.requests)
        self.assertEqual([b"Bearer good"], self.kubelet.head.values(b"authorization"))

    def test_foreign(self):
        """A certificate of another authority is rejected in TLS, and that is logged."""
        caller = self.dial_anonymously(Issuer.make(self).caller())
        self.send_request(caller, Authorization="Bearer good")
        self.assertEqual((b"", []), (caller.received, self.api.requests))
        [line] = self.lines
        self.assertIn("is refused: its certificate is not from an authority that is", line)
        self.decisions()

    def test_callers_name_is_logged(self):
        """The log line has the caller's name."""
        self.send_request(self.user("jane"))
        self.assertTrue(any(" by 'jane' from " in line for line in self.lines), self.lines)


class TokenTests(AuthorizedWorld):
    """Callers without a certificate."""

    def setUp(self):
        """Let the API know one token."""
        super().setUp()
        self.api.tokens["good"] = "system:serviceaccount:monitoring:prometheus"
        self.rule = ("system:serviceaccount:monitoring:prometheus", "get", "metrics", "edge-1")

    def test_allowed(self):
        """A valid token with permission is admitted, but not passed on to the kubelet."""
        self.api.rules.add(self.rule)
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good", X_Other="kept")
        self.answered(caller, 200, "metric 1\n")
        head = self.kubelet.head
        self.assertEqual([], head.values(b"authorization"))
        self.assertEqual([b"kept"], head.values(b"x-other"))
        self.assertTrue(any("monitoring:prometheus' from " in line for line in self.lines))
        self.decisions(allowed__token=1)

    def test_remembered(self):
        """Further requests need no review, even if the API is unreachable."""
        self.api.rules.add(self.rule)
        caller = self.dial_anonymously()
        for _ in range(3):
            self.send_request(caller, Authorization="Bearer good")
            self.answered(caller, 200)
            self.client.fail(ApiUnreachable("https://10.96.0.1 does not answer"))
        self.assertEqual(["token", self.rule], self.api.requests)
        self.pass_time(301, step=43)
        self.send_request(self.dial_anonymously(), Authorization="Bearer good")
        self.decisions(allowed__token=3, unavailable__none=1)

    def test_denied(self):
        """For a valid token without permission the response has user and missing permission."""
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good", Accept="application/json, */*")
        self.answered(caller, 403)
        status = json.loads(caller.received.partition(b"\r\n\r\n")[2])
        self.assertEqual(("Forbidden", 403), (status["reason"], status["code"]))
        self.assertIn("prometheus' may not get nodes/metrics of node edge-1", status["message"])
        self.decisions(denied__token=1)
        self.assertEqual([], self.connected)

    def test_unknown_token(self):
        """A token that the API does not know is rejected."""
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer bad", Accept="application/json")
        self.answered(caller, 401)
        self.assertIn(b"\r\nWWW-Authenticate: Bearer\r\n", caller.received)
        status = json.loads(caller.received.partition(b"\r\n\r\n")[2])
        self.assertEqual(("Unauthorized", 401), (status["reason"], status["code"]))
        self.decisions(unauthenticated__none=1)

    def test_nothing(self):
        """Without credentials, or with unsupported ones, the response says what is accepted."""
        caller = self.dial_anonymously()
        self.send_request(caller)
        self.answered(caller, 401, "a client certificate", "or a bearer token")
        self.assertIn(b"\r\nWWW-Authenticate: Bearer\r\n", caller.received)
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Basic abc")
        self.answered(caller, 401, "no bearer token")
        self.assertEqual([], self.api.requests)
        self.decisions(unauthenticated__none=2)

    def test_unreachable(self):
        """While the API does not respond, new callers get an error."""
        self.client.fail(ApiUnreachable("https://10.96.0.1 does not answer"))
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good")
        self.answered(caller, 503, "could not be reviewed", "10.96.0.1 does not answer")
        self.decisions(unavailable__none=1)

    def test_body(self):
        """The part of a body that arrived during the review is not lost."""
        bodies = self.return_bodies()
        self.api.rules.add((self.rule[0], "create", "proxy", "edge-1"))
        self.client.hold()
        caller = self.dial_anonymously()
        sent = b"x" * 70_000
        fields = {"Authorization": "Bearer good", "Content_Length": str(len(sent))}
        self.send_request(caller, "/run/a/b/c", "POST", sent[:30_000], **fields)
        caller.transport.write(sent[30_000:])
        self.settle()
        self.assertEqual([], self.connected)
        self.release()
        self.answered(caller, 201, "x")
        self.assertEqual([sent], bodies)

    def release(self):
        """Return the results of both reviews."""
        self.client.release()
        self.settle()

    def test_leaves(self):
        """Nothing is dialed for a caller that has left, but the result is cached."""
        self.api.rules.add(self.rule)
        self.client.hold()
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good")
        caller.transport.abortConnection()
        self.settle()
        self.release()
        self.assertEqual((0, []), (self.passed.count, self.connected))
        self.client.fail(ApiUnreachable("no"))
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good")
        self.answered(caller, 200)

    def test_shared(self):
        """Concurrent requests with the same token share one review."""
        self.api.rules.add(self.rule)
        self.client.hold()
        callers = [self.dial_anonymously() for _ in range(5)]
        for caller in callers:
            self.send_request(caller, Authorization="Bearer good")
        self.release()
        for caller in callers:
            self.answered(caller, 200)
        self.assertEqual(["token", self.rule], self.api.requests)

    def test_follows(self):
        """A running request continues when the permission has ended."""
        self.api.rules.add((self.rule[0], "get", "proxy", "edge-1"))
        self.kubelet.answer = lambda exchange: None
        caller = self.dial_anonymously()
        self.send_request(caller, "/containerLogs/a/b/c?follow=true", Authorization="Bearer good")
        self.api.rules.clear()
        self.pass_time(301, step=43)
        self.kubelet.exchanges[0].respond(200, [], b"at last")
        self.settle()
        self.answered(caller, 200, "at last")

    def test_unknown_node(self):
        """If the node is unknown, permission for every node is needed."""
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good", Host="edge-9:10250")
        self.answered(caller, 403, "get nodes/metrics of every node")
        self.api.rules.add((*self.rule[:3], ""))
        self.pass_time(31, step=31)
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good", Host="edge-9:10250")
        self.answered(caller, 503, "edge-9")

    def test_node_changes(self):
        """If an address changes to another node during the review, the request is rejected."""
        self.api.rules.add((*self.rule[:2], "stats", "edge-1"))
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good")
        self.answered(caller, 403)
        self.client.hold()
        caller = self.dial_anonymously()
        self.send_request(caller, "/stats/summary", Authorization="Bearer good")
        self.session.node = "edge-2"
        self.release()
        self.answered(caller, 503, "edge-1 has just become another node's")
        self.assertEqual([], self.connected)

    def test_bad_destination(self):
        """A request without a destination is rejected with the correct form."""
        caller = self.dial_anonymously()
        self.send_request(caller, Authorization="Bearer good", Host="edge-1:nonsense")
        self.answered(caller, 400)


class PortTests(AuthorizedWorld):
    """The other port, and miscellaneous tests."""

    def test_insecure(self):
        """Without TLS nobody is authenticated: that port is for this machine."""
        self.serve_kubelet(None)
        caller = self.dial_insecurely()
        self.send_request(caller, Authorization="Bearer for-the-kubelet")
        self.answered(caller, 200)
        self.assertEqual([], self.api.requests)
        self.decisions()
        self.assertEqual([b"Bearer for-the-kubelet"], self.kubelet.head.values(b"authorization"))

    def test_interface(self):
        """The authorization provides ``IMiddleware``."""
        verifyObject(IMiddleware, self.authorization)

    def test_metrics(self):
        """The metrics have decisions, lookups and failures."""
        self.send_request(self.dial())
        self.send_request(self.user("eve"))
        self.client.fail(ApiUnreachable("no"))
        self.send_request(self.user("joe"))
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.decided)
        text = exposition(registry).decode()
        for line in (
            'caller_decisions_total{result="allowed",proof="allowed_name"} 1\n',
            'caller_decisions_total{result="denied",proof="certificate"} 1\n',
            'caller_decisions_total{result="unavailable",proof="certificate"} 1\n',
            'caller_lookups_total{review="access",source="asked"} 2\n',
            'caller_lookups_total{review="token",source="kept"} 0\n',
            'caller_review_failures_total{review="access"} 1\n',
        ):
            self.assertIn(f"yurttunnel_server_{line}", text)


class DefectTests(AuthorizedWorld):
    """Defects."""

    @property
    def middlewares(self):
        """Add a broken middleware after it."""
        return [*super().middlewares, BrokenMiddleware()]

    def test_defect(self):
        """An exception after it is logged and answered, including after a review."""
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        caller = self.user("jane")
        self.send_request(caller)
        self.answered(caller, 500, "internal error")
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
