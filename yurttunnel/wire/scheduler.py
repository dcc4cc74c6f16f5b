"""Who sends next: deficit round robin with a head start for streams that send little.

As in FQ-CoDel (RFC 8290, section 4.2) there are two lists. A stream that becomes active joins
the *new* list, is served first, and moves to the *old* list once it has used up a quantum or
has nothing left; an interactive stream, which never has more than a quantum, thus waits for no
bulk stream, while bulk streams share the rest evenly, quantum by quantum.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from yurttunnel.wire.stream import WRITABLE_BELOW, Stream

MIN_QUANTUM: Final = 4 * 1024
MAX_QUANTUM: Final = 64 * 1024


class FairQueue:
    """The streams that have something to send and the credit for it.

    ``quantum`` is what a stream may send before it is another one's turn, in bytes. The outbox
    sets it to about five milliseconds of the measured rate: small where a frame takes long.
    ``touched`` collects the streams that have sent their FIN, or have room again after having
    been full; the session empties it.
    """

    def __init__(self) -> None:
        self._new: deque[Stream] = deque()
        self._old: deque[Stream] = deque()
        self.quantum = 16 * 1024
        self.touched: list[Stream] = []

    @property
    def active(self) -> bool:
        """Whether any stream takes part."""
        return bool(self._new or self._old)

    def add(self, stream: Stream) -> None:
        """Let ``stream`` take part; without effect when it does already."""
        if not stream.queued:
            stream.queued = True
            stream.deficit = self.quantum
            self._new.append(stream)

    def remove(self, stream: Stream) -> None:
        """Forget ``stream``, which is closed."""
        if stream.queued:
            stream.queued = False
            queue = self._new if stream in self._new else self._old
            queue.remove(stream)

    def fill(self, parts: list[bytes], room: int) -> int:
        """Append DATA frames of the streams whose turn it is to ``parts``.

        At most ``room`` bytes of payload are taken; gives how many were.
        """
        left = room
        while left > 0 and (self._new or self._old):
            is_new = bool(self._new)
            queue = self._new if is_new else self._old
            stream = queue.popleft()
            if not stream.pending_size or stream.send_limit <= stream.sent:
                stream.queued = False
                continue
            alone = not (self._new or self._old)
            taken = stream.take(parts, left if alone else min(left, stream.deficit))
            left -= taken
            stream.deficit -= taken
            if stream.send_ended or (stream.full and stream.pending_size < WRITABLE_BELOW):
                self.touched.append(stream)
            if stream.deficit <= 0:
                stream.deficit = self.quantum
                self._old.append(stream)
            elif stream.sendable:
                queue.appendleft(stream)
            elif is_new:
                # Not gone yet: a stream that refills at once must not overtake the old ones.
                self._old.append(stream)
            else:
                stream.queued = False
        return room - left
