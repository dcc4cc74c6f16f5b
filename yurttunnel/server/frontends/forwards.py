"""The forwards of a server: opened and closed while it runs, without a stream that ends for it.

Two say which there are: the configuration (flags, environment, file) and people with their
commands. The last word about an address counts:

- A command opens, closes or replaces any forward, wherever it comes from. What it has done lasts
  until the process ends, or until the configuration says something else about that address.
- A change of the configuration opens what is new in it, replaces what is another, whoever has
  opened that, and closes what it no longer has, if that was still its own. What stands there as
  before is left alone: it may be that a command has closed it.

A change is made as a whole or not at all. New ports are opened before old ones are closed. Where
only the target is another, the port stays open, and those who connect from then on reach the new
one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, DeferredLock, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.configuration.following import ChangeRefused
from yurttunnel.ops.listen import CannotListen
from yurttunnel.server.frontends.forward import Forward, ForwardFactory, Listen


class ForwardRefused(ChangeRefused):
    """A forward cannot be opened, or there is none to close; a sentence says why."""


class Origin(enum.StrEnum):
    """Who has opened a forward."""

    CONFIGURATION = "configuration"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class ForwardState:
    """A forward that is open, who has opened it, and how many connections it has."""

    forward: Forward
    origin: Origin
    connections: int


Listens = Callable[[str, str, int, ForwardFactory], IListeningPort]
"""Listens for a flag on an address and a port, or raises :class:`CannotListen` that names it."""


@dataclass(slots=True, eq=False)
class _Open:
    origin: Origin
    factory: ForwardFactory
    port: IListeningPort

    @property
    def forward(self) -> Forward:
        return self.factory.forward

    def port_is(self, other: Forward) -> bool:
        return self.forward.listen_port == other.listen_port


class Forwards:
    """Opens ports and closes them; to the service it is one listener and one caller.

    ``make(forward)`` gives what accepts connections, with its gates and its audit log, and
    ``configured`` are the first ones of the configuration. Changes are made one after the other.
    Nothing can be added or removed before :meth:`listen`, nor behind :meth:`stopListening`.
    """

    _log = Logger()

    def __init__(
        self,
        make: Callable[[Forward], ForwardFactory],
        listen: Listens,
        configured: Sequence[Forward],
    ) -> None:
        self._make = make
        self._listen_on = listen
        self._configured: Mapping[Listen, Forward] = _by_listen(configured)
        self._open: dict[Listen, _Open] = {}
        self._closed: set[ForwardFactory] = set()
        self._listening = False
        self._lock = DeferredLock()

    def states(self) -> list[ForwardState]:
        """Return the forwards that are open, by address."""
        return [
            ForwardState(each.forward, each.origin, len(each.factory.connections))
            for _, each in sorted(self._open.items())
        ]

    # -- changes -------------------------------------------------------------------------------

    def add(self, forward: Forward, replace: bool = False) -> Deferred[None]:
        """Open a forward for a command; what is at its address already only goes to ``replace``.

        Fails with :class:`ForwardRefused`.
        """
        return self._in_turn(self._add(forward, replace))

    def remove(self, listen: Listen) -> Deferred[Forward]:
        """Close the forward at an address for a command; its connections go on.

        Fails with :class:`ForwardRefused`.
        """
        return self._in_turn(self._remove(listen))

    def configure(self, forwards: Sequence[Forward]) -> Deferred[None]:
        """Have what the configuration says now; see above what that means for other forwards.

        Fails with :class:`ForwardRefused`; then everything is as before.
        """
        return self._in_turn(self._configure(_by_listen(forwards)))

    def _in_turn(self, change: Coroutine[Deferred[Any], Any, Any]) -> Deferred[Any]:
        return self._lock.run(Deferred.fromCoroutine, change)

    async def _add(self, forward: Forward, replace: bool) -> None:
        self._check()
        present = self._open.get(forward.listen)
        if present is not None and not replace:
            raise ForwardRefused(
                f"{present.forward.text} is there already: yurttunnel forward rm"
                f" {join_authority(*forward.listen)} closes it, forward add --replace replaces it"
            )
        await self._change({forward.listen: forward}, Origin.COMMAND, ())

    async def _remove(self, listen: Listen) -> Forward:
        self._check()
        present = self._open.get(listen)
        if present is None:
            raise ForwardRefused(f"no forward listens on {join_authority(*listen)}")
        await self._change({}, Origin.COMMAND, (present,))
        return present.forward

    async def _configure(self, forwards: Mapping[Listen, Forward]) -> None:
        if self._listening:
            before = self._configured
            new = {
                listen: forward
                for listen, forward in forwards.items()
                if before.get(listen) != forward
            }
            old = [
                each
                for listen, each in self._open.items()
                if listen not in forwards and each.origin is Origin.CONFIGURATION
            ]
            await self._change(new, Origin.CONFIGURATION, old)
        self._configured = forwards

    async def _change(
        self, new: Mapping[Listen, Forward], origin: Origin, old: Sequence[_Open]
    ) -> None:
        missing = [forward for listen, forward in new.items() if listen not in self._open]
        opened = await self._opened(missing, origin, old)
        for listen, forward in new.items():
            present = self._open.get(listen)
            if present is not None:
                present.factory.lead(forward)
                present.origin = origin
                self._log.info("{forward} has replaced what was there", forward=forward.flag)
        for each in opened:
            self._open[each.forward.listen] = each
            self._log.info("{forward} is open", forward=each.forward.flag)
        await DeferredList([self._close(each) for each in self._still_open(old)])

    async def _opened(
        self, forwards: Sequence[Forward], origin: Origin, old: Sequence[_Open]
    ) -> list[_Open]:
        """Open all ``forwards`` or none.

        Of ``old``, what has the port on another address may be in the way, as 0.0.0.0 and an
        address of this machine are to each other. That is closed first, and opened again when it
        was in vain.
        """
        opened: list[_Open] = []
        gone: list[_Open] = []
        try:
            for forward in forwards:
                try:
                    opened.append(self._bind(forward, origin))
                except ForwardRefused:
                    rivals = [each for each in self._still_open(old) if each.port_is(forward)]
                    if not rivals:
                        raise
                    gone += rivals
                    await DeferredList([self._close(each) for each in rivals])
                    opened.append(self._bind(forward, origin))
        except ForwardRefused:
            await DeferredList([maybeDeferred(each.port.stopListening) for each in opened])
            for each in gone:
                self._open_again(each)
            raise
        return opened

    def _bind(self, forward: Forward, origin: Origin) -> _Open:
        self._check()
        factory = self._make(forward)
        try:
            return _Open(origin, factory, self._listen_on(forward.flag, *forward.listen, factory))
        except CannotListen as error:
            # It would end the process; one that runs goes on as it is.
            by_flag = origin is Origin.CONFIGURATION
            raise ForwardRefused(str(error.code) if by_flag else error.reason) from None

    def _open_again(self, closed: _Open) -> None:
        try:
            self._open[closed.forward.listen] = self._bind(closed.forward, closed.origin)
        except ForwardRefused as error:
            self._log.error("a forward was closed by mistake: {error}", error=error)

    def _still_open(self, some: Sequence[_Open]) -> list[_Open]:
        return [each for each in some if self._open.get(each.forward.listen) is each]

    def _close(self, each: _Open) -> Deferred[Any]:
        forward, factory = each.forward, each.factory
        self._log.info(
            "{forward} is closed; {count} connections of it go on",
            forward=forward.flag,
            count=len(factory.connections),
        )
        del self._open[forward.listen]
        self._leave(factory)
        return maybeDeferred(each.port.stopListening)

    def _leave(self, factory: ForwardFactory) -> None:
        """Know its connections until the last of them has ended, for the end of the server."""
        self._closed.add(factory)
        _ = factory.drain().addCallback(lambda _: self._closed.discard(factory))

    def _check(self) -> None:
        if not self._listening:
            raise ForwardRefused("this server accepts no calls now: it is starting or stopping")

    # -- what the service does -----------------------------------------------------------------

    def listen(self) -> Forwards:
        """Open those of the configuration; raises :class:`CannotListen` and opens none."""
        try:
            for forward in self._configured.values():
                factory = self._make(forward)
                port = self._listen_on(forward.flag, *forward.listen, factory)
                self._open[forward.listen] = _Open(Origin.CONFIGURATION, factory, port)
        except CannotListen:
            _ = self.stopListening()
            raise
        self._listening = True
        return self

    def stopListening(self) -> Deferred[Any]:
        """Close all ports; connections go on."""
        self._listening = False
        open_now, self._open = self._open, {}
        for each in open_now.values():
            self._leave(each.factory)
        return DeferredList([maybeDeferred(each.port.stopListening) for each in open_now.values()])

    def drain(self) -> Deferred[Any]:
        """Return what fires when no connection is left; behind :meth:`stopListening`."""
        return DeferredList([factory.drain() for factory in self._closed])

    def close(self) -> None:
        """Abort every connection."""
        for factory in tuple(self._closed):
            factory.close()


def _by_listen(forwards: Sequence[Forward]) -> dict[Listen, Forward]:
    return {forward.listen: forward for forward in forwards}
