"""What ``ReconnectingClientFactory`` drives: a connector over any client endpoint."""

from __future__ import annotations

from dataclasses import dataclass

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError, NotConnectingError
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    ITransport,
)
from twisted.internet.protocol import ClientFactory
from twisted.python.failure import Failure
from zope.interface import implementer


@implementer(IAddress)
@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """Wherever ``endpoint`` leads."""

    endpoint: IStreamClientEndpoint


@implementer(IConnector)
class EndpointConnector:
    """Connects ``factory`` through ``endpoint``, again each time it is asked to.

    Twisted's own connectors know one IPv4 address; an endpoint looks names up anew at each
    attempt and races their addresses. The factory is told of failed attempts here; of lost
    connections its protocols tell it.
    """

    def __init__(self, endpoint: IStreamClientEndpoint, factory: ClientFactory) -> None:
        self._endpoint = endpoint
        self._factory = factory
        self._attempt: Deferred[IProtocol] | None = None
        self._transport: ITransport | None = None

    def connect(self) -> None:
        if self._attempt is not None:
            raise RuntimeError("an attempt is under way already")
        self._attempt = self._endpoint.connect(self._factory)
        _ = self._attempt.addCallbacks(self._connected, self._failed)

    def stopConnecting(self) -> None:
        """Give up the attempt that is under way."""
        if self._attempt is None:
            raise NotConnectingError()
        self._attempt.cancel()

    def disconnect(self) -> None:
        """Give up the attempt, or close the connection that it has led to."""
        if self._attempt is not None:
            self._attempt.cancel()
        elif self._transport is not None:
            self._transport.loseConnection()

    def getDestination(self) -> IAddress:
        """Return the destination, which only the endpoint knows."""
        return EndpointAddress(self._endpoint)

    def _connected(self, protocol: IProtocol) -> None:
        self._attempt = None
        self._transport = getattr(protocol, "transport", None)

    def _failed(self, reason: Failure) -> None:
        self._attempt = None
        if not reason.check(CancelledError, ConnectingCancelledError):
            self._factory.clientConnectionFailed(self, reason)


class NotConnectedInTime(Exception):
    """An attempt was given up; the text says to what, and after how long."""


@implementer(IStreamClientEndpoint)
class EndpointWithDeadline:
    """Allows an attempt through ``endpoint`` so many ``seconds``, whatever it waits for.

    The timeout of Twisted's ``HostnameEndpoint`` is for each address; the lookup of the name has
    none there. ``server`` is for the error's text, :class:`NotConnectedInTime`.
    """

    def __init__(
        self, clock: IReactorTime, endpoint: IStreamClientEndpoint, seconds: float, server: str
    ) -> None:
        self._clock = clock
        self._endpoint = endpoint
        self._seconds = seconds
        self._server = server

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect a protocol of ``protocolFactory``, in time."""
        attempt = self._endpoint.connect(protocolFactory)
        return attempt.addTimeout(self._seconds, self._clock, self._too_late)

    def _too_late(self, result: object, seconds: float) -> Failure:
        return Failure(
            NotConnectedInTime(
                f"no connection to {self._server} within {seconds:g} s, the lookup of its name"
                " included"
            )
        )
