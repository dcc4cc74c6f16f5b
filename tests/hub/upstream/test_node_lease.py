"""The node's Lease, renewed on API servers that the test plays."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.http.support import settle
from tests.hub.forwarding.world import Identity, PlayedConnections
from tests.logged import Logged
from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.interfaces import ExchangeFailed
from yurttunnel.http.simple_client import fetch
from yurttunnel.hub.cache.interfaces import StoredEvent
from yurttunnel.hub.upstream.calls import ApiCalls
from yurttunnel.hub.upstream.connections import POOL
from yurttunnel.hub.upstream.node_lease import CheckFailed, NodeLease
from yurttunnel.hub.upstream.servers import Balancer, Server

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class PlayedServers(SynchronousTestCase):
    """Two servers, of which the first is healthy."""

    def setUp(self):
        """Start with a live kubelet."""
        self.clock = MemoryReactorClock()
        self.first, self.second = self.servers = [Server(name, 443) for name in "ab"]
        self.first.healthy = True
        self.identity = Identity()
        self.connections = PlayedConnections(self.clock, self.identity)
        self.calls = ApiCalls(self.connections, Balancer(self.servers, rotates=False))
        self.is_alive = True
        self.lease = NodeLease(
            self.clock, self.calls, "edge-1", 10, lambda: self.is_alive, self.identity
        )
        self.lines = Logged(self, "yurttunnel.hub")
        self.addCleanup(self.end)

    def end(self):
        """Close everything; no timer may be left."""
        self.connections.close()
        self.settle()
        self.assertEqual([], self.clock.getDelayedCalls())

    def settle(self):
        """Run everything that is pending."""
        settle(self.clock, *self.connections.played)

    def check(self, server=None, fresh=False):
        """Begin a check."""
        checked = Deferred.fromCoroutine(self.lease.check(server or self.first, fresh))
        self.settle()
        return checked

    def received_request(self, number=-1):
        """Return the first line of the last request to a server, and its body."""
        self.settle()
        played = self.connections.played[number]
        head, _, body = played.sent[getattr(played, "seen", 0) :].partition(b"\r\n\r\n")
        return head.partition(b"\r\n")[0].decode().removesuffix(" HTTP/1.1"), body

    def respond(self, status, body=b"{}", number=-1):
        """Respond from a server."""
        played = self.connections.played[number]
        played.seen = len(played.sent)
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n"
        played.receive(head.encode() + body)
        self.settle()


class RenewalTests(PlayedServers):
    """One check renews, the others read."""

    def renew(self, server=None):
        """Renew the Lease."""
        checked = self.check(server)
        self.respond(200)
        self.successResultOf(checked)

    def test_renewed(self):
        """The node holds it for forty seconds from now."""
        checked = self.check()
        asked, body = self.received_request()
        self.assertEqual(f"PATCH {LEASE}/edge-1", asked)
        spec = json.loads(body)["spec"]
        self.assertEqual(("edge-1", 40), (spec["holderIdentity"], spec["leaseDurationSeconds"]))
        self.assertIn("1970-01-01T00:00:00", spec["renewTime"])
        self.assertIn(b"application/merge-patch+json", self.connections.played[0].sent)
        self.respond(200)
        self.successResultOf(checked)
        self.assertEqual(1, self.lease.renewals)

    def test_others_read(self):
        """A Lease that was just renewed is read, and renewed again after the interval."""
        self.second.healthy = True
        self.renew()
        checked = self.check(self.second)
        self.assertEqual((f"GET {LEASE}/edge-1", b""), self.received_request())
        self.respond(200)
        self.successResultOf(checked)
        self.clock.advance(9.5)
        self.check()
        self.assertTrue(self.received_request(0)[0].startswith("PATCH"))
        self.respond(200, number=0)

    def test_side_by_side(self):
        """While one check renews, another reads; if that fails, the next one renews."""
        self.second.healthy = True
        first = self.check()
        second = self.check(self.second)
        self.assertTrue(self.received_request()[0].startswith("GET"))
        self.respond(200)
        self.successResultOf(second)
        self.respond(500, number=0)
        self.failureResultOf(first, CheckFailed)
        self.check(self.second)
        self.assertTrue(self.received_request()[0].startswith("PATCH"))
        self.respond(200)

    def test_an_ill_server(self):
        """An unhealthy server tries to renew, and does not prevent others from renewing."""
        ill = self.check(self.second)
        self.assertTrue(self.received_request()[0].startswith("PATCH"))
        self.renew()
        self.assertEqual(1, self.lease.renewals)
        ill.cancel()
        self.failureResultOf(ill)

    def test_an_ill_server_beside_one_that_renews(self):
        """The result of its attempt does not change which server renews."""
        first, ill = self.check(), self.check(self.second)
        self.respond(409)
        self.successResultOf(ill)
        self.second.healthy = True
        second = self.check(self.second)
        self.assertTrue(self.received_request()[0].startswith("GET"))
        self.respond(200)
        self.successResultOf(second)
        self.respond(200, number=0)
        self.successResultOf(first)

    def test_a_slow_answer(self):
        """The interval begins with the request, whose time is the start of the Lease."""
        checked = self.check()
        self.clock.advance(1.5)
        self.respond(200)
        self.successResultOf(checked)
        self.clock.advance(8)
        self.check()
        self.assertTrue(self.received_request()[0].startswith("PATCH"))
        self.respond(200)

    def test_created(self):
        """A missing Lease is created, owned by the Node."""
        checked = self.check()
        self.respond(404)
        self.assertEqual("GET /api/v1/nodes/edge-1", self.received_request()[0])
        self.respond(200, json.dumps({"metadata": {"uid": "u-1"}}).encode())
        asked, body = self.received_request()
        self.assertEqual(f"POST {LEASE}", asked)
        (owner,) = json.loads(body)["metadata"]["ownerReferences"]
        self.assertEqual(("Node", "edge-1", "u-1"), (owner["kind"], owner["name"], owner["uid"]))
        self.respond(201)
        self.successResultOf(checked)
        self.assertEqual(1, self.lease.renewals)

    def test_created_by_another_check(self):
        """A Lease that was created meanwhile, through another server, is renewed."""
        checked = self.check()
        self.respond(404)
        self.respond(200, b'{"metadata": {"uid": "u"}}')
        self.respond(409)
        self.assertEqual(f"PATCH {LEASE}/edge-1", self.received_request()[0])
        self.respond(200)
        self.successResultOf(checked)
        self.assertEqual(1, self.lease.renewals)

    def test_node_that_has_not_joined(self):
        """A node that does not exist yet has no Lease, and the server is healthy."""
        checked = self.check()
        self.respond(404)
        self.respond(404)
        self.successResultOf(checked)
        self.assertEqual(0, self.lease.renewals)

    def test_odd_node(self):
        """A Node without a valid UID is treated like a missing one."""
        for body in (b"[]", b"{", b'{"metadata": {"uid": 1}}'):
            checked = self.check()
            self.respond(404)
            self.respond(200, body)
            self.successResultOf(checked)

    def test_silent_kubelet(self):
        """While the kubelet is silent the Lease is not renewed, but the server is healthy."""
        self.is_alive = False
        checked = self.check()
        self.assertTrue(self.received_request()[0].startswith("GET"))
        self.respond(200)
        self.successResultOf(checked)
        self.assertIn("NotReady", self.lines[-1])
        self.is_alive = True
        self.renew()
        self.assertIn("kubelet is back", self.lines[-1])
        self.assertEqual(2, len(self.lines))


class SignOfLifeTests(PlayedServers):
    """The responses of healthy servers."""

    def test_rejections(self):
        """A server that rejects the renewal is healthy; the consequence is logged once."""
        for status in (403, 403, 409, 422, 429):
            checked = self.check()
            self.respond(status)
            self.successResultOf(checked)
        forbidden, refused = self.lines
        self.assertIn("leases", forbidden)
        self.assertIn("the API responds with 409", refused)

    def test_failures(self):
        """A server that fails, or rejects the node's certificate, is unhealthy."""
        for status, word in ((500, "500"), (503, "503"), (401, "/v1/token")):
            checked = self.check()
            self.respond(status)
            self.assertIn(word, str(self.failureResultOf(checked, CheckFailed).value))

    def test_acceptance(self):
        """Whether all servers accept the certificate is reported; a failing one does not count."""
        for server, status, is_accepted in (
            (self.first, 401, False),
            (self.second, 200, False),
            (self.first, 503, False),
            (self.first, 500, False),
            (self.first, 403, True),
            (self.second, 500, True),
        ):
            checked = self.check(server, fresh=True)
            self.respond(status)
            checked.addErrback(lambda failure: failure.trap(CheckFailed))
            self.assertIs(is_accepted, self.identity.is_accepted[-1], (server, status))

    def note_refusal(self):
        """Make the first server reject the certificate."""
        checked = self.check(fresh=True)
        self.respond(401)
        self.failureResultOf(checked, CheckFailed)
        self.assertFalse(self.identity.is_accepted[-1])

    def accept(self):
        """Make the second server accept it; return whether all do, as reported."""
        checked = self.check(self.second, fresh=True)
        self.respond(200)
        self.successResultOf(checked)
        return self.identity.is_accepted[-1]

    def test_acceptance_of_the_next(self):
        """A rejection is of one certificate: the next one is judged by its own responses."""
        self.note_refusal()
        self.assertFalse(self.accept())
        late = self.check(fresh=True)
        self.identity.node.rotate()
        self.assertTrue(self.accept())
        self.respond(401, number=-2)
        self.failureResultOf(late, CheckFailed)
        self.assertTrue(self.identity.is_accepted[-1])
        self.note_refusal()

    def test_acceptance_without_the_one_that_rejected(self):
        """A server that has rejected it and then does not respond does not count, until it does."""
        self.note_refusal()
        self.check().addErrback(lambda _: None).cancel()
        self.assertTrue(self.accept())
        self.note_refusal()
        checked = self.check()
        self.connections.played[-1].break_off(ConnectionLost())
        self.settle()
        self.failureResultOf(checked, CheckFailed)
        self.assertTrue(self.accept())

    def test_rejection_and_an_attempt_that_times_out(self):
        """A response is not replaced by a later attempt of the same check without a response."""
        self.note_refusal()
        self.check(fresh=True).addErrback(lambda _: None).cancel()
        self.assertFalse(self.identity.is_accepted[-1])
        self.assertFalse(self.accept())

    def test_no_connection(self):
        """A server without a connection is unhealthy."""
        self.connections.refuses[self.first] = RequestFailed(502, "https://a:443: refused")
        failure = self.failureResultOf(self.check(), CheckFailed)
        self.assertEqual("https://a:443: refused", str(failure.value))

    def test_return(self):
        """An unhealthy server recovers by renewals, not by reads."""
        self.first.healthy = False
        for _ in range(2):
            checked = self.check()
            self.assertTrue(self.received_request()[0].startswith("PATCH"))
            self.respond(200)
            self.successResultOf(checked)

    def test_connection_that_was_closed(self):
        """An idle connection may have been closed; the next attempt uses a new one."""
        self.check()
        self.respond(200)
        self.connections.played[0].receive_end()
        checked = self.check(fresh=True)
        self.assertEqual(2, len(self.connections.played))
        self.respond(200)
        self.successResultOf(checked)

    def test_many_slow_answers(self):
        """A check waits for no other request: a busy server is not unhealthy."""
        for _ in range(POOL.max_per_key):
            stored = maybeDeferred(self.connections.acquire, self.first, True)
            asked = stored.addCallback(fetch, b"GET", b"/api/v1/pods", [(b"Host", b"a")])
            asked.addErrback(lambda failure: failure.trap(ExchangeFailed))
        checked = self.check()
        self.assertTrue(self.received_request()[0].startswith("PATCH"))
        self.respond(200)
        self.successResultOf(checked)

    def test_cancelled(self):
        """A check that takes too long is cancelled with its connection."""
        checked = self.check()
        checked.cancel()
        self.failureResultOf(checked)
        self.assertTrue(self.connections.played[0].aborted)


