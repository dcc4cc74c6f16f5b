"""Recently cached responses, so that identical responses in quick succession are cached once.

Each write to the cache costs its thread a transaction, even if nothing has changed. For programs
that send many requests per second, this is a quarter of the total cost of a response. After a
moment an object is written again, because the cache may have changed.
"""

from __future__ import annotations

from collections import OrderedDict

from twisted.internet.interfaces import IReactorTime

REMEMBERED_SECONDS = 1.0
"""How long a response is remembered, in seconds."""

MAX_RESPONSES = 64
"""Maximum number of remembered responses; with :data:`MAX_RESPONSE_SIZE` they take at most 1
MiB."""

MAX_RESPONSE_SIZE = 16 * 1024
"""Maximum size of a remembered response in bytes."""


class RecentResponses:
    """Remembers the last responses by their requests, the oldest first."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._responses: OrderedDict[object, tuple[bytes, float]] = OrderedDict()

    def is_recent(self, key: object, body: bytes) -> bool:
        """Return whether ``body`` was the response to ``key`` within the last moment.

        If not, it is remembered now.
        """
        now = self._clock.seconds()
        last = self._responses.get(key)
        if last is not None and last[0] == body and now < last[1]:
            return True
        self._responses.pop(key, None)
        if len(body) <= MAX_RESPONSE_SIZE:
            self._responses[key] = body, now + REMEMBERED_SECONDS
            if len(self._responses) > MAX_RESPONSES:
                self._responses.popitem(last=False)
        return False
