"""How many connections there may be, of one service and of the process."""

from __future__ import annotations

import resource

MOST_OF_SERVICE = 16_384
"""Connections of one service port."""

MOST_DIALING = 2_048
"""Clients of one service port that wait for an endpoint: each of them for 3.75 s at most."""

_SHARE = 4
"""Of so many descriptors one connection may be: it takes two, and as many are left to listeners,
claimed ports, clients by UDP and pipes."""


def most_connections() -> int:
    """Return how many connections the descriptors of this process are enough for."""
    return max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE)
