"""Fakes for what a session provides to the dialer, and for name servers."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IHostnameResolver,
    IHostResolution,
    IProtocol,
    IResolutionReceiver,
)
from zope.interface import implementer

from yurttunnel.http.authority import Address
from yurttunnel.tunnel.interfaces import IStreamRequest
from yurttunnel.wire.codes import Code


class FakeStream:
    """Records the calls that ``LocalConnection.join`` makes on a stream."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.protocol: IProtocol | None = None
        self.producer: object = None
        self.aborted: tuple[Code, str] | None = None

    def attach(self, protocol: IProtocol) -> None:
        """Connect ``protocol``."""
        self.protocol = protocol
        protocol.makeConnection(self)

    def write(self, data: bytes) -> None:
        """Store what the socket sent."""
        self.written.append(data)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Store the producer."""
        self.producer = producer

    def abort(self, code: Code, text: str) -> None:
        """Store the reason."""
        self.aborted = (code, text)


@implementer(IStreamRequest)
class FakeRequest:
    """A request that stores its result; more than one fails the test."""

    request_id = "request-1"

    def __init__(self, host: str, port: int, timeout: float = 10.0) -> None:
        self.host = host
        self.port = port
        self.timeout = timeout
        self.stream: FakeStream | None = None
        self.failure: tuple[Code, str] | None = None
        self.cancel: Callable[[], object] | None = None

    @property
    def answered(self) -> bool:
        """Return whether there was a result."""
        return self.stream is not None or self.failure is not None

    def accept(self) -> FakeStream:
        """Accept with a stream."""
        self._answer()
        self.stream = FakeStream()
        return self.stream

    def fail(self, code: Code, text: str) -> None:
        """Record a failure."""
        self._answer()
        self.failure = (code, text)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Store the callback with which the test cancels."""
        self.cancel = callback

    def _answer(self) -> None:
        if self.answered:
            raise AssertionError("the request was answered twice")


class FakeLookups:
    """Name servers whose responses to the dialer the test controls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Deferred[list[Address]]]] = []

    def __call__(self, name: str) -> Deferred[list[Address]]:
        """Store the query."""
        answer: Deferred[list[Address]] = Deferred()
        self.asked.append((name, answer))
        return answer

    def answer(self, *addresses: str) -> None:
        """Respond to the oldest query."""
        self.asked.pop(0)[1].callback([ip_address(address) for address in addresses])

    def fail(self, error: OSError) -> None:
        """Fail it with an error of the system."""
        self.asked.pop(0)[1].errback(error)


@implementer(IHostResolution)
class FakeResolution:
    """A lookup in progress, with the system's interface."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Fail like the system's resolver."""
        raise NotImplementedError("the system's resolver cannot be cancelled")


@implementer(IHostnameResolver)
class FakeNameResolver:
    """Name servers whose responses to Twisted's endpoints the test controls."""

    def __init__(self) -> None:
        self.asked: list[IResolutionReceiver] = []

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: object = None,
        transportSemantics: str = "TCP",
    ) -> FakeResolution:
        """Store the query."""
        self.asked.append(resolutionReceiver)
        resolution = FakeResolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        return resolution

    def answer(self, *addresses: str) -> None:
        """Respond to the oldest query."""
        receiver = self.asked.pop(0)
        for address in addresses:
            receiver.addressResolved(IPv4Address("TCP", address, 0))
        receiver.resolutionComplete()
