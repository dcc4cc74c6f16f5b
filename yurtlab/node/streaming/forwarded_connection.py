"""One connection of a port-forward: as it is offered to the node, and as a transport."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol as Structure
from typing import cast

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IAddress,
    IHalfCloseableProtocol,
    IProducer,
    IProtocol,
    IPushProducer,
    IReactorTime,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.interfaces import IForwardedConnection
from yurtlab.node.streaming.connection import InputBudget, InputGate, Sources
from yurttunnel.tunnel.interfaces import IHalfCloseableTransport, IStream


class ForwardedChannels(Structure):
    """What carries a forwarded connection: a direction each way for data, and one for errors."""

    sources: Sources
    budget: InputBudget

    def write(self, data: bytes) -> None:
        """Send data to the client."""

    def finish(self) -> None:
        """Send the client the end of the data, and that there was no error."""

    def reset(self) -> None:
        """Notify the client that the connection broke off."""

    def refuse(self, text: str) -> None:
        """Notify the client why there is no connection, and end it."""


@implementer(IForwardedConnection, IHalfCloseableTransport)
class ForwardedConnection:
    """A connection that a client forwards, before and after the node has accepted it.

    As a socket would, it never calls ``connectionLost`` from within a method that its user calls.
    What the client sends is kept until a protocol is attached.
    """

    # Twisted's convention: a transport that is being closed says so.
    disconnecting = False

    def __init__(self, clock: IReactorTime, channels: ForwardedChannels, address: IAddress) -> None:
        self._clock = clock
        self._channels = channels
        self._address = address
        self.input = InputGate(channels.budget, self._deliver, self._input_ended)
        """Takes what the client sends."""
        self._protocol: IProtocol | None = None
        self._producer: IPushProducer | None = None
        self._desired = True
        self._sending = True
        self._receiving = True
        self._end: Failure | None = None

    # -- IForwardedConnection ------------------------------------------------------------------

    def accept(self) -> IStream:
        """Return the client's side as a transport."""
        # It has all that joining it to a socket needs of a stream.
        return self  # type: ignore[return-value] # see above

    def refuse(self, text: str) -> None:
        """Notify the client why there is no connection."""
        if self._sending:
            self._sending = False
            self.input.discard()
            self._channels.refuse(text)

    def attach(self, protocol: IProtocol) -> None:
        """Connect ``protocol``, which then gets what the client has sent; called once."""
        self._protocol = protocol
        protocol.makeConnection(self)
        if self._end is not None:
            self._clock.callLater(0, self._tell_end)
        elif self._desired:
            self.input.open()

    # -- from the client -----------------------------------------------------------------------

    def client_closed(self) -> None:
        """Take note that the client sends no more and reads no more."""
        self._sending = False
        self.input.finish()

    def client_reset(self) -> None:
        """Take note that the client has given the connection up."""
        self._lose(Failure(ConnectionLost("the client has given the connection up")))

    def client_lost(self) -> None:
        """Take note that the client has gone, perhaps after both directions had ended."""
        if self._sending or not self.input.complete:
            self._lose(Failure(ConnectionLost("the client of the port-forward has gone")))

    # -- ITransport ----------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if isinstance(data, str):
            raise TypeError("a connection carries bytes, not text")
        if self._sending:
            self._channels.write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseWriteConnection(self) -> None:
        """End this direction; the other goes on."""
        if self._sending:
            self._finish_sending()
            self._clock.callLater(0, self._sending_ended)

    def loseConnection(self) -> None:
        """End this direction, and want nothing from the other."""
        if self.disconnecting or self._end is not None:
            return
        self.disconnecting = True
        self.input.discard()
        if self._sending:
            self._finish_sending()
        self._set_end(Failure(ConnectionDone()))

    def abortConnection(self) -> None:
        """Break off, so that what was sent does not look complete."""
        if self._end is None:
            self._sending = False
            self.input.discard()
            self._channels.reset()
            self._set_end(Failure(ConnectionAborted()))

    def abort(self, code: object, text: str) -> None:
        """Break off; what the error of another connection is does not concern this client's."""
        self.abortConnection()

    def getPeer(self) -> IAddress:
        return self._address

    def getHost(self) -> IAddress:
        """Name the client, too: this end has no address of its own."""
        return self._address

    # -- IPushProducer: what comes from the client ---------------------------------------------

    def pauseProducing(self) -> None:
        self._desired = False
        self.input.shut()

    def resumeProducing(self) -> None:
        self._desired = True
        if self._protocol is not None and self._end is None:
            self.input.open()

    def stopProducing(self) -> None:
        """Close the connection: its consumer is gone."""
        self.loseConnection()

    # -- IConsumer: what goes to the client ----------------------------------------------------

    def registerProducer(self, producer: IProducer, streaming: bool) -> None:
        """Pause ``producer`` while the client does not keep up.

        Raises ``ValueError`` for a producer that is to be pulled: nobody here has one.
        """
        if self._producer is not None:
            raise RuntimeError(f"{self!r} already has a producer")
        if not streaming:
            raise ValueError("only producers that push are paused")
        if self._end is not None:
            producer.stopProducing()
            return
        # Cast, not adapted: sockets do not ask producers to declare what they are either.
        self._producer = cast("IPushProducer", producer)
        self._channels.sources.add(self._producer)

    def unregisterProducer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._channels.sources.discard(producer)

    # -- helpers -------------------------------------------------------------------------------

    def _deliver(self, data: bytes) -> None:
        # Looked up each time, because protocols may replace their dataReceived.
        self._protocol.dataReceived(data)  # type: ignore[union-attr] # the gate is shut before

    def _input_ended(self) -> None:
        self._receiving = False
        if IHalfCloseableProtocol.providedBy(self._protocol):
            IHalfCloseableProtocol(self._protocol).readConnectionLost()
            self._settle()
        else:
            self.loseConnection()

    def _finish_sending(self) -> None:
        self._sending = False
        self._channels.finish()

    def _sending_ended(self) -> None:
        if self._end is None and IHalfCloseableProtocol.providedBy(self._protocol):
            IHalfCloseableProtocol(self._protocol).writeConnectionLost()
        self._settle()

    def _settle(self) -> None:
        if not self._sending and not self._receiving and self._end is None:
            self._set_end(Failure(ConnectionDone()))

    def _lose(self, reason: Failure) -> None:
        if self._end is None:
            self._sending = False
            self.input.discard()
            self._set_end(reason)

    def _set_end(self, reason: Failure) -> None:
        self._end = reason
        self._clock.callLater(0, self._tell_end)

    def _tell_end(self) -> None:
        producer = self._producer
        self.unregisterProducer()
        protocol, self._protocol = self._protocol, None
        if protocol is None or self._end is None:
            return
        if producer is not None:
            producer.stopProducing()
        protocol.connectionLost(self._end)
