"""The receiving half of a session's flow control: received and consumed data, and due credit."""

from __future__ import annotations

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MAX_STREAM_WINDOW, MemoryBudget, ReceiveWindow, tune
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.stream import Stream


class Receiver:
    """Checks the peer's data against its credit, and collects the credit to be granted.

    ``budget`` backs the windows of the streams; it is three quarters of the session's window.
    ``is_due`` is true if credit is to be granted.
    """

    def __init__(self, limits: Limits, parent: MemoryBudget | None, now: float) -> None:
        self.budget = MemoryBudget(limits.session_window // 4 * 3, parent)
        self.window = ReceiveWindow(limits.session_window, limits.session_window // 8 * 7, now)
        self._initial = limits.stream_window
        self._due: list[Stream] = []
        self._session_due = False
        self.is_due = False

    def arrived(self, stream: Stream, size: int, now: float) -> None:
        """Count ``size`` bytes for ``stream``.

        Raises :class:`Violation` if they exceed the credit.
        """
        session, window = self.window, stream.window
        session.received += size
        if session.received > session.limit:
            raise Violation(Code.FLOW_CONTROL, "more data than the session has credit for")
        if window.received == window.consumed_at_grant:
            window.since = now
        window.received += size
        if window.received > window.limit:
            text = f"more data than stream {stream.number} has credit for"
            raise Violation(Code.FLOW_CONTROL, text)

    def dropped(self, size: int) -> None:
        """Count ``size`` bytes for a closed stream; raises :class:`Violation` likewise."""
        window = self.window
        window.received += size
        if window.received > window.limit:
            raise Violation(Code.FLOW_CONTROL, "more data than the session has credit for")
        self._consumed(size)

    def _consumed(self, size: int) -> None:
        window = self.window
        window.consumed += size
        if window.limit - window.consumed <= window.threshold:
            self._session_due = self.is_due = True

    def delivered(self, stream: Stream, size: int, now: float, round_trip: float | None) -> None:
        """Count bytes that were delivered to the user of ``stream``."""
        session, window = self.window, stream.window
        session.consumed += size
        if session.limit - session.consumed <= session.threshold:
            self._session_due = self.is_due = True
        window.consumed += size
        if window.limit - window.consumed <= window.threshold and not stream.credit_due:
            if not stream.closed:
                self._tune(window, now, round_trip)
            stream.credit_due = self.is_due = True
            self._due.append(stream)

    def removed(self, stream: Stream, buffered: int) -> None:
        """Count the ``unacknowledged`` bytes of a closed stream as consumed."""
        if stream.window.size > self._initial:
            self.budget.count_grown(-1)
        self._consumed(buffered)

    def _tune(self, window: ReceiveWindow, now: float, round_trip: float | None) -> None:
        budget, initial = self.budget, self._initial
        if window.size <= initial:
            budget.count_grown(1)
        maximum = min(MAX_STREAM_WINDOW, max(budget.share, initial))
        tune(window, now, round_trip, initial, maximum, budget)
        if window.size <= initial:
            budget.count_grown(-1)

    def credit(self, now: float) -> list[bytes]:
        """Return the CREDIT frames that are due."""
        parts: list[bytes] = []
        self.is_due = False
        if self._session_due:
            self._session_due = False
            parts.append(frames.offset_frame(frames.CREDIT, 0, self.window.grant(now)))
        if self._due:
            due, self._due = self._due, []
            for stream in due:
                stream.credit_due = False
                if not stream.closed and not stream.receive_ended:
                    limit = stream.window.grant(now)
                    parts.append(frames.offset_frame(frames.CREDIT, stream.number, limit))
        return parts
