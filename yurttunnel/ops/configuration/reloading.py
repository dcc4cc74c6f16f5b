"""Reloads the file of ``--config`` while a program runs, and applies what it can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.ops.configuration.file import named, state_of
from yurttunnel.ops.flag_table import Entry
from yurttunnel.ops.log_levels import ShownLevels, shown_levels
from yurttunnel.ops.options import VERBOSITY, CommandOptions
from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.threads import in_own_thread
from yurttunnel.tunnel.reactor import IReactor

LOOK_SECONDS = 1.0
"""The interval between two checks of the file."""

Settings = TypeVar("Settings")
_Value = TypeVar("_Value")

InThread = Callable[[Callable[[_Value], _Value], _Value], Deferred[_Value]]


class ChangeRefused(Exception):
    """A change in the file cannot be applied now, such as a port in use; the message says why."""


@dataclass(frozen=True, slots=True)
class _Part(Generic[Settings]):
    flags: frozenset[str]
    use: Callable[[Settings], Awaitable[None] | None]


class Following(Reconciler, Generic[Settings]):
    """Reads the file of ``options`` again when it has changed, and applies it to the parts.

    A file is read once it was the same at two checks: it may still be being written. While it is
    invalid, missing, or refused by a part, everything stays as it was. ``levels`` follow ``--v``.
    ``in_thread(function, argument)`` calls the function in a thread.
    """

    _log = Logger()

    def __init__(
        self,
        clock: IReactorTime,
        in_thread: InThread[CommandOptions[Settings]],
        options: CommandOptions[Settings],
        file: Path,
        levels: ShownLevels,
    ) -> None:
        super().__init__(clock, LOOK_SECONDS, f"following {file}", self._look)
        self._in_thread = in_thread
        self._file = file
        self._levels = levels
        self._started_with = self._in_use = options
        self._parts: list[_Part[Settings]] = []
        self._seen = self._read = options.file_state
        self._broken: str | None = None
        self._restart: tuple[str, ...] = ()

    def follow(
        self, flags: Sequence[Entry], use: Callable[[Settings], Awaitable[None] | None]
    ) -> None:
        """Call ``use(settings)`` when one of ``flags`` has changed.

        Parts are called in the order of registration. A part that may refuse a change, by raising
        :class:`ChangeRefused`, must come first, and must then leave everything as it was.
        """
        self._parts.append(_Part(frozenset(flag.name for flag in flags), use))

    def tell(self, readiness: Readiness) -> None:
        """Register a check with ``readiness`` that only warns of changes that are not in use."""
        readiness.add("configuration", self.problem, required=False)

    def problem(self) -> str | None:
        """Return why the file is not used, or which changes need a restart."""
        if self._broken is not None:
            return f"{self._broken}; the previous configuration stays in use"
        if self._restart:
            return f"changed in {self._file}, needs a restart: {_listed(self._restart)}"
        return None

    async def _look(self) -> None:
        state = state_of(self._file)
        before, self._seen = self._seen, state
        if state != before or (state == self._read and self._broken is None):
            return
        try:
            options = await self._in_thread(CommandOptions.read_anew, self._in_use)
            await self._use(options)
        except (usage.UsageError, ChangeRefused) as error:
            sentence = named(self._file, error)
            if sentence != self._broken:
                self._broken = sentence
                self._log.error("{error}; the previous configuration stays in use", error=sentence)
        else:
            if self._broken is not None:
                self._broken = None
                self._log.info("{file} is in use again", file=str(self._file))
            self._read = state

    async def _use(self, options: CommandOptions[Settings]) -> None:
        changed = _differences(self._in_use, options)
        for part in self._parts:
            if part.flags & changed:
                used = part.use(options.settings)
                if used is not None:
                    await used
        if VERBOSITY.name in changed:
            options.show(self._levels)
        self._in_use = options
        live = frozenset({VERBOSITY.name}).union(*(part.flags for part in self._parts))
        if changed & live:
            self._log.info(
                "changed in {file}, and in use: {flags}",
                file=str(self._file),
                flags=_listed(changed & live),
            )
        restart = tuple(sorted(_differences(self._started_with, options) - live))
        if restart != self._restart:
            self._restart = restart
            if restart:
                self._log.warn(
                    "changed in {file}, needs a restart: {flags}",
                    file=str(self._file),
                    flags=_listed(restart),
                )


def follow_file(reactor: IReactor, options: CommandOptions[Settings]) -> Following[Settings] | None:
    """Return the service that reloads the file of ``options``, or ``None`` if there is no file."""
    if options.file is None:
        return None
    in_thread = partial(in_own_thread, reactor, "yurttunnel configuration")
    return Following(reactor, in_thread, options, options.file, shown_levels)


def _differences(
    before: CommandOptions[Settings], after: CommandOptions[Settings]
) -> frozenset[str]:
    return frozenset(
        entry.name for entry in after.table if before.texts(entry) != after.texts(entry)
    )


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"--{name}" for name in sorted(names))
