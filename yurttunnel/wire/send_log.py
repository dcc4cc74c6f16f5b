"""The log of unacknowledged data, for retransmission on the next connection."""

from __future__ import annotations

from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.pieces import append_piece


class SendLog:
    """The unacknowledged end of the byte sequence of all session frames.

    Positions count bytes since the start of the session: ``start`` is the start of the oldest
    chunk, ``acknowledged`` is within that chunk, and ``end`` is after the newest. Chunks are stored
    as they were sent, which costs a reference and no copy. Only small ones are joined, because
    their overhead would exceed their size. They are charged to ``budget``.
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = budget
        # A list: an empty deque would take 0.7 KiB in each idle session.
        self._chunks: list[bytes] = []
        # The chunks to retransmit in reverse order; usually empty.
        self.to_retransmit: list[bytes] = []
        self.start = 0
        self.acknowledged = 0
        self.end = 0

    @property
    def size(self) -> int:
        """The number of bytes in memory."""
        return self.end - self.start

    def append(self, chunk: bytes) -> None:
        """Store ``chunk``, which is being sent for the first time."""
        append_piece(self._chunks, chunk)
        self.end += len(chunk)
        if self._budget is not None:
            self._budget.charge(len(chunk))

    def acknowledge(self, position: int) -> int:
        """Drop data before ``position``; return the number of newly acknowledged bytes.

        Raises :class:`Violation` for a position that was not sent yet, or that decreases.
        """
        news = position - self.acknowledged
        if news < 0 or position > self.end:
            raise Violation(
                Code.PROTOCOL,
                f"{position} bytes acknowledged, after {self.acknowledged} of {self.end} sent",
            )
        self.acknowledged = position
        start, count = self.start, 0
        for chunk in self._chunks:
            end = self.start + len(chunk)
            if end > position:
                break
            self.start = end
            count += 1
        del self._chunks[:count]
        if self._budget is not None:
            self._budget.release(self.start - start)
        return news

    def drop(self) -> None:
        """Drop everything: the session has ended."""
        if self._budget is not None:
            self._budget.release(self.size)
        self.start = self.end
        self._chunks.clear()
        self.to_retransmit.clear()

    def rewind(self) -> None:
        """Prepare to retransmit everything from ``acknowledged`` on, before new data."""
        self.to_retransmit = list(reversed(self._chunks))
        if self.to_retransmit and self.acknowledged > self.start:
            self.to_retransmit[-1] = self.to_retransmit[-1][self.acknowledged - self.start :]

    def next_retransmission(self) -> bytes:
        """Return the next chunk to retransmit, empty if there is none."""
        return self.to_retransmit.pop() if self.to_retransmit else b""
