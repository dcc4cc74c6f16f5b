"""An HTTP server that reports on which machine it runs."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import LoopingCall

from tests.e2e.network.sites import Sites

_TICK_SECONDS = 0.02
_LONGEST_HEAD = 64 * 1024


class Witness(Factory):
    """Responds to each request with ``MACHINE PEER``: its machine, and the client's address.

    Connections are persistent, so that a test can send several requests on one.
    """

    noisy = False

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.connections: list[_Connection] = []

    def buildProtocol(self, addr) -> _Connection:
        """Accept a connection."""
        connection = _Connection(self.machine)
        self.connections.append(connection)
        return connection

    def talk(self, port: int) -> None:
        """Send data repeatedly to the client with a port, like a followed log."""
        [connection] = [one for one in self.connections if one.transport.getPeer().port == port]
        connection.talk()

    async def stop(self, port) -> None:
        """Close the port and all connections."""
        await port.stopListening()
        for connection in self.connections:
            connection.end()


class _Connection(Protocol):
    """Reads the heads of requests, and responds to them."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._head = b""
        self._talking = LoopingCall(lambda: self.transport.write(b"tick\n"))

    def talk(self) -> None:
        """Send data until the connection ends."""
        self._talking.start(_TICK_SECONDS)

    def end(self) -> None:
        """End the connection."""
        self.transport.abortConnection()

    def connectionLost(self, reason) -> None:
        """Stop sending."""
        if self._talking.running:
            self._talking.stop()

    def dataReceived(self, data: bytes) -> None:
        """Respond to each complete head."""
        self._head = (self._head + data)[-_LONGEST_HEAD:]
        while b"\r\n\r\n" in self._head:
            _, _, self._head = self._head.partition(b"\r\n\r\n")
            body = f"{self._machine} {self.transport.getPeer().host}".encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)


def start_witness(test, reactor, network: Sites, machine: str, address: str, port: int) -> Witness:
    """Start a witness on a machine; it listens until ``test`` ends."""
    witness = Witness(machine)
    with network.inside(machine):
        listening = reactor.listenTCP(port, witness, interface=address)
    test.addCleanup(lambda: Deferred.fromCoroutine(witness.stop(listening)))
    return witness
