"""The hub's requests to API servers that the test plays, with tokens of others."""

from __future__ import annotations

import json

from twisted.internet.error import ConnectionLost

from tests.hub.upstream.test_node_lease import PlayedServers
from yurttunnel.hub.cache.interfaces import StoredEvent
from yurttunnel.hub.upstream.calls import TokenRejected

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def review(**user):
    """Create a SelfSubjectReview with its status."""
    return json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": user}}).encode()


class OwnerTests(PlayedServers):
    """The authorization of an owner whose token has expired."""

    event = StoredEvent(
        1,
        "/api/v1/namespaces/x/events",
        "application/json",
        b"{}",
        "abc",
        "system:serviceaccount:x:web",
    )

    def test_not_reported_now(self):
        """The request is repeated if the API cannot respond now, but not if it is rejected."""
        passing = [(answered, None) for answered in (401, 429, 500, 503)]
        for answered, status in (*passing, (403, 401), (404, 401)):
            sent = self.calls.send_event(self.event)
            self.settle()
            self.respond(401, number=0)
            self.assertEqual(
                "POST /apis/authorization.k8s.io/v1/subjectaccessreviews",
                self.received_request()[0],
            )
            self.respond(answered)
            self.assertEqual(status, self.successResultOf(sent), answered)


class SameNameTests(PlayedServers):
    """Stored Events with the name of an existing one."""

    path = "/api/v1/namespaces/x/events"

    def send(self, token="", **fields):
        """Send an Event with these occurrences, which exists in the API already."""
        body = json.dumps({"metadata": {"name": "web.1"}, **fields}).encode()
        owner = "system:serviceaccount:x:web" if token else ""
        event = StoredEvent(1, self.path, "application/json", body, token, owner)
        sent = self.calls.send_event(event)
        self.settle()
        self.assertEqual(f"POST {self.path}", self.received_request()[0])
        self.respond(409)
        return sent

    def respond_with_event(self, status=200, **fields):
        """Respond with the existing Event to a request that all recorders may send."""
        self.assertEqual((f"PATCH {self.path}/web.1", b"{}"), self.received_request())
        metadata = {"name": "web.1", "resourceVersion": "7"}
        self.respond(status, json.dumps({"metadata": metadata, **fields}).encode())

    def test_what_happened_again(self):
        """The API's Event gets the highest count and the latest time.

        The patch fails if a recorder has changed the Event meanwhile.
        """
        sent = self.send(count=3, lastTimestamp="2025-06-15T15:03:00Z", message="m", reason="r")
        self.respond_with_event(count=1, lastTimestamp="2025-06-15T15:01:00Z", message="m")
        line, body = self.received_request()
        self.assertEqual(f"PATCH {self.path}/web.1", line)
        self.assertEqual(
            {
                "count": 3,
                "lastTimestamp": "2025-06-15T15:03:00Z",
                "message": "m",
                "metadata": {"resourceVersion": "7"},
            },
            json.loads(body),
        )
        self.assertIn(b"application/merge-patch+json", self.connections.played[0].sent)
        self.respond(200)
        self.assertEqual(409, self.successResultOf(sent))

    def test_what_is_known(self):
        """Occurrences that the API has already, or newer ones, are not changed."""
        for count in (3, 9):
            sent = self.send(count=3, lastTimestamp="2025-06-15T15:03:00Z")
            self.respond_with_event(count=count, lastTimestamp="2025-06-15T15:03:00Z")
            self.assertEqual(409, self.successResultOf(sent))

    def test_a_changed_one(self):
        """An Event that was changed meanwhile is retried later."""
        sent = self.send(count=3)
        self.respond_with_event(count=1)
        self.respond(409)
        self.assertIsNone(self.successResultOf(sent))

    def test_not_now(self):
        """A temporary failure is retried later; a deleted Event is created again."""
        for status in (404, 429, 500, 503):
            sent = self.send(count=3)
            self.respond_with_event(status)
            self.assertIsNone(self.successResultOf(sent), status)
            if status != 404:
                sent = self.send(count=3)
                self.respond_with_event(count=1)
                self.respond(status)
                self.assertIsNone(self.successResultOf(sent), status)

    def test_not_allowed(self):
        """An Event of an owner that may create but not patch counts as sent."""
        for status in (400, 403, 405, 422):
            sent = self.send(count=3)
            self.respond_with_event(status)
            self.assertEqual(409, self.successResultOf(sent), status)
        sent = self.send(count=3)
        self.assertEqual(f"PATCH {self.path}/web.1", self.received_request()[0])
        self.respond(200, b"<html>")
        self.assertEqual(409, self.successResultOf(sent))

    def test_whose_token_has_ended(self):
        """The node patches it for an account that may patch Events."""
        sent = self.send("abc", count=3)
        self.respond(401)
        review, body = self.received_request()
        self.assertEqual("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        attributes = json.loads(body)["spec"]["resourceAttributes"]
        self.assertEqual(
            {"verb": "patch", "group": "", "resource": "events", "namespace": "x"}, attributes
        )
        self.respond(201, b'{"status":{"allowed":true}}')
        self.respond_with_event(count=3)
        self.assertEqual(409, self.successResultOf(sent))
        self.assertEqual([("a", False), ("a", True)], self.connections.keys)


class UserTests(PlayedServers):
    """The owner of a token."""

    def send(self, *answer):
        """Send the request, and respond to it."""
        asked = self.calls.user_of("abc")
        self.settle()
        if answer:
            self.respond(*answer)
        return asked

    def test_known(self):
        """The review is created with the token, on a connection without the node's certificate."""
        asked = self.send()
        line, body = self.received_request()
        self.assertEqual(f"POST {REVIEWS}", line)
        self.assertEqual("SelfSubjectReview", json.loads(body)["kind"])
        self.assertIn(b"\r\nAuthorization: Bearer abc\r\n", self.connections.played[-1].sent)
        self.assertEqual([("a", False)], self.connections.keys)
        self.respond(201, review(username="system:serviceaccount:n:web"))
        self.assertEqual("system:serviceaccount:n:web", self.successResultOf(asked))

    def test_rejected(self):
        """401 means that the token is not valid."""
        self.failureResultOf(self.send(401), TokenRejected)

    def test_unknown_owner(self):
        """Other responses say nothing; the anonymous user is not an owner, either."""
        for answer in (
            (400, review(username="a")),
            (200, review(username="a")),
            (500,),
            (201, review(username="system:anonymous")),
            (201, review(username="")),
            (201, review(username=["a"])),
            (201, review(username="a\x00")),
            (201, review()),
            (201, b"[]"),
            (201, b"{"),
            (201, b"[" * 100_000),
        ):
            self.assertEqual("", self.successResultOf(self.send(*answer)), answer)

    def test_before_there_were_such_reviews(self):
        """Before Kubernetes 1.28 there is no such review, and the node creates a TokenReview."""
        known = {"authenticated": True, "user": {"username": "system:serviceaccount:n:web"}}
        for status, answer, owner in (
            (403, known, "system:serviceaccount:n:web"),
            (404, known, "system:serviceaccount:n:web"),
            (404, {**known, "authenticated": False}, ""),
            (404, {"user": known["user"]}, ""),
            (404, {"authenticated": True, "user": {"username": "system:anonymous"}}, ""),
            (404, {"authenticated": True}, ""),
            (404, [], ""),
        ):
            asked = self.send(status, b"{}", 0)
            line, body = self.received_request()
            self.assertEqual("POST /apis/authentication.k8s.io/v1/tokenreviews", line)
            self.assertEqual({"token": "abc"}, json.loads(body)["spec"])
            self.respond(201, json.dumps({"status": answer}).encode())
            self.assertEqual(owner, self.successResultOf(asked), answer)
        self.assertEqual([("a", False), ("a", True)], self.connections.keys)

    def test_no_reviews_at_all(self):
        """If the node may not create reviews, either, the owner is unknown."""
        asked = self.send(404)
        self.respond(403)
        self.assertEqual("", self.successResultOf(asked))

    def test_reused_connections(self):
        """Idle connections may all have been closed, so the retry uses a new one."""
        first, second = self.send(), self.send()
        for number, asked in enumerate((first, second)):
            self.respond(201, review(username="a"), number)
            self.assertEqual("a", self.successResultOf(asked))
        asked = self.send()
        [used] = [each for each in self.connections.played if len(each.sent) > each.seen]
        used.break_off(ConnectionLost())
        self.settle()
        self.assertEqual(3, len(self.connections.played))
        self.respond(201, review(username="a"))
        self.assertEqual("a", self.successResultOf(asked))

    def test_unreachable(self):
        """Without a response there is one retry, on a new connection; then the owner is unknown."""
        asked = self.send()
        for _ in range(2):
            self.connections.played[-1].break_off(ConnectionLost())
            self.settle()
        self.assertEqual("", self.successResultOf(asked))
        self.assertEqual(2, len(self.connections.played))
        self.first.healthy = False
        self.assertEqual("", self.successResultOf(self.send()))
