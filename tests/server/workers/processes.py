"""Worker processes of which the test plays the other end."""

from __future__ import annotations

import os
import signal
import socket

from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure

from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings.acceptor import SiblingStreams
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.channel import Channel, Message
from yurttunnel.server.workers.link import LinkConnection, link_session
from yurttunnel.server.workers.settings import (
    CONTROL_DESCRIPTOR,
    LINK_DESCRIPTOR,
    STACK_DESCRIPTOR,
)
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.stream_table import Side


class FakeProcess:
    """A process that was started, and the ends of its sockets."""

    def __init__(self, reactor: DirectReactor, protocol, descriptors: dict[int, int]) -> None:
        self._reactor = reactor
        self._session: TunnelSession | None = None
        self.pid = os.getpid()
        self.protocol = protocol
        self.messages: list[Message] = []
        self.signals: list[signal.Signals] = []
        self.ended = False
        self._stack: int | None = os.dup(descriptors[STACK_DESCRIPTOR])
        connection = socket.socket(fileno=os.dup(descriptors[CONTROL_DESCRIPTOR]))
        self.channel = Channel(reactor, connection, self.messages.append, lambda reason: None)
        self.link = socket.socket(fileno=os.dup(descriptors[LINK_DESCRIPTOR]))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the messages that have come."""
        return [message.kind for message in self.messages]

    def be_ready(self) -> None:
        """Take connections, and serve the session with the first process."""
        nodes = SiblingStreams(SessionRegistry(self._reactor))
        context = SessionContext(self._reactor, TunnelCounters(), MemoryBudget(1 << 24), nodes)
        self._session = link_session(context, Side.SERVER, 1)
        connection = LinkConnection(self._session, lambda: None)
        self._reactor.adopt(self.link, lambda _: connection)
        self._link_transport = connection.transport
        self.channel.send(messages.READY)

    @property
    def killed(self) -> bool:
        """Whether it has got SIGKILL."""
        return signal.SIGKILL in self.signals

    def signalProcess(self, number: int) -> None:
        """Remember a signal; of names Twisted knows a few only."""
        self.signals.append(signal.Signals(number))

    def leave_stack(self, text: bytes) -> None:
        """Write what a process writes that is aborted."""
        os.write(self._stack, text)

    def close(self) -> None:
        """Close the descriptors, as the end of a process does."""
        if self._stack is not None:
            os.close(self._stack)
            self._stack = None
        self.channel.close()
        if self._session is None:
            self.link.close()
        else:
            self._link_transport.abortConnection()
            self._session.close(Code.SESSION_LOST, "the process has ended")
        for message in self.messages:
            if message.connection is not None:
                message.connection.close()

    def end(self, number: int | None = None) -> None:
        """End, and have the reactor tell; once."""
        if self.ended:
            return
        self.ended = True
        self.close()
        reason = ProcessDone(0) if number is None else ProcessTerminated(signal=number)
        self.protocol.processExited(Failure(reason))


class FakeProcesses:
    """Starts them, unless ``fails`` is set; time passes and bytes move when the test says so."""

    def __init__(self) -> None:
        self.clock = MemoryReactorClock()
        self.reactor = DirectReactor(self.clock)
        self.started: list[FakeProcess] = []
        self.fails = False

    def spawn(self, protocol, descriptors: dict[int, int]) -> FakeProcess:
        """Start one."""
        if self.fails:
            raise OSError("no memory")
        self.started.append(FakeProcess(self.reactor, protocol, descriptors))
        return self.started[-1]

    def settle(self) -> None:
        """Let the first process read and write all that there is to."""
        for _ in range(4):
            for reader in list(self.clock.readers):
                reader.doRead()
            for writer in list(self.clock.writers):
                writer.doWrite()
            self.clock.advance(0)

    def read(self, process: FakeProcess) -> list[str]:
        """Have a process read all, and give the kinds of all that it has been told."""
        process.channel.read_rest()
        return process.kinds

    def close(self) -> None:
        """Leave nothing open."""
        for process in self.started:
            process.close()
