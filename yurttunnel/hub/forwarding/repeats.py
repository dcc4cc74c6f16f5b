"""Recently cached responses, so that identical responses in quick succession are cached once.

Each write to the cache costs its thread a transaction, even if nothing has changed. For programs
that send many requests per second, this is a quarter of the total cost of a response. After a
moment an object is written again, because the cache may have changed.
"""

from __future__ import annotations

from collections import OrderedDict

from twisted.internet.interfaces import IReactorTime

MOMENT = 1.0
"""How long a response is remembered, in seconds."""

MOST = 64
"""Maximum number of remembered responses; with :data:`LONGEST` they take at most 1 MiB."""

LONGEST = 16 * 1024
"""Maximum size of a remembered response in bytes."""


class Repeats:
    """Remembers the last responses by their requests, the oldest first."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._answers: OrderedDict[object, tuple[bytes, float]] = OrderedDict()

    def is_known(self, asked: object, body: bytes) -> bool:
        """Return whether ``body`` was the response to ``asked`` within the last moment.

        If not, it is remembered now.
        """
        now = self._clock.seconds()
        last = self._answers.get(asked)
        if last is not None and last[0] == body and now < last[1]:
            return True
        self._answers.pop(asked, None)
        if len(body) <= LONGEST:
            self._answers[asked] = body, now + MOMENT
            if len(self._answers) > MOST:
                self._answers.popitem(last=False)
        return False
