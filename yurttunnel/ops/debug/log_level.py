"""``/debug/log-level``: a temporary log level, without a restart."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger, LogLevel

from yurttunnel.ops.debug.pages import Page, Parameters, number
from yurttunnel.ops.http_site import PageRefused, PageResponse, text
from yurttunnel.ops.log_levels import LogLevelFilter

DEFAULT_SECONDS = 600
MAX_SECONDS = 86_400

_LEVELS = ("debug", "info", "warn")


class TemporaryLogLevel(Service):
    """Changes the log level temporarily, and restores it after the given time."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, levels: LogLevelFilter) -> None:
        self._clock = clock
        self._levels = levels
        self._end: IDelayedCall | None = None

    def page(self) -> Page:
        """Return the page: GET shows the level, POST (``?level=L``, ``&seconds=N``) sets it."""
        return Page(lambda parameters: text(self._state()), self._change, ("level", "seconds"))

    def stopService(self) -> None:
        super().stopService()
        self._restore()

    def _change(self, parameters: Parameters) -> PageResponse:
        name = parameters.get("level")
        if name not in _LEVELS:
            raise PageRefused(f"the parameter level is required: one of {', '.join(_LEVELS)}")
        seconds = number(parameters, "seconds", 1, MAX_SECONDS, DEFAULT_SECONDS)
        self._restore()
        level = LogLevel.levelWithName(name)
        self._end = self._clock.callLater(seconds, self._end_temporary_level)
        self._levels.set_temporarily(level, requests=level < LogLevel.warn)
        self._log.warn(
            "log level {shown} for {seconds} s, by a request to /debug/log-level",
            shown=name,
            seconds=seconds,
        )
        return text(self._state())

    def _end_temporary_level(self) -> None:
        self._restore()
        self._log.warn("log level {shown} again", shown=self._levels.level.name)

    def _restore(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            if end.active():
                end.cancel()
            self._levels.restore()

    def _state(self) -> str:
        if self._end is None:
            return f"{self._levels.level.name}\n"
        left = self._end.getTime() - self._clock.seconds()
        configured, _ = self._levels.configured
        return f"{self._levels.level.name}, in {left:.0f} s {configured.name} again\n"
