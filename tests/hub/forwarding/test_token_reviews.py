"""The tokens that the API accepts, as observed from requests through the hub."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail

from tests.hub.forwarding.world import JSON, World
from tests.hub.request.tokens import service_account_token
from yurttunnel.hub.forwarding.token_reviews import (
    ACCEPTED_SECONDS,
    REVIEW_SECONDS,
    UNKNOWN_REVIEW_SECONDS,
)
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.upstream.calls import TokenRejected

ACCOUNT = "system:serviceaccount:n:web"
OF_OTHERS = (
    (b"GET", "/api/v1/namespaces/n/services/grafana/proxy/"),
    (b"GET", "/api/v1/nodes/edge-1/proxy/metrics"),
    (b"GET", "/api/v1/namespaces/n/pods/web/log"),
    (b"GET", "/apis/metrics.k8s.io/v1beta1/nodes"),
    (b"DELETE", "/api/v1/namespaces/n/pods/web"),
)
"""Statuses that a Service, a kubelet, an aggregated API or an admission webhook may return."""


class TokenTests(World):
    """The tokens that the API accepts."""

    def owner(self, token="abc"):
        """Return the known owner of a token."""
        return self.successResultOf(self.cache.token_owner(read_token(token).digest))

    def get(self, status=b"200 OK", token="abc", path="/api/v1/nodes", method=b"GET"):
        """Send a request, and respond to it."""
        self.client = self.server.connect()
        self.send_request(path, b"Authorization: Bearer " + token.encode(), JSON, method=method)
        self.respond_json({"kind": "Status"}, status)

    def test_accepted(self):
        """The owner of a token is the API's response to the hub's review."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())

    def test_forged(self):
        """No response to a client makes a token valid."""
        forged = service_account_token("kube-system", "coredns")
        for status in (b"200 OK", b"400 Bad Request", b"403 Forbidden", b"404 Not Found"):
            self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
            self.get(status, forged)
            self.assertIsNone(self.owner(forged))
        self.assertEqual([forged] * 4, self.reviewed)

    def test_review_that_is_rejected(self):
        """A token that the API rejects in a review is forgotten."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.users["abc"] = fail(TokenRejected())
        self.pass_time(REVIEW_SECONDS, step=60)
        self.get(b"403 Forbidden")
        self.assertIsNone(self.owner())

    def test_rejected(self):
        """So is one whose request gets 401; an unknown one stays unknown."""
        self.get(b"401 Unauthorized")
        self.assertIsNone(self.owner())
        self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())
        self.get(b"401 Unauthorized")
        self.assertIsNone(self.owner())

    def test_rejected_once(self):
        """A token that is accepted again afterwards is reviewed within a minute."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.get(b"401 Unauthorized")
        self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
        self.get()
        self.assertEqual(ACCOUNT, self.owner())
        self.assertEqual(["abc"] * 2, self.reviewed)

    def test_rejected_by_another(self):
        """If the 401 may not be the API's own, the token is reviewed, and the review decides."""
        self.users["abc"] = ACCOUNT
        self.get()
        for method, path in OF_OTHERS:
            self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
            self.reviewed.clear()
            self.get(b"401 Unauthorized", path=path, method=method)
            self.assertEqual(["abc"], self.reviewed)
            self.assertEqual(ACCOUNT, self.owner(), path)
        self.users["abc"] = fail(TokenRejected())
        self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
        self.get(b"401 Unauthorized", path=OF_OTHERS[0][1])
        self.assertIsNone(self.owner())

    def test_rejected_by_another_repeatedly(self):
        """It is reviewed once a minute with the next request, whether or not reviews get responses.

        Its cached state stays.
        """
        self.users["abc"] = ACCOUNT
        self.get()
        for owner in (ACCOUNT, ""):
            self.reviewed.clear()
            self.users["abc"] = owner
            for _ in range(5):
                self.get(b"401 Unauthorized", path=OF_OTHERS[0][1])
            self.assertEqual([], self.reviewed)
            self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
            self.get()
            self.get()
            self.assertEqual(["abc"], self.reviewed)
            self.assertEqual(ACCOUNT, self.owner())

    def test_rejected_repeatedly(self):
        """An unknown token is removed from the cache once a minute, a known one at once."""
        report = []
        self.patch(self.cache, "delete_token", report.append)
        for _ in range(5):
            self.get(b"401 Unauthorized")
        self.assertEqual(1, len(report))
        self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
        self.get(b"401 Unauthorized")
        self.assertEqual(2, len(report))
        self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
        self.users["abc"] = ACCOUNT
        self.get()
        self.get(b"401 Unauthorized")
        self.assertEqual(3, len(report))

    def test_failures(self):
        """A failing API has not checked the token."""
        self.users["abc"] = ACCOUNT
        self.get(b"503 Service Unavailable")
        self.assertIsNone(self.owner())
        self.assertEqual([], self.reviewed)

    def test_rate(self):
        """It is reviewed once an hour, and once a minute while its owner is unknown."""
        for owner, seconds in (("", UNKNOWN_REVIEW_SECONDS), (ACCOUNT, REVIEW_SECONDS)):
            self.pass_time(UNKNOWN_REVIEW_SECONDS, step=10)
            self.users["abc"] = owner
            self.reviewed.clear()
            self.get()
            self.get()
            self.pass_time(seconds - 30, step=10)
            self.get()
            self.assertEqual(["abc"], self.reviewed)
            self.pass_time(30, step=10)
            self.get()
            self.assertEqual(["abc"] * 2, self.reviewed)

    def test_one_at_a_time(self):
        """A token has one review at a time."""
        self.users["abc"] = Deferred()
        self.get()
        self.get()
        self.assertEqual(["abc"], self.reviewed)

    def test_limit(self):
        """The number of concurrent reviews of made-up tokens is limited."""
        names = [f"made-up-{number}" for number in range(100)]
        self.users.update((name, Deferred()) for name in names)
        for name in names:
            self.get(token=name)
        self.assertEqual(names[:64], self.reviewed)

    def test_limit_of_one_pod(self):
        """A pod with made-up tokens leaves reviews to others."""
        self.local = False
        names = [f"made-up-{number}" for number in range(100)]
        self.users.update((name, Deferred()) for name in names)
        for name in names:
            self.get(token=name)
        self.assertEqual(names[:32], self.reviewed)
        self.local = True
        self.users["abc"] = ACCOUNT
        self.get()
        self.assertEqual(ACCOUNT, self.owner())

    def test_floods(self):
        """However many made-up tokens there are, they do not displace known ones."""
        self.users["abc"] = ACCOUNT
        self.get()
        self.reviewed.clear()
        for number in range(5_000):
            self.successResultOf(self.tokens.owner(f"made-up-{number}", None))
        self.get()
        self.assertNotIn("abc", self.reviewed)

    def test_ends(self):
        """A token is valid until it expires, and for 30 days at most."""
        now = self.clock.seconds()
        for expires in (now + 3600, now + 10 * ACCEPTED_SECONDS):
            token = service_account_token("n", "web", expires)
            self.users[token] = ACCOUNT
            self.get(token=token)
            self.assertEqual(ACCOUNT, self.owner(token))
            self.clock.advance(min(expires - now, ACCEPTED_SECONDS))
            self.assertIsNone(self.owner(token))
