"""The owners of bearer tokens, according to the API; for caching, and for requests while offline.

The responses to clients do not reveal them: the API sends some before it checks the token, and
others to any user. So the hub itself asks the API, with the token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.defer import TimeoutError as DeferredTimeout
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.request.callers import read_token
from yurttunnel.hub.upstream.calls import TokenRefused
from yurttunnel.ops.clocks import time_of_day

KNOWN_SECONDS = 3600.0
"""How long an accepted token is not reviewed again, in seconds."""

UNKNOWN_SECONDS = 60.0
"""How long any other token is not reviewed again, in seconds."""

ACCEPTED_SECONDS = 30 * 24 * 3600.0
"""How long a token counts as accepted after its last review, unless it expires earlier: as long as
the cached data of its owner is kept, so that pods survive a long outage."""

_ANSWER_SECONDS = 5.0
"""The timeout of a review in seconds; the first request with a token waits for it."""

_MOST = 4096
"""Maximum number of remembered tokens with an owner, and separately of those without, so that
made-up tokens do not displace real ones."""

_MOST_QUESTIONS = 64
"""Maximum number of concurrent reviews; the pods of a node have fewer tokens. One pod may use as
many as it leaves free, so it cannot block the reviews of others."""


class _Seen:
    """The state of a token; an empty ``owner`` is unknown."""

    __slots__ = ("asked", "due", "owner", "question", "refused", "waiting")

    def __init__(self) -> None:
        self.owner = ""
        self.asked = float("-inf")
        self.refused = float("-inf")
        self.due = float("-inf")
        self.question: Deferred[None] | None = None
        self.waiting: list[Deferred[str]] = []


class SeenTokens:
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
        self._owned: OrderedDict[bytes, _Seen] = OrderedDict()
        self._unowned: OrderedDict[bytes, _Seen] = OrderedDict()
        self._questions: set[Deferred[None]] = set()
        self._places = SharedLimit(_MOST_QUESTIONS)

    def owner(self, token: str, holder: str | None) -> Deferred[str]:
        """Return the name of the owner of ``token``, empty if the API does not say.

        ``holder`` is that of the ``HubCall`` with the token.
        """
        seen = self._look(token, holder)
        if seen.owner or seen.question is None:
            return succeed(seen.owner)
        waiting: Deferred[str] = Deferred()
        seen.waiting.append(waiting)
        return waiting

    def answered(self, token: str, holder: str | None) -> None:
        """Record a response to a request with ``token``; it may be invalid nevertheless."""
        self._look(token, holder)

    def refused(self, token: str, holder: str | None) -> None:
        """Record that the API has rejected ``token``."""
        self._refused(token, self._look(token, holder))

    def doubted(self, token: str, holder: str | None) -> None:
        """Record that ``token`` was rejected, perhaps not by the API itself.

        It is reviewed soon; its state does not change until the API rejects it.
        """
        seen = self._find(token)
        seen.due = min(seen.due, seen.asked + UNKNOWN_SECONDS)
        self._look(token, holder)

    def close(self) -> None:
        """Cancel all reviews."""
        for question in list(self._questions):
            question.cancel()

    def _look(self, token: str, holder: str | None) -> _Seen:
        """Return the state of a token, and begin a review if one is due."""
        seen = self._find(token)
        due = seen.question is None and self._clock.seconds() >= seen.due
        if due and self._places.has_room_for(holder):
            self._ask(token, seen, holder)
        return seen

    def _find(self, token: str) -> _Seen:
        """Return the state of a token, and mark it as most recently used."""
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
        self._places.add(holder, 1)

        def ended(_: object) -> None:
            self._questions.discard(question)
            self._places.add(holder, -1)
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
            # The cache knows already. A rejection costs a write, and any client can repeat a token.
            return
        digest = read_token(token).digest
        seen.owner = ""
        seen.refused = now
        seen.due = min(seen.due, now + UNKNOWN_SECONDS)
        self._remember(digest, seen)
        self._cache.refuse_token(digest)

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: whose a token is could not be asked", failure)
