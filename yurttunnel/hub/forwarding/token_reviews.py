"""The owners of bearer tokens, according to the API; for caching, and for requests while offline.

The responses to clients do not reveal them: the API sends some before it checks the token, and
others to any user. So the hub itself asks the API, with the token.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.upstream.calls import TokenRejected
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import time_of_day

REVIEW_SECONDS = 3600.0
"""How long an accepted token is not reviewed again, in seconds."""

UNKNOWN_REVIEW_SECONDS = 60.0
"""How long any other token is not reviewed again, in seconds."""

ACCEPTED_SECONDS = 30 * 24 * 3600.0
"""How long a token counts as accepted after its last review, unless it expires earlier: as long as
the cached data of its owner is kept, so that pods survive a long outage."""

_REVIEW_TIMEOUT = 5.0
"""The timeout of a review in seconds; the first request with a token waits for it."""

_MAX_TOKENS = 4096
"""Maximum number of remembered tokens with an owner, and separately of those without, so that
made-up tokens do not displace real ones."""

_MAX_REVIEWS = 64
"""Maximum number of concurrent reviews; the pods of a node have fewer tokens. One pod may use as
many as it leaves free, so it cannot block the reviews of others."""


class _TokenState:
    """The state of a token; an empty ``owner`` is unknown."""

    __slots__ = ("due", "owner", "rejected_at", "review", "reviewed_at", "waiting")

    def __init__(self) -> None:
        self.owner = ""
        self.reviewed_at = float("-inf")
        self.rejected_at = float("-inf")
        self.due = float("-inf")
        self.review: Deferred[None] | None = None
        self.waiting: list[Deferred[str]] = []


class TokenReviews:
    """Reviews the tokens of requests, and reports to ``cache``; its creator must close it.

    ``user_of(token)`` is that of ``ApiCalls``.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, cache: ICache, user_of: Callable[[str], Deferred[str]]
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._user_of = user_of
        # By digest, the most recently used last; each token is in one of them.
        self._owned = BoundedDict[bytes, _TokenState](_MAX_TOKENS)
        self._unowned = BoundedDict[bytes, _TokenState](_MAX_TOKENS)
        self._reviews: set[Deferred[None]] = set()
        self._places = SharedLimit(_MAX_REVIEWS)

    def owner(self, token: str, share_holder: str | None) -> Deferred[str]:
        """Return the name of the owner of ``token``, empty if the API does not say.

        ``share_holder`` is that of the ``HubCall`` with the token.
        """
        state = self._review_if_due(token, share_holder)
        if state.owner or state.review is None:
            return succeed(state.owner)
        waiting: Deferred[str] = Deferred()
        state.waiting.append(waiting)
        return waiting

    def has_owner(self, token: str) -> bool:
        """Return whether the owner of ``token`` is known now."""
        return read_token(token).digest in self._owned

    def response_received(self, token: str, share_holder: str | None) -> None:
        """Record a response to a request with ``token``; it may be invalid nevertheless."""
        self._review_if_due(token, share_holder)

    def token_rejected(self, token: str, share_holder: str | None) -> None:
        """Record that the API has rejected ``token``."""
        self._rejected(token, self._review_if_due(token, share_holder))

    def token_doubted(self, token: str, share_holder: str | None) -> None:
        """Record that ``token`` was rejected, perhaps not by the API itself.

        It is reviewed soon; its state does not change until the API rejects it.
        """
        state = self._find(token)
        state.due = min(state.due, state.reviewed_at + UNKNOWN_REVIEW_SECONDS)
        self._review_if_due(token, share_holder)

    def close(self) -> None:
        """Cancel all reviews."""
        for review in list(self._reviews):
            review.cancel()

    def _review_if_due(self, token: str, share_holder: str | None) -> _TokenState:
        """Return the state of a token, and begin a review if one is due."""
        state = self._find(token)
        due = state.review is None and self._clock.seconds() >= state.due
        if due and self._places.has_room_for(share_holder):
            self._begin_review(token, state, share_holder)
        return state

    def _find(self, token: str) -> _TokenState:
        """Return the state of a token, and mark it as most recently used."""
        digest = read_token(token).digest
        state = self._owned.get(digest) or self._unowned.get(digest) or _TokenState()
        self._remember(digest, state)
        return state

    def _remember(self, digest: bytes, state: _TokenState) -> None:
        target, other = self._owned, self._unowned
        if not state.owner:
            target, other = other, target
        other.pop(digest, None)
        target[digest] = state

    def _begin_review(self, token: str, state: _TokenState, share_holder: str | None) -> None:
        state.reviewed_at = self._clock.seconds()
        state.due = state.reviewed_at + UNKNOWN_REVIEW_SECONDS
        review = state.review = Deferred.fromCoroutine(self._review(token, state))
        self._reviews.add(review)
        self._places.add(share_holder, 1)

        def ended(_: object) -> None:
            self._reviews.discard(review)
            self._places.add(share_holder, -1)
            state.review = None
            waiting, state.waiting = state.waiting, []
            for each in waiting:
                each.callback(state.owner)

        _ = review.addErrback(self._defect).addBoth(ended)

    async def _review(self, token: str, state: _TokenState) -> None:
        try:
            owner = await self._user_of(token).addTimeout(_REVIEW_TIMEOUT, self._clock)
        except TokenRejected:
            self._rejected(token, state)
            return
        except (DeferredTimeout, CancelledError):
            return
        if owner:
            state.owner = owner
            state.due = self._clock.seconds() + REVIEW_SECONDS
            found = read_token(token)
            self._remember(found.digest, state)
            until = min(found.expires, time_of_day(self._clock) + ACCEPTED_SECONDS)
            self._cache.store_token(found.digest, owner, until)

    def _rejected(self, token: str, state: _TokenState) -> None:
        now = self._clock.seconds()
        if not state.owner and now < state.rejected_at + UNKNOWN_REVIEW_SECONDS:
            # The cache knows already. A rejection costs a write, and any client can repeat a token.
            return
        digest = read_token(token).digest
        state.owner = ""
        state.rejected_at = now
        state.due = min(state.due, now + UNKNOWN_REVIEW_SECONDS)
        self._remember(digest, state)
        self._cache.delete_token(digest)

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: the review of a token failed", failure)
