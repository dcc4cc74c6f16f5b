"""Reviews of callers by the API."""

from __future__ import annotations

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotAllowed
from yurttunnel.server.frontends.kubelet import reviews
from yurttunnel.server.frontends.kubelet.access import Access
from yurttunnel.server.frontends.kubelet.reviews import (
    MAX_REVIEWS,
    REVIEW_TIMEOUT,
    AuthorizationCounters,
    ReviewFailed,
    Reviews,
    User,
)

SCRAPER = {
    "username": "system:serviceaccount:monitoring:prometheus",
    "uid": "u-1",
    "groups": ["system:serviceaccounts", "system:authenticated"],
    "extra": {"authentication.kubernetes.io/pod-name": ["prometheus-0"]},
}
USER = User(
    SCRAPER["username"],
    ("system:serviceaccounts", "system:authenticated"),
    "u-1",
    (("authentication.kubernetes.io/pod-name", ("prometheus-0",)),),
)
METRICS = Access("get", "metrics", "edge-1")


class ReviewsTests(SynchronousTestCase):
    """Requests for reviews, and their results."""

    def setUp(self):
        """Start an API that knows one token, and allows metrics."""
        self.clock = Clock()
        self.client = FakeKubeClient(self.clock)
        self.counters = AuthorizationCounters()
        self.reviews = Reviews(self.clock, self.client, self.counters)
        self.reviews.startService()
        self.addCleanup(self.stop)
        self.requests = []
        self.status = {"allowed": True}
        self.client.answers["create", "tokenreviews"] = self.review_token
        self.client.answers["create", "subjectaccessreviews"] = self.review_access
        self.lines = Logged(self, "yurttunnel")

    def stop(self):
        """Stop; no timer may remain."""
        self.successResultOf(self.reviews.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def review_token(self, body):
        """Respond like the API."""
        self.requests.append(body)
        if body["spec"]["token"] == "good":
            return {**body, "status": {"authenticated": True, "user": SCRAPER}}
        return {**body, "status": {"error": "invalid bearer token"}}

    def review_access(self, body):
        """Respond like the API."""
        self.requests.append(body)
        return {**body, "status": self.status}

    def user_of(self, token):
        """Request the user of a token."""
        return Deferred.fromCoroutine(self.reviews.user_of(token))

    def is_allowed(self, access=METRICS, user=USER):
        """Request whether a user has permission."""
        return Deferred.fromCoroutine(self.reviews.is_allowed(user, access))

    def fails(self, pending, *words):
        """Assert that a review fails, with ``words`` in the reason."""
        text = str(self.failureResultOf(pending, ReviewFailed).value)
        for each in words:
            self.assertIn(each, text)
        self.assertIn(text, self.reviews.problem())

    def test_token(self):
        """A token has a user, with groups and everything else that an authorizer may use."""
        self.assertEqual(USER, self.successResultOf(self.user_of("good")))
        self.assertEqual([{"spec": {"token": "good"}}], self.requests)

    def test_unknown_token(self):
        """A token that the API does not know has no user."""
        self.assertIsNone(self.successResultOf(self.user_of("bad")))
        self.assertIsNone(self.reviews.problem())

    def test_access(self):
        """The API gets the same request as from a kubelet."""
        self.assertTrue(self.successResultOf(self.is_allowed()))
        [review] = self.requests
        self.assertEqual(
            {
                "user": SCRAPER["username"],
                "groups": SCRAPER["groups"],
                "uid": "u-1",
                "extra": SCRAPER["extra"],
                "resourceAttributes": {
                    "verb": "get",
                    "version": "v1",
                    "resource": "nodes",
                    "subresource": "metrics",
                    "name": "edge-1",
                },
            },
            review["spec"],
        )

    def test_denied(self):
        """A permission that is not allowed is denied, as is one that is both allowed and denied."""
        for status in ({}, {"allowed": False}, {"allowed": "true"}):
            self.status = status
            self.assertFalse(self.successResultOf(self.is_allowed(user=User(repr(status)))))
        self.status = {"allowed": True, "denied": True}
        self.assertFalse(self.successResultOf(self.is_allowed()))

    def test_times(self):
        """Results are cached as long as by kubelets, and not requested meanwhile."""
        for review, seconds in (
            (lambda: self.user_of("good"), 120),
            (lambda: self.user_of("bad"), 30),
            (self.is_allowed, 300),
            (lambda: self.is_allowed(user=User("eve")), 30),
        ):
            self.status = {"allowed": seconds == 300}
            self.requests.clear()
            answer = self.successResultOf(review())
            self.clock.advance(seconds - 1)
            self.assertEqual(answer, self.successResultOf(review()))
            self.assertEqual(1, len(self.requests), seconds)
            self.clock.advance(1)
            self.successResultOf(review())
            self.assertEqual(2, len(self.requests), seconds)

    def test_keys(self):
        """A result is for one user with all its groups, and for one access."""
        self.assertTrue(self.successResultOf(self.is_allowed()))
        self.status = {"allowed": False}
        for user, access in (
            (User(USER.name), METRICS),
            (User(USER.name, USER.groups, USER.uid), METRICS),
            (USER, Access("create", "metrics", "edge-1")),
            (USER, Access("get", "proxy", "edge-1")),
            (USER, Access("get", "metrics", "edge-2")),
            (USER, Access("get", "metrics", "")),
        ):
            self.assertFalse(self.successResultOf(self.is_allowed(access, user)))

    def test_unreachable(self):
        """While the API is unreachable, cached results are valid, and other reviews fail."""
        self.successResultOf(self.user_of("good"))
        self.successResultOf(self.is_allowed())
        self.client.fail(ApiUnreachable("https://10.96.0.1 does not answer"))
        self.assertEqual(USER, self.successResultOf(self.user_of("good")))
        self.assertTrue(self.successResultOf(self.is_allowed()))
        self.fails(self.user_of("other"), "create a TokenReview", "10.96.0.1 does not answer")
        self.client.recover()
        self.assertIsNone(self.successResultOf(self.user_of("other")))
        self.assertIsNone(self.reviews.problem())
        self.assertEqual({"token": 1}, self.counters.failures)
        [line] = self.lines
        self.assertIn("callers cannot be reviewed: the Kubernetes API", line)

    def test_not_permitted(self):
        """If this server may not request reviews, the missing role is named."""
        self.client.fail(NotAllowed(403, "Forbidden", "tokenreviews is forbidden"))
        self.fails(
            self.user_of("x"),
            "ClusterRole needs apiGroups [authentication.k8s.io] resources [tokenreviews] verbs",
        )
        both = NotAllowed(403, "Forbidden", "subjectaccessreviews is forbidden")
        self.client.fail(both)
        text = str(self.failureResultOf(self.is_allowed(), ReviewFailed).value)
        self.assertIn("[authorization.k8s.io] resources [subjectaccessreviews]", text)
        self.assertIn("tokenreviews", self.reviews.problem())
        self.assertIn("subjectaccessreviews", self.reviews.problem())

    def test_errors(self):
        """Other errors of the API, and malformed responses, are failures, too."""
        for error in (
            NotAllowed(401, "Unauthorized", "Unauthorized"),
            ApiError(500, "InternalError", "etcd is gone"),
        ):
            self.client.fail(error)
            self.fails(self.user_of("x"), "create a TokenReview", str(error))
        self.client.recover()
        for status in (None, [], "yes"):
            self.status = status
            self.fails(self.is_allowed(), "SubjectAccessReview without a status")

    def test_malformed_users(self):
        """A user without a name counts as none, and other malformed parts are ignored."""
        for user in (None, [], {}, {"username": ""}, {"username": 5}):
            self.client.answers["create", "tokenreviews"] = lambda body, user=user: {
                "status": {"authenticated": True, "user": user}
            }
            self.assertIsNone(self.successResultOf(self.user_of(repr(user))))
        odd = {"username": "jane", "groups": "a", "extra": {"k": "v"}, "uid": None}
        self.client.answers["create", "tokenreviews"] = lambda body: {
            "status": {"authenticated": True, "user": odd}
        }
        self.assertEqual(
            User("jane", extra=(("k", ()),)), self.successResultOf(self.user_of("odd"))
        )

    def test_deadline(self):
        """A review without a response times out."""
        self.client.hold()
        pending = self.user_of("good")
        self.clock.advance(REVIEW_TIMEOUT - 0.1)
        self.assertNoResult(pending)
        self.clock.advance(0.1)
        self.fails(pending, "has not answered a TokenReview in 10 s")
        self.client.release()
        self.assertEqual(USER, self.successResultOf(self.user_of("good")))

    def test_concurrency(self):
        """Concurrent reviews are limited; others are queued, within their timeout."""
        self.client.hold()
        pending = [self.user_of(f"token-{number}") for number in range(MAX_REVIEWS + 5)]
        self.assertEqual(MAX_REVIEWS, len(self.requests))
        self.clock.advance(1)
        self.client.release()
        self.assertEqual(MAX_REVIEWS + 5, len(self.requests))
        self.successResultOf(gatherResults(pending))

    def test_too_many(self):
        """If the queue is full, a review fails at once, which is no failure of the API."""
        self.patch(reviews, "MAX_WAITING_REVIEWS", 5)
        self.client.hold()
        pending = [self.user_of(f"token-{number}") for number in range(MAX_REVIEWS + 5)]
        error = self.failureResultOf(self.user_of("good"), ReviewFailed).value
        self.assertIn("5 other callers wait", str(error))
        self.assertEqual({"token": 1}, self.counters.failures)
        self.assertIsNone(self.reviews.problem())
        self.client.release()
        self.successResultOf(gatherResults(pending))
        self.assertEqual(USER, self.successResultOf(self.user_of("good")))

    def test_too_many_for_one_token(self):
        """Waiters for one shared review have the same limit; another token has its own."""
        self.patch(reviews, "MAX_WAITING_REVIEWS", 5)
        self.client.hold()
        pending = [self.user_of("good") for _ in range(5)]
        error = self.failureResultOf(self.user_of("good"), ReviewFailed).value
        self.assertIn("5 other callers wait", str(error))
        pending.append(self.user_of("other"))
        self.client.release()
        self.successResultOf(gatherResults(pending))
        self.assertEqual(USER, self.successResultOf(self.user_of("good")))

    def test_stop(self):
        """When the server stops, waiters fail."""
        self.client.hold()
        pending = [self.user_of(f"token-{number}") for number in range(MAX_REVIEWS + 5)]
        self.successResultOf(self.reviews.stopService())
        for each in pending:
            error = self.failureResultOf(each, ReviewFailed).value
            self.assertIn("is stopping", str(error))

    def test_secrets(self):
        """Tokens appear neither in the log nor in errors."""
        self.client.fail(ApiUnreachable("no"))
        error = self.failureResultOf(self.user_of("very-secret"), ReviewFailed).value
        self.assertNotIn("very-secret", str(error))
        self.assertNotIn("very-secret", "".join(self.lines))
