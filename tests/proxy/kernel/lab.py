"""A node between clients and endpoints, each in its own network namespace.

::

    client --- node --- (pods) --- endpoint 0, 1, 2 …
    10.5.0.2   10.5.0.1  10.1.0.1  10.1.0.10, .11, .12 …
    fd05::2    fd05::1   fd01::1   fd01::10, ::11, ::12 …

The client's routes lead through the node. The pods' switch may be a bridge of the node.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.protocol import DatagramProtocol, Factory, Protocol, connectionDone
from twisted.internet.task import LoopingCall

from tests.e2e.network.namespaces import Machines, wait_for_ipv6
from yurttunnel.proxy.state.virtual_services import Endpoint

PORT = 8080
NODE = {4: "10.5.0.1", 6: "fd05::1"}
CLIENT = {4: "10.5.0.2", 6: "fd05::2"}
PODS = {4: "10.1.0.1", 6: "fd01::1"}
CLUSTER = {4: "10.96.0.1", 6: "fd96::1"}
EXTERNAL = {4: "192.0.2.1", 6: "2001:db8::1"}

_HOLE = f"""
table inet hole {{
    chain input {{
        type filter hook input priority 0;
        meta l4proto {{ tcp, udp }} th dport {PORT} drop
    }}
}}
"""

_COUNT = """
table inet count {
    counter syns { }
    chain output {
        type filter hook output priority 0;
        tcp flags & (syn | ack) == syn counter name syns
    }
}
"""

_TOTAL_RETRANSMISSIONS = struct.Struct("=I"), 100
"""``tcpi_total_retrans`` of ``struct tcp_info`` of linux/tcp.h."""

_SECONDS = 30.0
_AGAIN = 0.3


def ip(source, destination, protocol, carried, options=b""):
    """Make a packet according to RFC 791 and 8200, without the checksum."""
    if source.version == 6:
        head = struct.pack("!IHBB", 6 << 28, len(carried), protocol, 64)
        return head + source.packed + destination.packed + carried
    size = 20 + len(options)
    whole = size + len(carried)
    head = struct.pack("!BBHHHBBH", 4 << 4 | size // 4, 0, whole, 0, 0, 64, protocol, 0)
    return head + source.packed + destination.packed + options + carried


class Lab(Machines):
    """The network; the thread stays in the node's namespace until :meth:`close`."""

    def __init__(self, endpoints=3, bridged=False):
        self._numbers = range(endpoints)
        self._bridged = bridged
        super().__init__()

    def build(self):
        """Create all machines, and enter the node."""
        self.node, self.client = self.add_machine("node"), self.add_machine("client")
        self.node.forward()
        self.client.link("eth0", self.node, "lan")
        self.client.set_up("eth0", *CLIENT.values(), gateways=NODE.values())
        # A route to addresses of clusters, as a node's default route provides.
        self.node.set_up("lan", *NODE.values(), gateways=CLIENT.values())
        switch = self._switch()
        self.endpoints = []
        for number in self._numbers:
            pod = self.add_machine(f"endpoint {number}")
            switch.plug(f"port{number}", pod, "eth0")
            own = (str(self.address(number, version).address) for version in (4, 6))
            pod.set_up("eth0", *own, gateways=PODS.values())
            self.endpoints.append(pod)
        for machine in self.machines.values():
            with machine.inside():
                wait_for_ipv6()
        self.client.run("nft", "-f", "-", stdin=_COUNT)
        self.node.enter()

    def _switch(self):
        """Create the pods' switch, and return its machine."""
        if self._bridged:
            self.node.add_switch(*PODS.values())
            return self.node
        switch = self.add_machine("switch")
        switch.add_switch()
        switch.plug("port", self.node, "pods")
        self.node.set_up("pods", *PODS.values())
        return switch

    def address(self, number, version=4):
        """Return the endpoint with a number."""
        text = f"10.1.0.{number + 10}" if version == 4 else f"fd01::{number + 10}"
        return Endpoint(ip_address(text), PORT)

    def attempts(self):
        """Return how many first packets the client's machine has sent since the last call."""
        shown = self.client.run("nft", "reset", "counter", "inet", "count", "syns")
        return int(shown.partition("packets ")[2].split()[0])

    def drop(self, number):
        """Have an endpoint's machine drop all packets."""
        self.endpoints[number].run("nft", "-f", "-", stdin=_HOLE)

    def refuse(self, number):
        """Have a firewall in front of an endpoint reject packets by ICMP."""
        self.endpoints[number].run("nft", "-f", "-", stdin=_HOLE.replace("drop", "reject"))

    def tell_too_big(self, router, client, endpoint, most):
        """Report to a client, as a router would, that its packets to an endpoint may have at most
        ``most`` bytes. A client is an address and a port.
        """
        (source, source_port), destination = client, endpoint.address
        sent = struct.pack("!HHHH", source_port, endpoint.port, 9, 0) + b"?"
        about = ip(ip_address(source), destination, socket.IPPROTO_UDP, sent)
        if destination.version == 4:
            packet = struct.pack("!BBHHH", 3, 4, 0, 0, most) + about  # RFC 1191, 4
            sums = sum(struct.unpack(f"!{len(packet) // 2}H", packet[: len(packet) // 2 * 2]))
            sums += 0 if len(packet) % 2 == 0 else packet[-1] << 8
            while sums >> 16:
                sums = (sums & 0xFFFF) + (sums >> 16)
            packet = packet[:2] + struct.pack("!H", sums ^ 0xFFFF) + packet[4:]
            family, protocol = socket.AF_INET, socket.IPPROTO_ICMP
        else:
            packet = struct.pack("!BBHI", 2, 0, 0, most) + about  # RFC 4443, 3.2
            family, protocol = socket.AF_INET6, socket.IPPROTO_ICMPV6
        with self.endpoints[router].inside():
            raw = socket.socket(family, socket.SOCK_RAW, protocol)
        with raw:
            raw.sendto(packet, (source, 0))


class Serving(Protocol):
    """Sends its name and the client's address, and keeps the connection."""

    def __init__(self):
        self.lost = Deferred()

    def connectionMade(self):
        """Send both."""
        self.factory.connections.append(self)
        self.transport.write(f"{self.factory.name} {self.transport.getPeer().host}\n".encode())

    def connectionLost(self, reason=connectionDone):
        """Remove the connection."""
        self.factory.connections.remove(self)
        self.lost.callback(None)


class Server(Factory):
    """Serves at an endpoint."""

    noisy = False
    protocol = Serving

    def __init__(self, name):
        self.name = name
        self.connections = []


async def hang_up(port):
    """Close the listener of a :class:`Server`, and its accepted connections, even if their clients
    have not closed them yet.
    """
    await maybeDeferred(port.stopListening)
    for serving in list(port.factory.connections):
        serving.transport.abortConnection()
        await serving.lost


class Asking(Protocol):
    """Waits for a line, then closes the connection; fires when the other end has closed it, too."""

    def __init__(self):
        self.answered = Deferred()
        self._line = b""

    def dataReceived(self, data):
        """Store the line."""
        self._line += data
        if b"\n" in self._line:
            self.transport.loseWriteConnection()

    def connectionLost(self, reason=connectionDone):
        """Fire with the line, or fail if there was none."""
        if b"\n" in self._line:
            self.answered.callback(self._line.decode().split())
        else:
            self.answered.errback(reason)


class Asker(Factory):
    """Makes these protocols."""

    noisy = False
    protocol = Asking


class Echo(DatagramProtocol):
    """Sends datagrams back."""

    def datagramReceived(self, data, address):
        """Send the datagram back."""
        self.transport.write(data, address)


class Resolver(DatagramProtocol):
    """Sends a datagram repeatedly until it is answered; counts refusals."""

    def __init__(self, host, port):
        self._to = host, port
        self.answered = Deferred()
        self.refusals = 0
        self._sending = LoopingCall(self._send)

    def startProtocol(self):
        """Start."""
        self.transport.connect(*self._to)
        self._sending.start(_AGAIN)

    def stopProtocol(self):
        """Stop."""
        if self._sending.running:
            self._sending.stop()

    def _send(self):
        self.transport.write(b"?")

    def datagramReceived(self, data, address):
        """Store the answer."""
        if self._sending.running:
            self._sending.stop()
            self.answered.callback(None)

    def connectionRefused(self):
        """Count the refusal."""
        self.refusals += 1


class Flow:
    """A UDP client that continues to send when it is refused."""

    def __init__(self, inside, host, port=80):
        with inside.inside():
            self._socket = socket.socket(
                socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
            )
        self._socket.setblocking(False)
        self._socket.connect((host, port))
        self.is_answered = None
        """Whether the last event was an answer, and not a refusal."""

    def ask(self):
        """Send, and read what has arrived; return whether anything has arrived yet."""
        with contextlib.suppress(BlockingIOError):
            try:
                self._socket.send(b"?")
                self.is_answered = bool(self._socket.recv(1))
            except ConnectionRefusedError:
                self.is_answered = False
        return self.is_answered is not None

    def close(self):
        """Close the socket."""
        self._socket.close()


class Connected:
    """The result of a client: which endpoint has served it, and which address that saw.

    ``retransmissions`` is how often its first packet was retransmitted until it was connected.
    """

    def __init__(self, server, seen, retransmissions):
        self.server, self.seen, self.retransmissions = server, seen, retransmissions


def connect(inside, host, port=80, timeout=_SECONDS):
    """Connect from a machine; fails as connecting does."""
    kind = TCP6ClientEndpoint if ":" in host else TCP4ClientEndpoint
    with inside.inside():
        connecting = kind(reactor, host, port, timeout).connect(Asker())
    return Deferred.fromCoroutine(_served(connecting))


async def _served(connecting):
    protocol = await connecting
    retransmissions = retransmissions_of(protocol.transport.getHandle())
    server, seen = await protocol.answered
    return Connected(server, seen, retransmissions)


def retransmissions_of(connection):
    """Return the number of retransmissions of a connection."""
    number, at = _TOTAL_RETRANSMISSIONS
    packet = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + number.size)
    return number.unpack_from(packet, at)[0]


def out_of_window(connection):
    """Return a segment of a connection, as its machine would send it, far outside its window."""
    # TCP_REPAIR, TCP_REPAIR_QUEUE (of what was received, and sent), and TCP_QUEUE_SEQ (linux/tcp.h)
    connection.setsockopt(socket.IPPROTO_TCP, 19, 1)
    numbers = []
    for queue in (1, 2):
        connection.setsockopt(socket.IPPROTO_TCP, 20, queue)
        numbers.append(connection.getsockopt(socket.IPPROTO_TCP, 21) % 2**32)
    connection.setsockopt(socket.IPPROTO_TCP, 19, -1)
    received, sent = numbers
    (source, port), (destination, to_port) = (
        (ip_address(name[0]).packed, name[1])
        for name in (connection.getsockname(), connection.getpeername())
    )
    ports = struct.pack("!HH", port, to_port)
    rest = struct.pack("!IIBBH", (sent + 2**30) % 2**32, received, 5 << 4, 0x10, 1000)
    pseudo = source + destination + struct.pack("!HH", socket.IPPROTO_TCP, 20)
    summed = sum(struct.unpack(f"!{(len(pseudo) + 16) // 2}H", pseudo + ports + rest))
    while summed >> 16:
        summed = (summed & 0xFFFF) + (summed >> 16)
    return ports + rest + struct.pack("!HH", ~summed & 0xFFFF, 0)
