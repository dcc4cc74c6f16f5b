"""The settings and limits between servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from yurttunnel.wire.hello import Hello, Limits

SIBLING_LIMITS = Limits(
    # All nodes of a server share one session.
    max_streams=10_000,
    session_window=256 * 1024 * 1024,
    # Latency between servers is low, and the list of nodes is an open stream: so a dead sibling is
    # detected within 1.9 s (docs/protocol.md, "Liveness").
    ping_interval=2_500,
    # A sibling that is not back soon hangs or is dead, and callers should retry.
    resume_window=5_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingSettings:
    """What this server sends to its siblings about itself.

    ``name`` is the name of this server in logs, and ``software`` its version.
    """

    software: str
    name: str = "server"
    limits: Limits = field(default=SIBLING_LIMITS)

    def hello(self, process: bytes, session: bytes, received: int) -> Hello:
        """Return the HELLO of this server, whose process id is ``process``."""
        return Hello(
            limits=self.limits,
            session=session,
            process=process,
            received=received,
            properties={"software": self.software},
        )
