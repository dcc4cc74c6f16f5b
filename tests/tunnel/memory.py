"""Two sessions connected in memory, with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStream, IStreamAcceptor, IStreamRequest
from yurttunnel.tunnel.session import PeerDescription, SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits
from yurttunnel.wire.session import Side

SESSION_ID = b"s" * 16
SERVER_PROCESS = b"p" * 16
AGENT_PROCESS = b"q" * 16
MIB = 1024 * 1024


@implementer(IStreamAcceptor)
class Acceptor:
    """Stores the peer's requests, and calls ``answer`` with each, if it is set."""

    def __init__(self) -> None:
        self.requests: list[IStreamRequest] = []
        self.answer: Callable[[IStreamRequest], object] | None = None

    def stream_requested(self, request: IStreamRequest) -> None:
        """Store a request, and call ``answer``."""
        self.requests.append(request)
        if self.answer is not None:
            self.answer(request)


class User(Protocol):
    """A plain protocol that records its events, in order, in ``events``."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.reasons: list[Failure] = []

    def connectionMade(self) -> None:
        """Record the event."""
        self.events.append("made")

    def dataReceived(self, data: bytes) -> None:
        """Store data."""
        self.received += data

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Record the event."""
        self.events.append("lost")
        self.reasons.append(reason)


@implementer(IHalfCloseableProtocol)
class HalfCloseUser(User):
    """A :class:`User` with half-close support."""

    def readConnectionLost(self) -> None:
        """Record the end of the peer's direction."""
        self.events.append("read lost")

    def writeConnectionLost(self) -> None:
        """Record the end of this side's direction."""
        self.events.append("write lost")


