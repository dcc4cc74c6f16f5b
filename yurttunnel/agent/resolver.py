"""Name resolution on the agent's node: its own names are known, others are looked up."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from yurttunnel.http.authority import Address
from yurttunnel.ops.threaded_resolver import THREAD
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.tunnel.reactor import IReactor

MAX_LOOKUPS = 64
"""The maximum number of lookups in flight. The system's resolver runs in threads that cannot be
interrupted, so a lookup counts until it ends, even if nobody waits for it any longer."""

LookUp = Callable[[str], Deferred[list[Address]]]
"""Fires with the addresses of a name, none if it has none; fails with ``OSError``."""

_Waiting = list[Deferred[list[Address]]]
"""The waiters for one lookup."""

_NO_ADDRESS = frozenset(
    getattr(socket, name, socket.EAI_NONAME)
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY")
)
"""The errors of getaddrinfo(3) about the name, not the lookup. POSIX has the first."""


class TooManyLookups(Exception):
    """No lookup was started, because :data:`MAX_LOOKUPS` others are in flight."""


def system_lookups(reactor: IReactor) -> LookUp:
    """Return a function that uses the system's resolver, in threads that do not delay the exit.

    The reactor's resolver does not report why there are no addresses.
    """

    def look_up(name: str) -> Deferred[list[Address]]:
        try:
            return run_in_new_thread(reactor, THREAD, addresses_of, name)
        except RuntimeError as error:
            return fail(OSError(errno.EAGAIN, str(error)))

    return look_up


def addresses_of(name: str) -> list[Address]:
    """Return the addresses of a name in the system's order of preference; blocks.

    Raises ``OSError`` if the lookup failed, for example without a free descriptor or a responding
    name server.
    """
    try:
        results = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno not in _NO_ADDRESS:
            raise
        return []
    except UnicodeError:
        # It is not a valid name: a label is empty or too long.
        return []
    return list(dict.fromkeys(_address(end) for *_, end in results))


def _address(end: tuple[Any, ...]) -> Address:
    """Return the address of a ``sockaddr``, with the zone of a link-local one."""
    host, *_, scope = end if len(end) > 2 else (*end, 0)
    zone = f"%{scope}" if scope and "%" not in host else ""
    return ip_address(f"{host}{zone}")


class NodeResolver:
    """Resolves names as seen from the node.

    ``own_names`` maps the node's own names, in lower case and without final dot, to addresses of
    the node. They need no lookup, so that the node can be reached by its name even if no name
    server knows it.
    """

    def __init__(
        self,
        look_up: LookUp,
        own_names: Mapping[str, Sequence[Address]],
        max_lookups: int = MAX_LOOKUPS,
    ) -> None:
        self._look_up = look_up
        self._own_names = dict(own_names)
        self._max_lookups = max_lookups
        self.lookups = 0
        self._waiting: dict[str, _Waiting] = {}

    def own_addresses(self, name: str) -> Sequence[Address] | None:
        """Return the addresses of one of the node's own names, ``None`` for other names."""
        return self._own_names.get(name)

    def look_up(self, name: str) -> Deferred[list[Address]]:
        """Resolve ``name`` without blocking.

        Concurrent lookups of the same name are shared. Fires with the addresses in the system's
        order of preference, none if the name has none; fails with :class:`TooManyLookups`, or with
        ``OSError`` if the lookup failed. There is no timeout here: callers cancel the Deferred.
        """
        waiting = self._waiting.get(name)
        if waiting is not None:
            return self._wait(name, waiting)
        if self.lookups >= self._max_lookups:
            return fail(TooManyLookups(f"{self.lookups} name lookups are in progress"))
        self.lookups += 1
        waiting = self._waiting[name] = []
        found = self._wait(name, waiting)
        _ = self._look_up(name).addBoth(self._ended, name, waiting)
        return found

    def _wait(self, name: str, waiting: _Waiting) -> Deferred[list[Address]]:
        """Return a ``Deferred`` of the addresses; cancelling it affects no other waiter."""

        def cancelled(found: Deferred[list[Address]]) -> None:
            if found in waiting:
                waiting.remove(found)
            if not waiting:
                self._stop_sharing(name, waiting)

        found: Deferred[list[Address]] = Deferred(cancelled)
        waiting.append(found)
        return found

    def _ended(self, outcome: list[Address] | Failure, name: str, waiting: _Waiting) -> None:
        """Report the addresses, or the failure, to the remaining waiters."""
        self.lookups -= 1
        self._stop_sharing(name, waiting)
        waiters = list(waiting)
        waiting.clear()
        for found in waiters:
            # The callback of an earlier waiter may have cancelled this one.
            if not found.called:
                found.callback(outcome)

    def _stop_sharing(self, name: str, waiting: _Waiting) -> None:
        """Start a new lookup for later requests of ``name``: this one may hang."""
        if self._waiting.get(name) is waiting:
            del self._waiting[name]
