"""What the hub asks of API servers that the test plays, with tokens of others."""

from __future__ import annotations

import json

from twisted.internet.error import ConnectionLost

from tests.hub.upstream.test_node_lease import PlayedServers
from yurttunnel.hub.cache.interfaces import KeptEvent
from yurttunnel.hub.upstream.calls import TokenRefused

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def review(**user):
    """Make a SelfSubjectReview that was answered."""
    return json.dumps({"kind": "SelfSubjectReview", "status": {"userInfo": user}}).encode()


class OwnerTests(PlayedServers):
    """Whether the node may send a kept Event whose token has expired."""

    event = KeptEvent(
        1,
        "/api/v1/namespaces/x/events",
        "application/json",
        b"{}",
        "abc",
        "system:serviceaccount:x:web",
    )

    def test_not_said_now(self):
        """An API that cannot say so now is asked again later; one that refuses to say is not."""
        for answered, status in ((429, None), (500, None), (503, None), (403, 401), (404, 401)):
            sent = self.calls.send_event(self.event)
            self.settle()
            self.answer(401, number=0)
            self.assertEqual(
                "POST /apis/authorization.k8s.io/v1/subjectaccessreviews", self.asked()[0]
            )
            self.answer(answered)
            self.assertEqual(status, self.successResultOf(sent), answered)


class UserTests(PlayedServers):
    """Whose a token is."""

    def ask(self, *answer):
        """Ask, and have it answered."""
        asked = self.calls.user_of("abc")
        self.settle()
        if answer:
            self.answer(*answer)
        return asked

    def test_known(self):
        """The token itself asks who it is, by a connection that is not the node's."""
        asked = self.ask()
        line, body = self.asked()
        self.assertEqual(f"POST {REVIEWS}", line)
        self.assertEqual("SelfSubjectReview", json.loads(body)["kind"])
        self.assertIn(b"\r\nAuthorization: Bearer abc\r\n", self.connections.played[-1].sent)
        self.assertEqual([("a", False)], self.connections.keys)
        self.answer(201, review(username="system:serviceaccount:n:web"))
        self.assertEqual("system:serviceaccount:n:web", self.successResultOf(asked))

    def test_refused(self):
        """401 says that it is nobody's."""
        self.failureResultOf(self.ask(401), TokenRefused)

    def test_not_told(self):
        """Whatever else is answered says nothing; to be nobody is none, either."""
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
            self.assertEqual("", self.successResultOf(self.ask(*answer)), answer)

    def test_before_there_were_such_reviews(self):
        """Kubernetes before 1.28 does not have them, nor may anybody ask: then the node asks."""
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
            asked = self.ask(status, b"{}", 0)
            line, body = self.asked()
            self.assertEqual("POST /apis/authentication.k8s.io/v1/tokenreviews", line)
            self.assertEqual({"token": "abc"}, json.loads(body)["spec"])
            self.answer(201, json.dumps({"status": answer}).encode())
            self.assertEqual(owner, self.successResultOf(asked), answer)
        self.assertEqual([("a", False), ("a", True)], self.connections.keys)

    def test_no_reviews_at_all(self):
        """Where the node may not ask, either, nothing is known."""
        asked = self.ask(404)
        self.answer(403)
        self.assertEqual("", self.successResultOf(asked))

    def test_unreachable(self):
        """Without an answer it is asked once more, by a new connection; then it is not known."""
        asked = self.ask()
        for _ in range(2):
            self.connections.played[-1].break_off(ConnectionLost())
            self.settle()
        self.assertEqual("", self.successResultOf(asked))
        self.assertEqual(2, len(self.connections.played))
        self.first.healthy = False
        self.assertEqual("", self.successResultOf(self.ask()))
