"""The scheduler of streams: deficit round robin that prefers streams that send little.

As in FQ-CoDel (RFC 8290, section 4.2) there are two lists. A stream that becomes active joins the
*new* list, is served first, and moves to the *old* list once it has used up a quantum or has
nothing left to send. So an interactive stream, which never has more than a quantum, waits for no
bulk stream, and bulk streams share the rest evenly, quantum by quantum.
"""

from __future__ import annotations

from yurttunnel.wire.pieces import Buffer
from yurttunnel.wire.stream import WRITABLE_BELOW, Stream


class FairQueue:
    """The streams with data to send and the credit for it.

    Those in ``new`` are served before those in ``old``. ``quantum`` is the number of bytes that a
    stream sends before the next one; it is small on a slow path. While ``is_draining`` only streams
    that can send all their data within a quantum are served. ``touched`` collects the streams that
    have sent their FIN, or have room again after having been full; the session empties it.
    """

    def __init__(self, quantum: int) -> None:
        # Lists: two empty deques would take 1.5 KiB in each idle session.
        self.new: list[Stream] = []
        self.old: list[Stream] = []
        self.quantum = quantum
        self.is_draining = False
        self.touched: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Add ``stream``, unless it is in the queue already."""
        if not stream.queued:
            stream.queued = True
            stream.deficit = self.quantum
            self.new.append(stream)

    def remove(self, stream: Stream) -> None:
        """Remove ``stream``, which is closed."""
        if stream.queued:
            stream.queued = False
            queue = self.new if stream in self.new else self.old
            queue.remove(stream)

    def hold_bulk(self) -> None:
        """Start ``is_draining``; remove idle streams from ``old``, which can then join ``new``."""
        self.is_draining = True
        waiting = [stream for stream in self.old if stream.pending_size]
        for stream in self.old:
            stream.queued = bool(stream.pending_size)
        self.old = waiting

    def fill(self, parts: list[Buffer], room: int) -> int:
        """Append DATA frames of the next streams to ``parts``.

        Takes at most ``room`` bytes of payload; returns how many.
        """
        new, old = self.new, self.old
        left = room
        while left > 0:
            queue = new or old
            if not queue or (self.is_draining and not new):
                break
            stream = queue.pop(0)
            if not stream.pending_size or stream.send_limit <= stream.sent:
                stream.queued = False
                continue
            if self.is_draining and stream.pending_size > stream.deficit:
                old.append(stream)
                continue
            # A single stream need not stop at the end of its quantum.
            taken = stream.take(parts, min(left, stream.deficit) if new or old else left)
            left -= taken
            stream.deficit -= taken
            if stream.send_ended or (stream.full and stream.pending_size < WRITABLE_BELOW):
                self.touched.append(stream)
            is_over = stream.deficit <= 0
            if is_over:
                stream.deficit = self.quantum
            if stream.pending_size and stream.send_limit > stream.sent:
                if is_over:
                    old.append(stream)
                else:
                    queue.insert(0, stream)
            elif old and not self.is_draining and (is_over or queue is new):
                # Not removed yet: a stream that refills at once must not overtake the old ones.
                old.append(stream)
            else:
                stream.queued = False
        return room - left