class EventTests(PlayedServers):
    """Sending of stored Events."""

    event = StoredEvent(1, "/api/v1/namespaces/x/events", "application/json", b"{1}", "", "")

    def send(self, **other):
        """Begin to send one."""
        sent = self.calls.send_event(self.event._replace(**other))
        self.settle()
        return sent

    def test_sent(self):
        """It is posted as the node, and its status is returned."""
        sent = self.send()
        self.assertEqual(("POST /api/v1/namespaces/x/events", b"{1}"), self.received_request())
        self.respond(201)
        self.assertEqual(201, self.successResultOf(sent))
        self.assertEqual([("a", True)], self.connections.keys)

    def test_token(self):
        """An Event of a pod is posted with its token."""
        self.send(token="abc")
        self.assertIn(b"Authorization: Bearer abc\r\n", self.connections.played[0].sent)
        self.assertEqual([("a", False)], self.connections.keys)
        self.respond(201)

    def reviewed(self, status, **other):
        """Reject the token, then respond to the review; return the review.

        The first connection is for tokens, the second one is the node's.
        """
        sent = self.send(token="abc", owner="system:serviceaccount:x:web", **other)
        self.respond(401, number=0)
        line, body = self.received_request()
        self.assertEqual("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", line)
        self.respond(201, json.dumps({"status": status}).encode())
        return sent, json.loads(body)["spec"]

    def test_token_that_has_expired(self):
        """The node sends an Event that the token's owner may still create, as the API says."""
        for path, group in (
            ("/api/v1/namespaces/x/events", ""),
            ("/apis/events.k8s.io/v1/namespaces/x/events", "events.k8s.io"),
        ):
            sent, spec = self.reviewed({"allowed": True}, path=path)
            self.assertEqual(
                {"verb": "create", "group": group, "resource": "events", "namespace": "x"},
                spec["resourceAttributes"],
            )
            self.assertEqual("system:serviceaccount:x:web", spec["user"])
            self.assertIn("system:serviceaccounts:x", spec["groups"])
            self.assertEqual((f"POST {path}", b"{1}"), self.received_request())
            self.assertNotIn(b"abc", self.connections.played[-1].sent)
            self.respond(201)
            self.assertEqual(201, self.successResultOf(sent))
        self.assertEqual([("a", False), ("a", True)], self.connections.keys)

    def test_owner_who_may_not(self):
        """If the owner may not create it, or the API does not say, the node does not send it."""
        for status in ({"allowed": False}, {"allowed": "yes"}, {}, []):
            self.assertEqual(401, self.successResultOf(self.reviewed(status)[0]), status)
        sent = self.send(token="abc", owner="somebody")
        self.connections.refuses[self.first] = RequestFailed(502, "refused")
        self.connections.played[1].break_off(ConnectionLost())
        self.respond(401, number=0)
        self.assertIsNone(self.successResultOf(sent))

    def test_the_nodes_own(self):
        """If the node's own certificate is rejected, its Event stays, without any review."""
        sent = self.send()
        self.respond(401)
        self.assertIsNone(self.successResultOf(sent))
        self.assertEqual(1, len(self.connections.keys))

    def test_odd_names(self):
        """A path is percent-encoded again, and the media type is unchanged."""
        self.send(path="/api/v1/namespaces/a b\u00e9?#/events", content_type="application/x-\u00e9")
        self.assertEqual(
            "POST /api/v1/namespaces/a%20b%C3%A9%3F%23/events", self.received_request()[0]
        )
        self.assertIn(b"Content-Type: application/x-\xe9\r\n", self.connections.played[0].sent)
        self.respond(400)

    def test_no_response(self):
        """Without a healthy server, or without a response, there is no status."""
        self.connections.refuses[self.first] = RequestFailed(502, "refused")
        self.assertIsNone(self.successResultOf(self.send()))
        self.first.healthy = False
        self.assertIsNone(self.successResultOf(self.send()))
