"""A snapshot of the state of a session, for diagnosis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionStats:
    """The state of one session; sizes are in bytes.

    ``window`` is the session's receive window. The peer may send ``credit_given`` more payload,
    and this end ``credit_left``. ``held`` is received data that is not consumed yet.
    ``control_queued`` is the size of the queued control frames. ``unacknowledged`` data is in
    flight, ``most_unacknowledged`` may be, and ``to_send_again`` is still to be retransmitted after
    a lost connection. ``chunk`` is written to the connection in one call. ``memory_used`` of
    ``memory_limit`` is promised to the peer's streams or unacknowledged.
    """

    state: str
    going_away: bool
    peer_going_away: bool
    window: int
    credit_given: int
    held: int
    credit_left: int
    control_queued: int
    unacknowledged: int
    most_unacknowledged: int
    to_send_again: int
    chunk: int
    memory_used: int
    memory_limit: int
