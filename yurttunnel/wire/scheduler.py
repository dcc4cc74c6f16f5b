"""Who sends next: deficit round robin with a head start for streams that send little.

As in FQ-CoDel (RFC 8290, section 4.2) there are two lists. A stream that becomes active joins
the *new* list, is served first, and moves to the *old* list once it has used up a quantum or
has nothing left; an interactive stream, which never has more than a quantum, thus waits for no
bulk stream, while bulk streams share the rest evenly, quantum by quantum.
"""

from __future__ import annotations

from yurttunnel.wire.pieces import Buffer
from yurttunnel.wire.stream import WRITABLE_BELOW, Stream


class FairQueue:
    """The streams that have something to send and the credit for it.

    Those in ``new`` are served before those in ``old``. ``quantum`` is what a stream may send
    before it is another one's turn, in bytes: small where a frame takes long.
    While ``is_draining`` only those have a turn that end it with nothing left.
    ``touched`` collects the streams that have sent their FIN, or have room again after having
    been full; the session empties it.
    """

    def __init__(self, quantum: int) -> None:
        # Lists: of an idle session two empty deques would be 1.5 KiB.
        self.new: list[Stream] = []
        self.old: list[Stream] = []
        self.quantum = quantum
        self.is_draining = False
        self.touched: list[Stream] = []

    def add(self, stream: Stream) -> None:
        """Let ``stream`` take part; without effect when it does already."""
        if not stream.queued:
            stream.queued = True
            stream.deficit = self.quantum
            self.new.append(stream)

    def remove(self, stream: Stream) -> None:
        """Forget ``stream``, which is closed."""
        if stream.queued:
            stream.queued = False
            queue = self.new if stream in self.new else self.old
            queue.remove(stream)

    def hold_bulk(self) -> None:
        """Begin ``is_draining``; who rests in ``old`` with nothing to send is free to come back."""
        self.is_draining = True
        waiting = [stream for stream in self.old if stream.pending_size]
        for stream in self.old:
            stream.queued = bool(stream.pending_size)
        self.old = waiting

    def fill(self, parts: list[Buffer], room: int) -> int:
        """Append DATA frames of the streams whose turn it is to ``parts``.

        At most ``room`` bytes of payload are taken; gives how many were.
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
            # Alone, a stream need not stop at the end of its turn.
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
                # Not gone yet: a stream that refills at once must not overtake the old ones.
                old.append(stream)
            else:
                stream.queued = False
        return room - left
