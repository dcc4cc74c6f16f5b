"""What a session is made of at one moment, for people who look for what holds it up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionStats:
    """The state of one session; sizes are in bytes.

    The peer may send ``credit_given`` more payload, and this end ``credit_left``; ``window`` is
    the whole of what the peer is given at a time. ``held`` is what has come and nobody has taken
    yet. ``control_queued`` are frames other than data that wait to be sent. Up to
    ``most_unacknowledged`` of data may be under way, ``unacknowledged`` is, and ``to_send_again``
    of it is still to be repeated after a lost connection. ``chunk`` is given to the connection at
    a time. ``memory_used`` of ``memory_limit`` is promised to the peer's streams or kept.
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
