"""The flags that server and agent share."""

from __future__ import annotations

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.tunnel.direct.reactor import TRANSPORTS

DRAIN_TIMEOUT = Flag(
    "drain-timeout",
    Group.LIMITS,
    flags.duration,
    "How long to wait for streams to end after SIGTERM.",
    default="30",
)

TRANSPORT = Flag(
    "transport",
    Group.OPERATION,
    flags.one_of(*TRANSPORTS),
    "Implementation of sockets and TLS: direct, made for this tunnel, or twisted, Twisted's own,"
    " which is slower.",
    default="direct",
)
