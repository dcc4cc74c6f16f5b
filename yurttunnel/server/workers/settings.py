"""What a worker is to be, as the first process tells it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CONTROL_DESCRIPTOR = 3
"""The descriptor by which a worker has the channel to the first process."""

LINK_DESCRIPTOR = 4
"""The descriptor of the connection that carries the session with the first process."""

STACK_DESCRIPTOR = 5
"""The descriptor of a file in memory where a worker leaves its stack when it is aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What is the same for as long as a worker lives; times are in seconds.

    ``number`` tells workers of one server apart, from 1 on. ``process`` is how agents tell the
    server from others, in hexadecimal digits. ``budget`` is in bytes. ``audited`` says whether
    there is an audit log, ``verbose`` whether messages are wanted that help to find defects.
    """

    number: int
    process: str
    resume_window: float
    return_grace: float
    drain_timeout: float
    budget: int
    audited: bool
    verbose: bool

    def to_fields(self) -> dict[str, Any]:
        """Write them for a message."""
        return asdict(self)
