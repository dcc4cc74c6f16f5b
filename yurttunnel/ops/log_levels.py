"""Which messages the process shows: from which level on, and whether those of single requests."""

from __future__ import annotations

import time
from typing import Any

from twisted.logger import ILogFilterPredicate, LogEvent, Logger, LogLevel, PredicateResult
from zope.interface import implementer

REQUESTS = "yurttunnel.server.requests"
"""The namespace of messages of which there is one for each request, however many come."""

_OF_TWISTED = ("twisted.", "log_legacy")
"""What the namespaces of Twisted's own messages begin with. Below warnings they are of use to find
defects: "starting on", "Main loop terminated"."""

WHOLE_LINE = "{line}"
"""The format of messages that are put together already: their text is in the field ``line``."""


class _RequestLogger(Logger):
    """A logger that is given levels only: to look each time whether it is one takes long."""

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
"""What those are logged with. It stays in a module: a class would give it its own namespace."""

_DEBUG_VERBOSITY = 4
_REQUESTS_VERBOSITY = 2


@implementer(ILogFilterPredicate)
class ShownLevels:
    """Lets through messages from ``level`` on, those of :data:`REQUESTS` only with ``requests``.

    Without ``requests``, what goes wrong with single requests is still shown: warnings and worse.
    Of Twisted's own messages those are, too, and all with the level ``debug``.
    Both can be changed while the process runs, by :meth:`set`, and for a while by
    :meth:`set_for_now`.
    """

    def __init__(self) -> None:
        self._for_now = False
        self.set(LogLevel.info, requests=True)

    def set(self, level: LogLevel, requests: bool) -> None:
        """Show what is of ``level``, a constant of ``LogLevel``, or worse.

        Another one that is there for now stays until it ends.
        """
        self.usual = level, requests
        if not self._for_now:
            self._show(level, requests)

    def set_for_now(self, level: LogLevel, requests: bool) -> None:
        """Show what is of ``level`` until :meth:`go_back`."""
        self._for_now = True
        self._show(level, requests)

    def go_back(self) -> None:
        """Show the usual again."""
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
        """Show what klog of Kubernetes' programs, and so yurttunnel 1.2, shows with ``--v``."""
        level = LogLevel.debug if verbosity >= _DEBUG_VERBOSITY else LogLevel.info
        self.set(level, requests=verbosity >= _REQUESTS_VERBOSITY)

    # A constant of PredicateResult; they have no types.
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
"""Those of this process, which has one log (``twisted.logger.globalLogPublisher``)."""
