"""The forwards of a server, opened and closed while it runs, without ending any stream.

Forwards have two sources: the configuration (flags, environment, file) and commands of users. The
most recent change of an address wins:

- A command opens, closes or replaces any forward, whatever its source. Its effect lasts until the
  process ends, or until the configuration changes for that address.
- A change of the configuration opens new forwards, replaces changed ones, whoever opened them, and
  closes removed ones that the configuration had opened. Unchanged entries are not touched: a
  command may have closed their forwards.

A change is atomic. New ports are opened before old ones are closed. If only the target changes, the
port stays open, and new connections reach the new target.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, DeferredList, DeferredLock, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.configuration.reloading import ChangeRejected
from yurttunnel.ops.listen import CannotListen
from yurttunnel.server.frontends.forward import Forward, ForwardFactory, Listen


class ForwardRefused(ChangeRejected):
    """A forward cannot be opened, or there is none to close; the text is the reason."""


class Origin(enum.StrEnum):
    """The source that opened a forward."""

    CONFIGURATION = "configuration"
    COMMAND = "command"


class ForwardState(NamedTuple):
    """An open forward, its origin, and its number of connections."""

    forward: Forward
    origin: Origin
    connections: int


ListenFunction = Callable[[str, str, int, ForwardFactory], IListeningPort]
"""Listens for a flag on an address and port, or raises :class:`CannotListen`, which names it."""


@dataclass(slots=True, eq=False)
class _OpenForward:
    origin: Origin
    factory: ForwardFactory
    port: IListeningPort

    @property
    def forward(self) -> Forward:
        return self.factory.forward

    def has_same_port(self, other: Forward) -> bool:
        return self.forward.listen_port == other.listen_port


class Forwards:
    """Opens and closes forwards; the service treats it as one listener and one caller.

    ``make(forward)`` returns the factory of a forward, with its gates and its audit log, and
    ``configured`` are the initial forwards of the configuration. Changes are made one at a time.
    They are rejected before :meth:`listen` and after :meth:`stopListening`.
    """

    _log = Logger()

    def __init__(
        self,
        make: Callable[[Forward], ForwardFactory],
        listen: ListenFunction,
        configured: Sequence[Forward],
    ) -> None:
        self._make = make
        self._listen_on = listen
        self._configured: Mapping[Listen, Forward] = _by_listen(configured)
        self._open: dict[Listen, _OpenForward] = {}
        self._closed: set[ForwardFactory] = set()
        self._listening = False
        self._lock = DeferredLock()

    def states(self) -> list[ForwardState]:
        """Return the open forwards, sorted by address."""
        return [
            ForwardState(each.forward, each.origin, len(each.factory.connections))
            for _, each in sorted(self._open.items())
        ]

    # -- changes -------------------------------------------------------------------------------

    def add(self, forward: Forward, replace: bool = False) -> Deferred[None]:
        """Open a forward for a command; it replaces one at the same address only with ``replace``.

        Fails with :class:`ForwardRefused`.
        """
        return self._serialized(self._add(forward, replace))

    def remove(self, listen: Listen) -> Deferred[Forward]:
        """Close the forward at an address for a command; its connections continue.

        Fails with :class:`ForwardRefused`.
        """
        return self._serialized(self._remove(listen))

    def configure(self, forwards: Sequence[Forward]) -> Deferred[None]:
        """Apply a new configuration; the module docstring describes the effect on other forwards.

        Fails with :class:`ForwardRefused`, and then changes nothing.
        """
        return self._serialized(self._configure(_by_listen(forwards)))

    def _serialized(self, change: Coroutine[Deferred[Any], Any, Any]) -> Deferred[Any]:
        return self._lock.run(Deferred.fromCoroutine, change)

    async def _add(self, forward: Forward, replace: bool) -> None:
        self._check_listening()
        existing = self._open.get(forward.listen)
        if existing is not None and not replace:
            raise ForwardRefused(
                f"{existing.forward.text} is open already: yurttunnel forward rm"
                f" {join_authority(*forward.listen)} closes it, forward add --replace replaces it"
            )
        await self._change({forward.listen: forward}, Origin.COMMAND, ())

    async def _remove(self, listen: Listen) -> Forward:
        self._check_listening()
        existing = self._open.get(listen)
        if existing is None:
            raise ForwardRefused(f"no forward listens on {join_authority(*listen)}")
        await self._change({}, Origin.COMMAND, (existing,))
        return existing.forward

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
        self, new: Mapping[Listen, Forward], origin: Origin, old: Sequence[_OpenForward]
    ) -> None:
        missing = [forward for listen, forward in new.items() if listen not in self._open]
        opened = await self._open_all(missing, origin, old)
        for listen, forward in new.items():
            existing = self._open.get(listen)
            if existing is not None:
                existing.factory.set_target(forward)
                existing.origin = origin
                self._log.info(
                    "{forward} has replaced the forward of its address", forward=forward.flag
                )
        for each in opened:
            self._open[each.forward.listen] = each
            self._log.info("{forward} is open", forward=each.forward.flag)
        await DeferredList([self._close(each) for each in self._still_open(old)])

    async def _open_all(
        self, forwards: Sequence[Forward], origin: Origin, old: Sequence[_OpenForward]
    ) -> list[_OpenForward]:
        """Open all ``forwards`` or none.

        A forward of ``old`` with the same port on another address may conflict, as 0.0.0.0 does
        with an address of this machine. It is closed first, and opened again if the change fails.
        """
        opened: list[_OpenForward] = []
        gone: list[_OpenForward] = []
        try:
            for forward in forwards:
                try:
                    opened.append(self._bind(forward, origin))
                except ForwardRefused:
                    conflicting = [
                        each for each in self._still_open(old) if each.has_same_port(forward)
                    ]
                    if not conflicting:
                        raise
                    gone += conflicting
                    await DeferredList([self._close(each) for each in conflicting])
                    opened.append(self._bind(forward, origin))
        except ForwardRefused:
            await DeferredList([maybeDeferred(each.port.stopListening) for each in opened])
            for each in gone:
                self._reopen(each)
            raise
        return opened

    def _bind(self, forward: Forward, origin: Origin) -> _OpenForward:
        self._check_listening()
        factory = self._make(forward)
        try:
            return _OpenForward(
                origin, factory, self._listen_on(forward.flag, *forward.listen, factory)
            )
        except CannotListen as error:
            # At startup this ends the process; a running server continues unchanged.
            by_flag = origin is Origin.CONFIGURATION
            raise ForwardRefused(str(error.code) if by_flag else error.reason) from None

    def _reopen(self, closed: _OpenForward) -> None:
        try:
            self._open[closed.forward.listen] = self._bind(closed.forward, closed.origin)
        except ForwardRefused as error:
            self._log.error("a forward was closed by mistake: {error}", error=error)

    def _still_open(self, some: Sequence[_OpenForward]) -> list[_OpenForward]:
        return [each for each in some if self._open.get(each.forward.listen) is each]

    def _close(self, each: _OpenForward) -> Deferred[Any]:
        forward, factory = each.forward, each.factory
        self._log.info(
            "{forward} is closed; {count} of its connections continue",
            forward=forward.flag,
            count=len(factory.connections),
        )
        del self._open[forward.listen]
        self._track_until_drained(factory)
        return maybeDeferred(each.port.stopListening)

    def _track_until_drained(self, factory: ForwardFactory) -> None:
        """Track its connections until the last has ended, so that a shutdown includes them."""
        self._closed.add(factory)
        _ = factory.drain().addCallback(lambda _: self._closed.discard(factory))

    def _check_listening(self) -> None:
        if not self._listening:
            raise ForwardRefused("this server does not listen: it is starting or stopping")

    # -- for the service -----------------------------------------------------------------------

    def listen(self) -> Forwards:
        """Open the configured forwards; raises :class:`CannotListen` and then opens none."""
        try:
            for forward in self._configured.values():
                factory = self._make(forward)
                port = self._listen_on(forward.flag, *forward.listen, factory)
                self._open[forward.listen] = _OpenForward(Origin.CONFIGURATION, factory, port)
        except CannotListen:
            _ = self.stopListening()
            raise
        self._listening = True
        return self

    def stopListening(self) -> Deferred[Any]:
        """Close all ports; connections continue."""
        self._listening = False
        open_now, self._open = self._open, {}
        for each in open_now.values():
            self._track_until_drained(each.factory)
        return DeferredList([maybeDeferred(each.port.stopListening) for each in open_now.values()])

    def drain(self) -> Deferred[Any]:
        """Return a ``Deferred`` that fires when no connection is left; for after
        :meth:`stopListening`.
        """
        return DeferredList([factory.drain() for factory in self._closed])

    def close(self) -> None:
        """Abort all connections."""
        for factory in tuple(self._closed):
            factory.close()


def _by_listen(forwards: Sequence[Forward]) -> dict[Listen, Forward]:
    return {forward.listen: forward for forward in forwards}
