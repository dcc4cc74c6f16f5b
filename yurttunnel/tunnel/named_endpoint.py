"""Host names: their ASCII form, and an endpoint that dials another address after a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from zope.interface import implementer

from yurttunnel.tunnel.reactor import IReactor


@implementer(IResolutionReceiver)
class _RotatedAddresses:
    """Passes the addresses of a name on to ``receiver``, the first ``skip`` of them last."""

    def __init__(self, receiver: IResolutionReceiver, skip: int) -> None:
        self.resolutionBegan = receiver.resolutionBegan
        self._receiver = receiver
        self._skip = skip
        self._addresses: list[IAddress] = []

    def addressResolved(self, address: IAddress) -> None:
        self._addresses.append(address)

    def resolutionComplete(self) -> None:
        """Pass the addresses on."""
        first = self._skip % max(1, len(self._addresses))
        for address in self._addresses[first:] + self._addresses[:first]:
            self._receiver.addressResolved(address)
        self._receiver.resolutionComplete()


@implementer(IReactorPluggableNameResolver, IHostnameResolver)
class _RotatingReactor:
    """``reactor``, with a resolver that moves the first ``skip()`` addresses of a name to the end.

    Twisted's ``HostnameEndpoint`` always returns the first connection, also if the server there
    then does not respond, or is not the right one.
    """

    def __init__(self, reactor: IReactor, skip: Callable[[], int]) -> None:
        self._reactor = reactor
        self._skip = skip
        self.nameResolver = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)

    def resolveHostName(
        self, resolutionReceiver: IResolutionReceiver, *args: Any, **kwargs: Any
    ) -> IHostResolution:
        receiver = _RotatedAddresses(resolutionReceiver, self._skip())
        return self._reactor.nameResolver.resolveHostName(receiver, *args, **kwargs)


def named_endpoint(
    reactor: IReactor, host: str | bytes, port: int, timeout: float, skip: Callable[[], int]
) -> HostnameEndpoint:
    """Return an endpoint whose attempts dial the first ``skip()`` addresses of ``host`` last.

    ``skip()`` is taken modulo the number of addresses. Each address has ``timeout`` seconds.
    """
    rotating = _RotatingReactor(reactor, skip)
    return HostnameEndpoint(rotating, host, port, timeout=timeout, attemptDelay=0.25)


MAX_LABEL = 63
"""The maximum number of characters in a label (RFC 1035)."""


def to_ascii(name: str) -> bytes:
    """Return ``name`` in ASCII, encoded by IDNA (RFC 3490) where necessary.

    Raises ``UnicodeError`` for an invalid name. ASCII names are returned without Python's codec:
    the result is the same, but loading the codec and its tables takes 0.2 MiB.
    """
    if name.isascii() and all(0 < len(label) <= MAX_LABEL for label in name.split(".")):
        return name.encode("ascii")
    return name.encode("idna")
