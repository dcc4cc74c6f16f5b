"""Being told to stop more than once."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger

_log = Logger()


def stop_once(reactor: Any) -> None:
    """Have ``reactor`` only log that it is to stop while it stops.

    Supervisors and people repeat SIGTERM when a drain takes its time. For Twisted that is an
    error, of which it logs a traceback.
    """
    stop = reactor.stop

    def stop_unless_stopping() -> None:
        try:
            stop()
        except ReactorNotRunning:
            _log.info("told to stop again: it stops already, when its drain allows")

    reactor.stop = stop_unless_stopping
