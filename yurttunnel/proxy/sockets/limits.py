"""How many connections there may be, of one service and of the process."""

from __future__ import annotations

import resource

from twisted.logger import Logger

MOST_OF_SERVICE = 16_384
"""Connections of one service port."""

MOST_DIALING = 2_048
"""Clients of one service port that wait for an endpoint: each of them for 3.75 s at most."""

_SHARE = 4
"""Of so many descriptors one connection may be: it takes two, and as many are left to listeners,
claimed ports, clients by UDP and pipes."""

_log = Logger()


def most_connections() -> int:
    """Return how many connections the descriptors of this process are enough for.

    The soft limit is raised to the hard one first, as Go's runtime does for every program: it is
    low for the sake of select(2), which nobody calls here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            _log.warn(
                "The limit of open files stays at {soft}: {error}", soft=soft, error=str(error)
            )
    return max(1, soft // _SHARE)
