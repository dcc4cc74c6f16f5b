"""The HELLO and the limits between servers."""

from __future__ import annotations

from yurttunnel import __version__
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


def sibling_hello(process: bytes, session: bytes, received: int) -> Hello:
    """Return the HELLO of this server, whose process id is ``process``."""
    return Hello(
        limits=SIBLING_LIMITS,
        session=session,
        process=process,
        received=received,
        properties={"software": __version__},
    )
