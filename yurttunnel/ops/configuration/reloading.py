"""Reloads the file of ``--config`` while a program runs, and applies what it can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.ops.configuration.file import state_of, with_path
from yurttunnel.ops.flag_table import Entry
from yurttunnel.ops.log_levels import LogLevelFilter, log_level_filter
from yurttunnel.ops.options import VERBOSITY, CommandOptions
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.tunnel.reactor import IReactor

CHECK_SECONDS = 1.0
"""The interval between two checks of the file."""

Settings = TypeVar("Settings")
_Value = TypeVar("_Value")

InThread = Callable[[Callable[[_Value], _Value], _Value], Deferred[_Value]]


class ChangeRejected(Exception):
    """A change in the file cannot be applied now, such as a port in use; the message says why."""


class ConfigurationReloader(Reconciler, Generic[Settings]):
    """Reads the file of ``options`` again when it has changed, and has the program apply it.

    A file is read once it was the same at two checks: it may still be being written. While it is
    invalid, missing, or rejected by the program, everything stays as it was. ``levels`` follow
    ``--v``. ``in_thread(function, argument)`` calls the function in a thread.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: InThread[CommandOptions[Settings]],
        options: CommandOptions[Settings],
        file: Path,
        levels: LogLevelFilter,
    ) -> None:
        super().__init__(clock, CHECK_SECONDS, f"following {file}", self._check)
        self._in_thread = in_thread
        self._file = file
        self._levels = levels
        self._started_with = self._in_use = options
        self._live = frozenset({VERBOSITY.name})
        self._use: Callable[[Settings], Awaitable[None] | None] = lambda settings: None
        self._seen = self._applied = options.file_state
        self._error: str | None = None
        self._restart: tuple[str, ...] = ()

    def follow(
        self,
        flags: Sequence[Entry],
        use: Callable[[Settings], Awaitable[None] | None],
        readiness: Readiness,
    ) -> None:
        """Have ``use(settings)`` called when one of ``flags`` has changed.

        It may raise :class:`ChangeRejected`, and must then leave everything as it was.
        ``readiness`` only warns of changes that are not in use.
        """
        self._live |= {flag.name for flag in flags}
        self._use = use
        readiness.add("configuration", self.problem, required=False)

    def problem(self) -> str | None:
        """Return why the file is not used, or which changes need a restart."""
        if self._error is not None:
            return f"{self._error}; the previous configuration stays in use"
        if self._restart:
            return f"changed in {self._file}, needs a restart: {_listed(self._restart)}"
        return None

    async def _check(self) -> None:
        state = state_of(self._file)
        before, self._seen = self._seen, state
        if state != before or (state == self._applied and self._error is None):
            return
        try:
            options = await self._in_thread(CommandOptions.reread, self._in_use)
            await self._apply(options)
        except (usage.UsageError, ChangeRejected) as error:
            sentence = with_path(self._file, error)
            if sentence != self._error:
                self._error = sentence
                self._log.error("{error}; the previous configuration stays in use", error=sentence)
        else:
            if self._error is not None:
                self._error = None
                self._log.info("{file} is in use again", file=str(self._file))
            self._applied = state

    async def _apply(self, options: CommandOptions[Settings]) -> None:
        changed = _differences(self._in_use, options)
        if changed & self._live - {VERBOSITY.name}:
            used = self._use(options.settings)
            if used is not None:
                await used
        if VERBOSITY.name in changed:
            options.apply_log_level(self._levels)
        self._in_use = options
        if changed & self._live:
            self._log.info(
                "changed in {file}, and in use: {flags}",
                file=str(self._file),
                flags=_listed(changed & self._live),
            )
        restart = tuple(sorted(_differences(self._started_with, options) - self._live))
        if restart != self._restart:
            self._restart = restart
            if restart:
                self._log.warn(
                    "changed in {file}, needs a restart: {flags}",
                    file=str(self._file),
                    flags=_listed(restart),
                )


def configuration_reloader(
    reactor: IReactor, options: CommandOptions[Settings]
) -> ConfigurationReloader[Settings] | None:
    """Return the service that reloads the file of ``options``, or ``None`` if there is no file."""
    if options.file is None:
        return None
    in_thread = partial(run_in_new_thread, reactor, "yurttunnel configuration")
    return ConfigurationReloader(reactor, in_thread, options, options.file, log_level_filter)


def _differences(
    before: CommandOptions[Settings], after: CommandOptions[Settings]
) -> frozenset[str]:
    return frozenset(
        entry.name for entry in after.table if before.texts(entry) != after.texts(entry)
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"--{name}" for name in sorted(names))
