"""The receiving half of a session's credit: what has come, what was consumed, what is due."""

from __future__ import annotations

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MAX_STREAM_WINDOW, MemoryBudget, ReceiveWindow, tune
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.stream import Stream


class Inflow:
    """Checks what the peer sends against its credit, and collects the credit to be given.

    ``budget`` backs the windows of the streams; it is three quarters of the session's window.
    """

    def __init__(self, limits: Limits, parent: MemoryBudget | None, now: float) -> None:
        self.budget = MemoryBudget(limits.session_window // 4 * 3, parent)
        self.window = ReceiveWindow(limits.session_window, limits.session_window // 8 * 7, now)
        self._initial = limits.stream_window
        # Streams whose window has grown: those that compete for the budget.
        self._grown = 0
        self._due: list[Stream] = []
        self._session_due = False

    def arrived(self, stream: Stream | None, size: int) -> None:
        """Count ``size`` bytes for ``stream``, or for one that is closed.

        Raises :class:`Violation` when there was no credit for them.
        """
        window = self.window
        window.received += size
        if window.received > window.limit:
            raise Violation(Code.FLOW_CONTROL, "more data than the session has credit for")
        if stream is None:
            self.consumed(size)
            return
        window = stream.window
        window.received += size
        if window.received > window.limit:
            text = f"more data than stream {stream.number} has credit for"
            raise Violation(Code.FLOW_CONTROL, text)

    def consumed(self, size: int) -> None:
        """Count bytes that take no memory any more."""
        window = self.window
        window.consumed += size
        if window.limit - window.consumed <= window.threshold:
            self._session_due = True

    def delivered(self, stream: Stream, size: int, now: float, round_trip: float | None) -> None:
        """Count bytes that the user of ``stream`` has taken."""
        window = self.window
        window.consumed += size
        if window.limit - window.consumed <= window.threshold:
            self._session_due = True
        window = stream.window
        window.consumed += size
        if window.limit - window.consumed <= window.threshold and not stream.credit_due:
            if not stream.closed:
                self._tune(window, now, round_trip)
            stream.credit_due = True
            self._due.append(stream)

    def removed(self, stream: Stream, kept: int) -> None:
        """Count the ``kept`` bytes of a stream that has closed as consumed."""
        self._grown -= stream.window.size > self._initial
        self.consumed(kept)

    def _tune(self, window: ReceiveWindow, now: float, round_trip: float | None) -> None:
        had_grown = window.size > self._initial
        # Idle streams, of which there may be many, leave their part to the others.
        competing = self._grown + (not had_grown)
        most = min(MAX_STREAM_WINDOW, max(self.budget.limit // 2 // competing, self._initial))
        tune(window, now, round_trip, self._initial, most, self.budget)
        self._grown += (window.size > self._initial) - had_grown

    @property
    def is_due(self) -> bool:
        """Whether there is credit to be given."""
        return self._session_due or bool(self._due)

    def credit(self, now: float) -> list[bytes]:
        """Give the CREDIT frames that are due."""
        parts: list[bytes] = []
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
