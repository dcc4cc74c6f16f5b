"""Which messages are logged: the lowest level, and whether single requests are logged."""

from __future__ import annotations

import time
from typing import Any

from twisted.logger import ILogFilterPredicate, LogEvent, Logger, LogLevel, PredicateResult
from zope.interface import implementer

REQUESTS = "yurttunnel.server.requests"
"""The namespace of the messages of the access log: one for each request, without rate limit."""

_TWISTED_NAMESPACES = ("twisted.", "log_legacy")
"""The prefix of the namespaces of Twisted's own messages. Below warnings they only help debugging:
"starting on", "Main loop terminated"."""

PREFORMATTED = "{line}"
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
class LogLevelFilter:
    """Filters messages by ``level``, and those of :data:`REQUESTS` by ``requests``.

    Without ``requests``, only warnings and worse about single requests are logged. The same holds
    for Twisted's own messages, unless the level is ``debug``. Both settings can be changed while
    the process runs, by :meth:`set`, and temporarily by :meth:`set_temporarily`.
    """

    def __init__(self) -> None:
        self._is_temporary = False
        self.set(LogLevel.info, requests=True)

    def set(self, level: LogLevel, requests: bool) -> None:
        """Log messages of ``level``, a constant of ``LogLevel``, or worse.

        A temporary level stays in effect until it ends.
        """
        self.configured = level, requests
        if not self._is_temporary:
            self._apply(level, requests)

    def set_temporarily(self, level: LogLevel, requests: bool) -> None:
        """Log messages of ``level`` or worse until :meth:`restore`."""
        self._is_temporary = True
        self._apply(level, requests)

    def restore(self) -> None:
        """Return to the configured level."""
        self._is_temporary = False
        self._apply(*self.configured)

    def _apply(self, level: LogLevel, requests: bool) -> None:
        self.level = level
        self.requests = requests
        self._levels = _at_least(level)
        self._request_levels = _at_least(level if requests else max(level, LogLevel.warn))
        self._twisted_levels = _at_least(
            level if level == LogLevel.debug else max(level, LogLevel.warn)
        )

    def set_verbosity(self, verbosity: int) -> None:
        """Set the level that ``--v`` of klog means in Kubernetes' programs and yurttunnel 1.2."""
        level = LogLevel.debug if verbosity >= _DEBUG_VERBOSITY else LogLevel.info
        self.set(level, requests=verbosity >= _REQUESTS_VERBOSITY)

    # Returns a constant of PredicateResult, which has no type.
    def __call__(self, event: LogEvent) -> Any:
        namespace = event.get("log_namespace") or ""
        if namespace == REQUESTS:
            shown = self._request_levels
        elif namespace.startswith(_TWISTED_NAMESPACES):
            shown = self._twisted_levels
        else:
            shown = self._levels
        return PredicateResult.maybe if event.get("log_level") in shown else PredicateResult.no


def _at_least(lowest: LogLevel) -> frozenset[LogLevel]:
    return frozenset(level for level in LogLevel.iterconstants() if level >= lowest)


log_level_filter = LogLevelFilter()
"""The filter of this process, which has one log (``twisted.logger.globalLogPublisher``)."""
