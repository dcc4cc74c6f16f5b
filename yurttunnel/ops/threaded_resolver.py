"""Name lookups by the system's resolver that do not delay the end of the process.

A lookup can take half a minute if no name server responds, and cannot be interrupted. Twisted
runs it in the reactor's thread pool, which must finish before the process can exit.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IResolutionReceiver,
)
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.ops.threads import run_in_new_thread
from yurttunnel.tunnel.named_endpoint import to_ascii
from yurttunnel.tunnel.reactor import IReactor

MAX_LOOKUPS = 64
"""The maximum number of concurrent lookups; a name has one at a time. Beyond it, lookups return no
addresses."""

THREAD = "yurttunnel lookup"

_FAMILIES = {IPv4Address: socket.AF_INET, IPv6Address: socket.AF_INET6}
_SOCKETS = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}

_Query = tuple[str, int, int, int]
"""The name, port, family and kind of socket, as for getaddrinfo(3)."""

_AddressInfo = list[tuple[Any, ...]]


@implementer(IHostResolution)
class _Resolution:
    """A caller that waits for a lookup, until it cancels."""

    def __init__(self, name: str, receiver: IResolutionReceiver) -> None:
        self.name = name
        self.receiver: IResolutionReceiver | None = receiver

    def cancel(self) -> None:
        """Discard the result; the system's resolver continues."""
        self.receiver = None


@implementer(IHostnameResolver)
class ThreadedResolver:
    """The system's resolver for a reactor, in threads that do not outlive the process."""

    _log = Logger()

    def __init__(self, reactor: IReactor) -> None:
        self._reactor = reactor
        self._limited = RateLimitedLog(reactor, self._log)
        self._waiting: dict[_Query, list[_Resolution]] = {}

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Sequence[type[IAddress]] | None = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        resolution = _Resolution(hostName, resolutionReceiver)
        resolutionReceiver.resolutionBegan(resolution)
        kinds = {_FAMILIES[each] for each in addressTypes or _FAMILIES if each in _FAMILIES}
        family = kinds.pop() if len(kinds) == 1 else socket.AF_UNSPEC
        query = (hostName, portNumber, int(family), int(_SOCKETS[transportSemantics]))
        waiting = self._waiting.get(query)
        if waiting is not None:
            waiting[:] = [each for each in waiting if each.receiver is not None] + [resolution]
        elif len(self._waiting) >= MAX_LOOKUPS:
            self._limited.warn(
                "{name} is not resolved: too many lookups are running", name=hostName
            )
            resolutionReceiver.resolutionComplete()
        else:
            self._waiting[query] = [resolution]
            self._begin(query, transportSemantics)
        return resolution

    def _begin(self, query: _Query, semantics: str) -> None:
        try:
            lookup = run_in_new_thread(self._reactor, THREAD, _getaddrinfo, query)
        except RuntimeError as error:
            self._end(Failure(error), query, semantics)
        else:
            _ = lookup.addBoth(self._end, query, semantics)

    def _end(self, found: _AddressInfo | Failure, query: _Query, semantics: str) -> None:
        if isinstance(found, Failure):
            if found.check(OSError, UnicodeError) is None:
                self._log.failure("{name} cannot be looked up", found, name=query[0])
            found = []
        kinds = {family: kind for kind, family in _FAMILIES.items()}
        for receiver in [each.receiver for each in self._waiting.pop(query)]:
            if receiver is not None:
                for family, _, _, _, address in found:
                    receiver.addressResolved(kinds[family](semantics, *address))
                receiver.resolutionComplete()


def _getaddrinfo(query: _Query) -> _AddressInfo:
    name, *rest = query
    return socket.getaddrinfo(to_ascii(name), *rest)
