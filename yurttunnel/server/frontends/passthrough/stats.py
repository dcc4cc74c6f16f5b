"""Counters of the pass-through."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Refusal(enum.Enum):
    """Why a connection was rejected; the values are label values of a metric."""

    PORT = "port"
    """It was redirected from a port that is not passed through."""
    OVERLOADED = "overloaded"
    """There are too many others, or it was the oldest of too many without a ClientHello."""
    TIMEOUT = "timeout"
    """Its ClientHello was not complete in time."""
    NOT_TLS = "not_tls"
    """It does not begin with a ClientHello."""
    UNKNOWN_NAME = "unknown_name"
    """Its ClientHello names something other than a node behind the tunnel."""
    NOT_CONNECTED = "not_connected"
    """Its node has no agent connected."""
    DIAL = "dial"
    """The kubelet was not reached."""


@dataclass(slots=True)
class PassthroughStats:
    """Totals since the process started.

    A connection that is neither refused nor passed was closed by its caller, or was handled as on
    --secure-port, because its ClientHello has no name.
    """

    connections: int = 0
    passed: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)
