"""Stand-ins for what a session gives the dialer, and for name servers."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IProtocol,
    IResolutionReceiver,
)
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStreamRequest
from yurttunnel.wire.codes import Code


class FakeStream:
    """What ``LocalConnection.join`` uses of a stream, written down."""

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
        """Keep what the socket sent."""
        self.written.append(data)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Keep who is to be paused."""
        self.producer = producer

    def abort(self, code: Code, text: str) -> None:
        """Keep the reason."""
        self.aborted = (code, text)


@implementer(IStreamRequest)
class FakeRequest:
    """A request that remembers its answers; more than one is a failure of the test."""

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
        """Whether there was an answer."""
        return self.stream is not None or self.failure is not None

    def accept(self) -> FakeStream:
        """Answer OK."""
        self._answer()
        self.stream = FakeStream()
        return self.stream

    def fail(self, code: Code, text: str) -> None:
        """Answer with a failure."""
        self._answer()
        self.failure = (code, text)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Keep what the test calls to give up."""
        self.cancel = callback

    def _answer(self) -> None:
        if self.answered:
            raise AssertionError("the request was answered twice")


@implementer(IHostResolution)
class FakeResolution:
    """A lookup in progress, as the system has it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Fail as the system's resolver does."""
        raise NotImplementedError("the system's resolver cannot be cancelled")


@implementer(IHostnameResolver)
class FakeNameResolver:
    """Name servers that answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, IResolutionReceiver]] = []

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: object = None,
        transportSemantics: str = "TCP",
    ) -> FakeResolution:
        """Keep the question."""
        self.asked.append((hostName, resolutionReceiver))
        resolution = FakeResolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        return resolution

    def answer(self, *addresses: str) -> None:
        """Answer the oldest question."""
        _, receiver = self.asked.pop(0)
        for address in addresses:
            receiver.addressResolved(_endpoint(address))
        receiver.resolutionComplete()


def _endpoint(address: str) -> IAddress:
    if ":" in address:
        return IPv6Address("TCP", address, 0)
    return IPv4Address("TCP", address, 0)
