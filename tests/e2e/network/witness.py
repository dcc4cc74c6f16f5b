"""Somebody who listens on a machine, and tells by HTTP which machine that is."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import LoopingCall

from tests.e2e.network.sites import Sites

_TICK_SECONDS = 0.02
_LONGEST_HEAD = 64 * 1024


class Witness(Factory):
    """Answers each request with ``MACHINE PEER``: where it is, and the address of who asks.

    Connections are kept, so that a test can ask again on the same one.
    """

    noisy = False

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.connections: list[_Connection] = []

    def buildProtocol(self, addr) -> _Connection:
        """Take a connection."""
        connection = _Connection(self.machine)
        self.connections.append(connection)
        return connection

    def talk(self, port: int) -> None:
        """Send something again and again to who is connected from a port, as a log does."""
        [connection] = [one for one in self.connections if one.transport.getPeer().port == port]
        connection.talk()

    async def stop(self, port) -> None:
        """Close the port and all connections."""
        await port.stopListening()
        for connection in self.connections:
            connection.end()


class _Connection(Protocol):
    """Reads heads of requests, and answers them."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._head = b""
        self._talking = LoopingCall(lambda: self.transport.write(b"tick\n"))

    def talk(self) -> None:
        """Send something until the connection ends."""
        self._talking.start(_TICK_SECONDS)

    def end(self) -> None:
        """End the connection."""
        self.transport.abortConnection()

    def connectionLost(self, reason) -> None:
        """Send nothing more."""
        if self._talking.running:
            self._talking.stop()

    def dataReceived(self, data: bytes) -> None:
        """Answer each head that is complete."""
        self._head = (self._head + data)[-_LONGEST_HEAD:]
        while b"\r\n\r\n" in self._head:
            _, _, self._head = self._head.partition(b"\r\n\r\n")
            body = f"{self._machine} {self.transport.getPeer().host}".encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)


def start_witness(test, reactor, network: Sites, machine: str, address: str, port: int) -> Witness:
    """Have a witness listen on a machine until ``test`` ends."""
    witness = Witness(machine)
    with network.inside(machine):
        listening = reactor.listenTCP(port, witness, interface=address)
    test.addCleanup(lambda: Deferred.fromCoroutine(witness.stop(listening)))
    return witness
