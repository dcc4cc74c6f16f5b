"""The agents' port where there are workers: reads whose connection it is, and passes it on.

It needs the ClientHello, which comes first and in the open. What no worker is for is served here:
agents that do not tell their placement, enrolment, and siblings.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol as Structure

from twisted.internet.interfaces import IAddress, IProtocolFactory, IReactorTime
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.deadlines import Deadlines
from yurttunnel.http.evicting_set import EvictingSet
from yurttunnel.server.client_hello import BadClientHello, ClientHello, ClientHelloReader
from yurttunnel.tunnel.connection import HELLO_TIMEOUT, MAX_UNFINISHED
from yurttunnel.tunnel.direct.transport import SocketTransport
from yurttunnel.tunnel.placement import placement_of


class TakesAgents(Structure):
    """The workers, as far as they get connections of agents."""

    on_room: list[Callable[[int], object]]
    """Who is told of a worker, by its number, that takes connections again."""

    def worker_for(self, placement: int) -> int:
        """Return the number of the worker for a placement, 0 for the first process."""

    def take_agent(self, number: int, connection: socket.socket, received: bytes) -> bool:
        """Pass a connection on; ``False`` when the worker cannot take it now."""


class AgentSorter(Factory):
    """Makes the protocols of the agents' port; ``here`` makes those that are served here.

    Each connection has as much time until its ClientHello is complete, and until its worker takes
    it, as it has for its HELLO, and as many may be about it, of which the oldest makes room.
    """

    noisy = False

    def __init__(self, clock: IReactorTime, here: IProtocolFactory, workers: TakesAgents) -> None:
        self.here = here
        self.workers = workers
        self.waiting: Deadlines[UnsortedConnection] = Deadlines(
            clock, HELLO_TIMEOUT, UnsortedConnection.give_up
        )
        self.unsorted = EvictingSet(MAX_UNFINISHED, UnsortedConnection.give_up)
        """The same connections."""
        self._kept: dict[UnsortedConnection, None] = {}
        workers.on_room.append(self._try_again)

    def buildProtocol(self, addr: IAddress | None) -> UnsortedConnection:
        """Take a connection."""
        assert addr is not None  # a connection has one
        return UnsortedConnection(self, addr)

    def keep(self, connection: UnsortedConnection) -> None:
        """Pass ``connection`` on as soon as its worker takes it."""
        self._kept[connection] = None

    def forget(self, connection: UnsortedConnection) -> None:
        """Wait for nothing: it is served, or has gone."""
        self.waiting.discard(connection)
        self.unsorted.end(connection)
        self._kept.pop(connection, None)

    def close(self, *reason: object) -> None:
        """Abort what is still to be sorted."""
        for connection in self.waiting.items():
            connection.give_up()
        self.waiting.stop()

    def _try_again(self, number: int) -> None:
        for connection in [each for each in self._kept if each.worker == number]:
            if not connection.pass_on():
                return


class UnsortedConnection(Protocol):
    """A connection of which nobody knows yet whose it is."""

    transport: SocketTransport

    def __init__(self, sorter: AgentSorter, address: IAddress) -> None:
        self._sorter = sorter
        self._address = address
        self._reader = ClientHelloReader()
        self.worker = 0
        """The number of its worker, 0 until that is known, and for this process."""

    def connectionMade(self) -> None:
        """Wait for the ClientHello."""
        self._sorter.waiting.add(self)
        self._sorter.unsorted.begin(self)

    def dataReceived(self, data: bytes) -> None:
        """Take bytes of it."""
        try:
            hello = self._reader.feed(data)
        except BadClientHello:
            # TLS says best what is wrong with it.
            self._serve_here()
            return
        if hello is not None:
            self._sort(hello)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Wait for nothing any more."""
        self._sorter.forget(self)

    def give_up(self) -> None:
        """End it: it has taken too long, or newer ones want its place."""
        # Its end is told in a later turn; until then no worker may be given it.
        self._sorter.forget(self)
        self.transport.abortConnection()

    def pass_on(self) -> bool:
        """Hand it to its worker, or keep it until that can take it; return which."""
        sorter, transport = self._sorter, self.transport
        taken = sorter.workers.take_agent(self.worker, transport.getHandle(), self._reader.received)
        if taken:
            sorter.forget(self)
            transport.release().close()
        else:
            transport.pauseProducing()
            sorter.keep(self)
        return taken

    def _sort(self, hello: ClientHello) -> None:
        placement = placement_of(hello.protocols)
        if placement is not None:
            self.worker = self._sorter.workers.worker_for(placement)
        if self.worker:
            self.pass_on()
        else:
            self._serve_here()

    def _serve_here(self) -> None:
        sorter, transport = self._sorter, self.transport
        sorter.forget(self)
        protocol = sorter.here.buildProtocol(self._address)
        assert protocol is not None  # who is one too many is known later
        transport.protocol = protocol
        protocol.makeConnection(transport)
        protocol.dataReceived(self._reader.received)
