"""Authentication and authorization of callers by the API: TokenReview and SubjectAccessReview."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from twisted.application.service import Service
from twisted.internet.defer import (
    CancelledError,
    Deferred,
    DeferredSemaphore,
    TimeoutError,
    gatherResults,
)
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import ApiError, ApiUnreachable, NotAllowed
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Object, Resource
from yurttunnel.metrics import Metric, counter, counts_of
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.frontends.kubelet.access import Access
from yurttunnel.server.frontends.kubelet.single_flight_cache import (
    LookupCounters,
    SingleFlightCache,
)

# Seconds, the kubelets' defaults: authentication.webhook.cacheTTL, and
# authorization.webhook.cacheAuthorizedTTL and cacheUnauthorizedTTL of KubeletConfiguration.
# Kubelets do not cache unknown tokens; here they are cached briefly.
TOKEN_TTL = 120.0
ALLOWED_TTL = 300.0
DENIED_TTL = 30.0

REVIEW_TIMEOUT = 10.0
"""The timeout in seconds for a review, including its time in the queue."""
MAX_REVIEWS = 16
"""The maximum number of concurrent reviews."""
MAX_WAITING_REVIEWS = 1024
"""The maximum number of queued reviews, and of requests that wait for one review. Strangers with
invented tokens cause reviews, and waiting requests hold connections of the port, most of which are
to remain available to others."""


Result = TypeVar("Result")

RESULTS = ("allowed", "denied", "unauthenticated", "unavailable")
PROOFS = ("allowed_name", "certificate", "token", "none")
REVIEWS = ("token", "access")


@dataclass(slots=True)
class AuthorizationCounters:
    """Totals since the process started.

    ``decisions`` are by one of :data:`RESULTS` and one of :data:`PROOFS`, ``lookups`` and
    ``failures`` by one of :data:`REVIEWS`.
    """

    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    lookups: dict[str, LookupCounters] = field(
        default_factory=lambda: {review: LookupCounters() for review in REVIEWS}
    )
    failures: Counter[str] = field(default_factory=Counter)


METRICS: tuple[Metric[AuthorizationCounters], ...] = (
    counter(
        "yurttunnel_server_caller_decisions",
        "Requests on --secure-port by decision and by credentials of the caller: a name of"
        " --allowed-callers, another certificate, a token, or none. denied (403): the caller lacks"
        " permission for nodes/proxy, or requests something that it must not; the log has the"
        " caller. unauthenticated (401): the token is missing or expired. unavailable (503): the"
        " API did not respond, see caller_review_failures.",
        lambda counters: sorted(counters.decisions.items()),
        "result",
        "proof",
    ),
    counter(
        "yurttunnel_server_caller_lookups",
        "Lookups of callers by kind of review and source: kept (from the cache), shared (with a"
        " concurrent request), or asked (from the API). Many asked and few kept: callers change"
        " their tokens, or somebody tries many tokens.",
        lambda counters: (
            ((review, source), count)
            for review, lookups in counters.lookups.items()
            for source, count in (
                ("kept", lookups.hits),
                ("shared", lookups.shared),
                ("asked", lookups.misses),
            )
        ),
        "review",
        "source",
    ),
    counter(
        "yurttunnel_server_caller_review_failures",
        "Failed reviews of callers, because the API was unreachable or this server lacks the"
        " permission; /readyz and the log have the reason. Callers of --allowed-callers, and those"
        " that were reviewed a moment ago, are still served.",
        lambda counters: counts_of(REVIEWS, counters.failures),
        "review",
    ),
)


class ReviewFailed(Exception):
    """The API gave no result; the text is a one-line reason."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the API (``UserInfo`` of authentication.k8s.io/v1)."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Reviews(Service):
    """Requests reviews from the API, and caches the results.

    Cached results remain valid while the API is unreachable. Of tokens only the SHA-256 is stored.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, client: IKubeClient, counters: AuthorizationCounters
    ) -> None:
        self._clock = clock
        self._client = client
        self._counters = counters
        self._semaphore = DeferredSemaphore(MAX_REVIEWS)
        self._warnings = RateLimitedLog(clock, self._log)
        lookups = counters.lookups
        self._users = SingleFlightCache[User | None](clock, lookups["token"])
        self._permissions = SingleFlightCache[bool](clock, lookups["access"])
        self._problems: dict[str, str] = {}

    def stopService(self) -> Deferred[None]:
        """Cancel pending reviews."""
        super().stopService()
        stopped = gatherResults([self._users.stop(), self._permissions.stop()])
        return stopped.addCallback(lambda _: None)

    def problem(self) -> str | None:
        """Return why callers cannot be reviewed, according to the latest reviews."""
        return "; ".join(self._problems.values()) or None

    async def user_of(self, token: str) -> User | None:
        """Return the user of a bearer token, ``None`` if it is invalid.

        Raises :class:`ReviewFailed`.
        """
        # No audiences, as in kubelets: the token must be one for the API itself.
        body = {"spec": {"token": token}}

        async def fetch() -> tuple[User | None, float]:
            user = _user_in(await self._review("token", TOKEN_REVIEWS, body))
            return user, DENIED_TTL if user is None else TOKEN_TTL

        return await self._lookup("token", self._users, token, fetch)

    async def is_allowed(self, user: User, access: Access) -> bool:
        """Return whether ``user`` has ``access``; raises :class:`ReviewFailed`."""
        spec = _access_spec(user, access)

        async def fetch() -> tuple[bool, float]:
            status = await self._review("access", SUBJECT_ACCESS_REVIEWS, {"spec": spec})
            allowed = status.get("allowed") is True and status.get("denied") is not True
            return allowed, ALLOWED_TTL if allowed else DENIED_TTL

        text = json.dumps(spec, sort_keys=True)
        return await self._lookup("access", self._permissions, text, fetch)

    async def _lookup(
        self,
        kind: str,
        cache: SingleFlightCache[Result],
        text: str,
        fetch: Callable[[], Coroutine[Any, Any, tuple[Result, float]]],
    ) -> Result:
        key = hashlib.sha256(text.encode()).digest()
        # Requests that share a pending review have a limit of their own.
        self._check_room(kind, cache.waiting(key))
        try:
            return await cache.get(key, fetch)
        except CancelledError:
            raise ReviewFailed("this server is stopping") from None

    def _check_room(self, kind: str, waiting: int) -> None:
        if waiting >= MAX_WAITING_REVIEWS:
            self._counters.failures[kind] += 1
            raise ReviewFailed(
                f"{MAX_WAITING_REVIEWS} other callers wait for a review by the Kubernetes API"
            )

    async def _review(self, kind: str, resource: Resource, body: Object) -> Object:
        """Request a review from the API; return its ``status``."""
        self._check_room(kind, len(self._semaphore.waiting))
        try:
            review = await self._semaphore.run(self._client.create, resource, body).addTimeout(
                REVIEW_TIMEOUT, self._clock
            )
            status = review.get("status")
            if not isinstance(status, dict):
                raise ApiUnreachable(f"the API has answered a {resource.kind} without a status")
        except (ApiError, ApiUnreachable, TimeoutError) as error:
            problem = _problem(resource, error)
            self._counters.failures[kind] += 1
            self._problems[kind] = problem
            self._warnings.warn("callers cannot be reviewed: {problem}", problem=problem)
            raise ReviewFailed(problem) from error
        self._problems.pop(kind, None)
        return status


def _problem(resource: Resource, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the Kubernetes API has not answered a {resource.kind} in {REVIEW_TIMEOUT:g} s"
    if isinstance(error, NotAllowed) and error.status == 403:
        return (
            f"this server may not review callers: its ClusterRole needs"
            f" apiGroups [{resource.group}] resources [{resource.plural}] verbs [create] ({error})"
        )
    return f"the Kubernetes API did not create a {resource.kind}: {error}"


def _access_spec(user: User, access: Access) -> Object:
    """Return the ``spec`` of a review in the form that kubelets use."""
    return {
        "user": user.name,
        "groups": list(user.groups),
        "uid": user.uid,
        "extra": {key: list(values) for key, values in user.extra},
        "resourceAttributes": {
            "verb": access.verb,
            "version": "v1",
            "resource": "nodes",
            "subresource": access.subresource,
            "name": access.node,
        },
    }


def _user_in(status: Object) -> User | None:
    """Parse the ``status`` of a TokenReview."""
    user = status.get("user")
    if status.get("authenticated") is not True or not isinstance(user, dict):
        return None
    name = user.get("username")
    if not isinstance(name, str) or not name:
        return None
    extra = user.get("extra")
    return User(
        name,
        _texts(user.get("groups")),
        str(user.get("uid") or ""),
        tuple(
            (str(key), _texts(values))
            for key, values in sorted(extra.items() if isinstance(extra, dict) else ())
        ),
    )


def _texts(values: object) -> tuple[str, ...]:
    return tuple(map(str, values)) if isinstance(values, list) else ()
