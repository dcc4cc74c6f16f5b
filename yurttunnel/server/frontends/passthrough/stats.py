"""What the pass-through counts."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Refusal(enum.Enum):
    """Why a connection was refused; the values are those of a metric's label."""

    PORT = "port"
    """It was led here from a port that is not to be passed through."""
    OVERLOADED = "overloaded"
    """There are too many others, or it waited longest of too many for its ClientHello."""
    TIMEOUT = "timeout"
    """Its ClientHello did not come in time."""
    NOT_TLS = "not_tls"
    """It does not begin with a ClientHello."""
    UNKNOWN_NAME = "unknown_name"
    """Its ClientHello names somebody else than a node behind the tunnel."""
    NOT_CONNECTED = "not_connected"
    """No agent serves its node."""
    DIAL = "dial"
    """The kubelet was not reached."""


@dataclass(slots=True)
class PassthroughStats:
    """Totals since the process started.

    What is neither refused nor passed on has left itself, or was served as on --secure-port,
    because its ClientHello names nobody.
    """

    connections: int = 0
    passed: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)
