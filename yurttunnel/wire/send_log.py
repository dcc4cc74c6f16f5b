"""What has been sent and not yet acknowledged: kept, to be sent again on the next connection."""

from __future__ import annotations

from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.pieces import keep_piece


class SendLog:
    """The unacknowledged end of the byte sequence of all session frames.

    Positions count bytes since the session's start: ``start`` is where the oldest chunk kept
    begins, ``acknowledged`` lies in that chunk, ``end`` is behind the newest. Chunks are kept as
    they were sent, so keeping one costs a reference and no copy; but small ones are joined, as
    each by itself would cost many times its bytes. They count in ``budget``.
    """

    def __init__(self, budget: MemoryBudget | None = None) -> None:
        self._budget = budget
        # A list: of an idle session an empty deque would be 0.7 KiB.
        self._chunks: list[bytes] = []
        # What is to be sent again, the first one last; mostly there is nothing.
        self.again: list[bytes] = []
        self.start = 0
        self.acknowledged = 0
        self.end = 0

    @property
    def kept(self) -> int:
        """How many bytes are in memory."""
        return self.end - self.start

    def append(self, chunk: bytes) -> None:
        """Keep ``chunk``, which is being sent for the first time."""
        keep_piece(self._chunks, chunk)
        self.end += len(chunk)
        if self._budget is not None:
            self._budget.charge(len(chunk))

    def acknowledge(self, position: int) -> int:
        """Forget what lies before ``position``; return the number of bytes that are new in it.

        Raises :class:`Violation` for a position that was not sent, or goes back.
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
        """Forget everything: nobody will ask for it any more."""
        if self._budget is not None:
            self._budget.release(self.kept)
        self.start = self.end
        self._chunks.clear()
        self.again.clear()

    def rewind(self) -> None:
        """Prepare to send everything from ``acknowledged`` on again, before anything new."""
        self.again = list(reversed(self._chunks))
        if self.again and self.acknowledged > self.start:
            self.again[-1] = self.again[-1][self.acknowledged - self.start :]

    def next_again(self) -> bytes:
        """The next chunk to be sent again, nothing when all has been."""
        return self.again.pop() if self.again else b""
