"""Which messages are logged: the lowest level, and whether single requests are logged."""

from __future__ import annotations

import time
from typing import Any

from twisted.logger import ILogFilterPredicate, LogEvent, Logger, LogLevel, PredicateResult
from zope.interface import implementer

REQUESTS = "yurttunnel.server.requests"
"""The namespace of the messages of the access log: one for each request, without rate limit."""

_OF_TWISTED = ("twisted.", "log_legacy")
"""The prefix of the namespaces of Twisted's own messages. Below warnings they only help debugging:
"starting on", "Main loop terminated"."""

WHOLE_LINE = "{line}"
"""The format of messages that are already formatted, as the field ``line``."""


class _RequestLogger(Logger):
    """A logger that skips the check that its level is a valid one, which takes long."""

    def emit(self, level: LogLevel, format: str | None = None, **fields: object) -> None:
        self.observer(
            {
                **fields,
                "log_logger": self,
                "log_level": level,
                "log_namespace": self.namespace,
                "log_source": self.source,
                "log_format": format,
                "log_time": time.time(),
            }
        )


request_log = _RequestLogger(namespace=REQUESTS)
"""The logger of :data:`REQUESTS`. It is not a class attribute: that would change its namespace."""

_DEBUG_VERBOSITY = 4
_REQUESTS_VERBOSITY = 2


@implementer(ILogFilterPredicate)
class ShownLevels:
    """Filters messages by ``level``, and those of :data:`REQUESTS` by ``requests``.

    Without ``requests``, only warnings and worse about single requests are logged. The same holds
    for Twisted's own messages, unless the level is ``debug``. Both settings can be changed while
    the process runs, by :meth:`set`, and temporarily by :meth:`set_for_now`.
    """

    def __init__(self) -> None:
        self._for_now = False
        self.set(LogLevel.info, requests=True)

    def set(self, level: LogLevel, requests: bool) -> None:
        """Log messages of ``level``, a constant of ``LogLevel``, or worse.

        A temporary level stays in effect until it ends.
        """
        self.usual = level, requests
        if not self._for_now:
            self._show(level, requests)

    def set_for_now(self, level: LogLevel, requests: bool) -> None:
        """Log messages of ``level`` or worse until :meth:`go_back`."""
        self._for_now = True
        self._show(level, requests)

    def go_back(self) -> None:
        """Return to the configured level."""
        self._for_now = False
        self._show(*self.usual)

    def _show(self, level: LogLevel, requests: bool) -> None:
        self.level = level
        self.requests = requests
        self._shown = _from(level)
        self._shown_of_requests = _from(level if requests else max(level, LogLevel.warn))
        self._shown_of_twisted = _from(
            level if level == LogLevel.debug else max(level, LogLevel.warn)
        )

    def set_verbosity(self, verbosity: int) -> None:
        """Set the level that ``--v`` of klog means in Kubernetes' programs and yurttunnel 1.2."""
        level = LogLevel.debug if verbosity >= _DEBUG_VERBOSITY else LogLevel.info
        self.set(level, requests=verbosity >= _REQUESTS_VERBOSITY)

    # Returns a constant of PredicateResult, which has no type.
    def __call__(self, event: LogEvent) -> Any:
        """See :class:`ILogFilterPredicate`."""
        namespace = event.get("log_namespace") or ""
        if namespace == REQUESTS:
            shown = self._shown_of_requests
        elif namespace.startswith(_OF_TWISTED):
            shown = self._shown_of_twisted
        else:
            shown = self._shown
        return PredicateResult.maybe if event.get("log_level") in shown else PredicateResult.no


def _from(lowest: LogLevel) -> frozenset[LogLevel]:
    return frozenset(level for level in LogLevel.iterconstants() if level >= lowest)


shown_levels = ShownLevels()
"""The filter of this process, which has one log (``twisted.logger.globalLogPublisher``)."""
