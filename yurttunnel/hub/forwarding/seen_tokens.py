"""Whose bearer tokens are, as the API says, for keeping answers and for when nobody can ask it.

No answer to a request of a client tells: the API gives some before it looks at the token, and
others to nobody in particular. So the hub itself asks, in the name of the token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.places import Places
from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.upstream.calls import TokenRefused
from yurttunnel.ops.clocks import time_of_day

KNOWN_SECONDS = 3600.0
"""How long a token is not asked about that the API has accepted."""

UNKNOWN_SECONDS = 60.0
"""How long a token is not asked about that it has not."""

ACCEPTED_SECONDS = 30 * 24 * 3600.0
"""How long a token is accepted at most after the API was asked for the last time, unless it expires
before: as long as is kept what its owner has seen, so that pods outlive a long outage."""

_ANSWER_SECONDS = 5.0
"""For an answer: the first request of a token waits for it."""

_MOST = 4096
"""Tokens of which is remembered that the API knows their owners, and so many of which that it does
not: who makes up tokens pushes out no other one's."""

_MOST_QUESTIONS = 64
"""Under way at a time; the tokens of all pods of a node are fewer. One pod has as many as it
leaves free, so that none keeps others from being known."""


class _Seen:
    """What is known of a token: no ``owner`` means nothing."""

    __slots__ = ("asked", "due", "owner", "question", "refused", "waiting")

    def __init__(self) -> None:
        self.owner = ""
        self.asked = float("-inf")
        self.refused = float("-inf")
        self.due = float("-inf")
        self.question: Deferred[None] | None = None
        self.waiting: list[Deferred[str]] = []


class SeenTokens:
    """Asks about the tokens of requests, and tells ``cache``; whoever made it closes it.

    ``user_of(token)`` is that of ``ApiCalls``.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, cache: ICache, user_of: Callable[[str], Deferred[str]]
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._user_of = user_of
        # By digest, the latest to be used last; each token is in one of them.
        self._owned: OrderedDict[bytes, _Seen] = OrderedDict()
        self._unowned: OrderedDict[bytes, _Seen] = OrderedDict()
        self._questions: set[Deferred[None]] = set()
        self._places = Places(_MOST_QUESTIONS)

    def owner(self, token: str, holder: str | None) -> Deferred[str]:
        """Return by which name the API knows the owner of ``token``, empty if it does not say.

        ``holder`` is that of the ``HubCall`` with the token.
        """
        seen = self._look(token, holder)
        if seen.owner or seen.question is None:
            return succeed(seen.owner)
        waiting: Deferred[str] = Deferred()
        seen.waiting.append(waiting)
        return waiting

    def answered(self, token: str, holder: str | None) -> None:
        """Take it that a request with ``token`` was answered, which says nothing of the token."""
        self._look(token, holder)

    def refused(self, token: str, holder: str | None) -> None:
        """Take it that the API has refused ``token``."""
        self._refused(token, self._look(token, holder))

    def doubted(self, token: str, holder: str | None) -> None:
        """Take it that somebody has refused ``token`` who need not be the API.

        It is asked about soon, and what is known of it stays until the API refuses it.
        """
        seen = self._find(token)
        seen.due = min(seen.due, seen.asked + UNKNOWN_SECONDS)
        self._look(token, holder)

    def close(self) -> None:
        """Ask no more."""
        for question in list(self._questions):
            question.cancel()

    def _look(self, token: str, holder: str | None) -> _Seen:
        """Return what is known of a token, and ask when it is time to."""
        seen = self._find(token)
        due = seen.question is None and self._clock.seconds() >= seen.due
        if due and self._places.has_one_for(holder):
            self._ask(token, seen, holder)
        return seen

    def _find(self, token: str) -> _Seen:
        """Return what is known of a token, which is the latest to be used."""
        digest = read_token(token).digest
        seen = self._owned.get(digest) or self._unowned.get(digest) or _Seen()
        self._remember(digest, seen)
        return seen

    def _remember(self, digest: bytes, seen: _Seen) -> None:
        here, there = self._owned, self._unowned
        if not seen.owner:
            here, there = there, here
        there.pop(digest, None)
        here[digest] = seen
        here.move_to_end(digest)
        if len(here) > _MOST:
            here.popitem(last=False)

    def _ask(self, token: str, seen: _Seen, holder: str | None) -> None:
        seen.asked = self._clock.seconds()
        seen.due = seen.asked + UNKNOWN_SECONDS
        question = seen.question = Deferred.fromCoroutine(self._review(token, seen))
        self._questions.add(question)
        self._places.count(holder, 1)

        def ended(_: object) -> None:
            self._questions.discard(question)
            self._places.count(holder, -1)
            seen.question = None
            waiting, seen.waiting = seen.waiting, []
            for each in waiting:
                each.callback(seen.owner)

        _ = question.addErrback(self._defect).addBoth(ended)

    async def _review(self, token: str, seen: _Seen) -> None:
        try:
            owner = await self._user_of(token).addTimeout(_ANSWER_SECONDS, self._clock)
        except TokenRefused:
            self._refused(token, seen)
            return
        except (DeferredTimeout, CancelledError):
            return
        if owner:
            seen.owner = owner
            seen.due = self._clock.seconds() + KNOWN_SECONDS
            found = read_token(token)
            self._remember(found.digest, seen)
            until = min(found.expires, time_of_day(self._clock) + ACCEPTED_SECONDS)
            self._cache.accept_token(found.digest, owner, until)

    def _refused(self, token: str, seen: _Seen) -> None:
        now = self._clock.seconds()
        if not seen.owner and now < seen.refused + UNKNOWN_SECONDS:
            # The cache has been told: that costs it a write, and anybody can send a token again.
            return
        digest = read_token(token).digest
        seen.owner = ""
        seen.refused = now
        seen.due = min(seen.due, now + UNKNOWN_SECONDS)
        self._remember(digest, seen)
        self._cache.refuse_token(digest)

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: whose a token is could not be asked", failure)
