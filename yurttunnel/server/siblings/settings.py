"""What servers tell and allow each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from yurttunnel.wire.hello import Hello, Limits

SIBLING_LIMITS = Limits(
    # All nodes of a server share one session here.
    max_streams=10_000,
    session_window=256 * 1024 * 1024,
    # Servers are near each other, and the list of nodes is a stream that is always open: so one
    # that is dead is noticed within 1.9 s (docs/protocol.md, "Liveness").
    ping_interval=2_500,
    # Whoever is not back soon is hung or dead, and callers had better ask again for the nodes.
    resume_window=5_000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingSettings:
    """What this server tells its siblings of itself.

    ``name`` names this server in logs, ``software`` its version.
    """

    software: str
    name: str = "server"
    limits: Limits = field(default=SIBLING_LIMITS)

    def hello(self, process: bytes, session: bytes, received: int) -> Hello:
        """Make the HELLO of this server, which is ``process``."""
        return Hello(
            limits=self.limits,
            session=session,
            process=process,
            received=received,
            properties={"software": self.software},
        )