class Producer:
    """A push producer that records its calls, and does not declare its interface."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def pauseProducing(self) -> None:
        """Record the call."""
        self.events.append("pause")

    def resumeProducing(self) -> None:
        """Record the call."""
        self.events.append("resume")

    def stopProducing(self) -> None:
        """Record the call."""
        self.events.append("stop")


class Bulk:
    """A push producer of ``data``, which starts in the next iteration."""

    def __init__(self, stream: IStream, data: bytes) -> None:
        self.stream = stream
        self.pieces = [data[start : start + 9_000] for start in range(0, len(data), 9_000)]
        self.paused = False
        stream._session.clock.callLater(0, self.resumeProducing)

    def resumeProducing(self) -> None:
        """Write until paused."""
        self.paused = False
        while self.pieces and not self.paused:
            self.stream.write(self.pieces.pop(0))

    def pauseProducing(self) -> None:
        """Stop writing."""
        self.paused = True

    stopProducing = pauseProducing


class MemoryCarrier:
    """A connection without a socket: written data stays in ``sent`` until it is moved.

    The producer is paused while it holds more than ``capacity`` bytes.
    """

    def __init__(self, session: TunnelSession) -> None:
        self.session: TunnelSession | None = session
        self.sent: list[bytes] = []
        self.capacity = 64 * 1024
        self.producer = None
        self.paused = False
        self.ended = False
        self.abandoned = False

    @property
    def size(self) -> int:
        """The number of bytes to be moved."""
        return sum(map(len, self.sent))

    def write(self, data: bytes) -> None:
        """Store data."""
        assert not self.ended and not self.abandoned, "written to after the end"
        self.sent.append(data)
        if self.size > self.capacity and self.producer is not None and not self.paused:
            self.paused = True
            self.producer.pauseProducing()

    def register_producer(self, producer: object) -> None:
        """Store the producer."""
        self.producer = producer

    def end(self) -> None:
        """Record the end; written data is still moved."""
        self.ended = True
        self.session = None

    def abandon(self) -> None:
        """Record the end."""
        self.abandoned = True
        self.session = None
        self.sent.clear()

    def take(self, limit: int) -> bytes:
        """Return the next bytes, at most ``limit`` of them."""
        data = b"".join(self.sent)
        self.sent = [data[limit:]] if len(data) > limit else []
        if self.paused and not self.sent:
            self.paused = False
            if self.session is not None:
                self.producer.resumeProducing()
        return data[:limit]


class SessionPair:
    """A server's and an agent's session and the connection between them.

    ``piece`` is the number of bytes that a session receives at once.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        return_grace: float = 0.5,
        clock: Clock | None = None,
        agent_limits: Limits | None = None,
        server_context: SessionContext | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.acceptor = Acceptor()
        self.piece = 16 * 1024
        self.silent = False
        limits = limits or Limits()
        properties = {"software": "test 1"}
        agent = Hello(agent_limits or limits, NO_SESSION, AGENT_PROCESS, properties=properties)
        server = Hello(limits, SESSION_ID, SERVER_PROCESS, properties=properties)
        self.server_context = server_context or self._context(Acceptor())
        self.agent_context = self._context(self.acceptor)
        description = PeerDescription("server", "edge-1", "192.0.2.1:40000")
        self.server = TunnelSession(
            self.server_context, Side.SERVER, server, agent, description, return_grace
        )
        description = PeerDescription("edge-1", "server", "192.0.2.2:10262")
        self.agent = TunnelSession(self.agent_context, Side.AGENT, agent, server, description)
        self.connect()

    def _context(self, acceptor: IStreamAcceptor) -> SessionContext:
        return SessionContext(self.clock, TunnelCounters(), MemoryBudget(512 * MIB), acceptor)

    def connect(self) -> None:
        """Connect the sessions by a new connection."""
        at_server, at_agent = self.server.wire.received, self.agent.wire.received
        self.server_carrier = MemoryCarrier(self.server)
        self.agent_carrier = MemoryCarrier(self.agent)
        self.server.carry(self.server_carrier, at_agent)
        self.agent.carry(self.agent_carrier, at_server)

    def cut(self, by_peer: bool = True) -> None:
        """Lose the connection with all data in flight."""
        for carrier in (self.server_carrier, self.agent_carrier):
            session, carrier.session = carrier.session, None
            carrier.sent.clear()
            if session is not None:
                session.connection_lost(by_peer)

    def move(self) -> bool:
        """Move a piece in each direction; return whether there was anything to move."""
        moved = False
        for carrier, far in (
            (self.server_carrier, self.agent_carrier),
            (self.agent_carrier, self.server_carrier),
        ):
            data = b"" if self.silent else carrier.take(self.piece)
            if data:
                moved = True
                if far.session is not None:
                    far.session.data_received(data)
        return moved

    def turn(self) -> bool:
        """Run one iteration: the due calls, and a piece in each direction."""
        self.clock.advance(0)
        return self.move()

    def pump(self) -> None:
        """Run iterations until nothing moves any more."""
        idle = 0
        while idle < 3:
            idle = 0 if self.turn() else idle + 1

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass in steps, moving the sent data."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            self.pump()

    def dial(self, timeout: float = 15.0, request_id: str = "request") -> Deferred[IStream]:
        """Open a stream from the server."""
        return self.server.open_stream("192.0.2.80", 80, timeout, request_id)

    def streams(self) -> tuple[IStream, IStream]:
        """Open a stream and accept it; return the server's end and the agent's."""
        opened: list[IStream] = []
        self.acceptor.answer = None
        self.dial().addCallback(opened.append)
        self.pump()
        far = self.acceptor.requests[-1].accept()
        self.pump()
        return opened[0], far

    def joined(self, near: Protocol, far: Protocol) -> tuple[IStream, IStream]:
        """Open a stream between two protocols."""
        near_stream, far_stream = self.streams()
        far_stream.attach(far)
        near_stream.attach(near)
        return near_stream, far_stream

    def joined_while_busy(self, near: Protocol, far: Protocol) -> tuple[IStream, IStream]:
        """Open a stream between two protocols while other streams send without pause."""
        opened: list[IStream] = []
        self.acceptor.answer = lambda request: accepted.append(request.accept())
        accepted: list[IStream] = []
        self.dial().addCallback(opened.append)
        while not opened:
            self.turn()
        accepted[0].attach(far)
        opened[0].attach(near)
        return opened[0], accepted[0]

    def close(self) -> None:
        """End both sessions; everything that their streams held has to be released."""
        self.server.close(Code.DONE, "the test is over")
        self.agent.close(Code.DONE, "the test is over")
        self.pump()
        for session in (self.server, self.agent):
            assert not session.shares.held.total(), session.shares.held
        for context in (self.server_context, self.agent_context):
            assert not context.shares.held.total(), context.shares.held
