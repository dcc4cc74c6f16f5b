"""What was kept a moment ago, so that who asks again and again has it kept once.

Each time that the cache is told of an object costs its thread a transaction, which finds that
nothing has changed. For programs that ask many times a second that is a quarter of all that an
answer costs. After a moment an object is told again, whatever has become of it in the cache.
"""

from __future__ import annotations

from collections import OrderedDict

from twisted.internet.interfaces import IReactorTime

MOMENT = 1.0
"""Seconds for which an answer is remembered."""

MOST = 64
"""Answers that are remembered; with :data:`LONGEST` they take 1 MiB at most."""

LONGEST = 16 * 1024
"""Bytes of an answer that is remembered."""


class Repeats:
    """Remembers the last answers by what was asked for, the oldest first."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._answers: OrderedDict[object, tuple[bytes, float]] = OrderedDict()

    def is_known(self, asked: object, body: bytes) -> bool:
        """Return whether ``body`` was the answer to what is ``asked`` within the last moment.

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
