"""What is behind ``--passthrough-port``: connections that go on to kubelets untouched.

The server reads of them only what tells the node. Where our own rules (iptables) have led a
connection here from an address of a node, that is the destination. Where they have not (DNS, any
way to a Service), or the address is that of no node or of several, it is the name in the caller's
ClientHello. TLS is not terminated, so the caller and the kubelet verify each other.

A ClientHello without a name is that of a caller who verifies nobody, as of a kube-apiserver without
``--kubelet-certificate-authority`` that asks for an upgrade. Such a connection is served as on
``--secure-port``, where the request tells more.

The server knows nobody who connects, so what strangers can hold is bounded, and of ClientHellos
that do not come the oldest makes room for the next: callers send theirs at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

from twisted.internet.interfaces import (
    IAddress,
    IProtocolFactory,
    IReactorTime,
    ISystemHandle,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.places import Places
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.frontends.calls import (
    DialingConnection,
    DialingFactory,
    DialSettings,
)
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.passthrough.client_hello import BadClientHello, ClientHelloReader
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.frontends.passthrough.original_destination import (
    SocketAddress,
    led_here_from,
)
from yurttunnel.server.frontends.passthrough.stats import PassthroughStats, Refusal
from yurttunnel.server.frontends.passthrough.unread import UnreadHellos
from yurttunnel.server.refused_peers import address_behind
from yurttunnel.server.registry import NodeNotConnected, SessionRegistry
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.shares import Kind, caller_at

HELLO_TIMEOUT = 10.0
"""Seconds from the connection to its complete ClientHello, as for the head of a request."""

MAX_UNREAD_HELLOS = 1024
"""Connections that may be without a complete ClientHello at a time; each may hold 32 KiB."""

MAX_UNREAD_OF_ONE = 64
"""The same of one source address; behind a Service all callers may have the same one."""

MAX_CONNECTIONS = 4096
"""Connections there may be in all, as on the ports for requests; each holds a file descriptor and
a stream."""

_UNRECOGNIZED_NAME = bytes([21, 3, 1, 0, 2, 2, 112])
"""A record with the fatal alert ``unrecognized_name`` (RFC 8446 sections 5.1 and 6), of TLS 1.0:
clients of every version take it before a version has been agreed on."""


class PassthroughFactory(DialingFactory):
    """Accepts connections that are meant for kubelets, on plain TCP transports.

    ``ports`` are those of nodes for which the kernel may lead connections here. At most
    ``max_unread_hellos`` ClientHellos may be incomplete at a time, ``max_unread_of_one`` of them
    from one address. There are at most ``max_connections``, of one address as many as it leaves
    free. ``led_here_from`` tells of the socket of a connection what it was meant for, ``None`` for
    this listener. ``unnamed`` makes the protocols of connections whose ClientHello has no name; it
    has to be set before the first connection. The rest is as in :class:`DialingFactory`.
    """

    kind = Kind.PASSTHROUGH
    unnamed: IProtocolFactory

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        nodes: PassthroughNodes,
        ports: Collection[int],
        *,
        max_unread_hellos: int = MAX_UNREAD_HELLOS,
        max_unread_of_one: int = MAX_UNREAD_OF_ONE,
        max_connections: int = MAX_CONNECTIONS,
        led_here_from: Callable[[socket.socket], SocketAddress | None] = led_here_from,
        dials: DialSettings | None = None,
    ) -> None:
        super().__init__(registry, dials)
        self.nodes = nodes
        self.ports = ports
        self.places = Places(max_connections)
        self.led_here_from = led_here_from
        self.stats = PassthroughStats()
        self.warnings = RateLimitedLog(clock, PassthroughProtocol.log)
        self.unread_hellos: UnreadHellos[PassthroughProtocol] = UnreadHellos(
            clock,
            HELLO_TIMEOUT,
            max_unread_hellos,
            max_unread_of_one,
            overdue=PassthroughProtocol.hello_overdue,
            evicted=PassthroughProtocol.evicted,
        )

    def buildProtocol(self, addr: IAddress | None) -> PassthroughProtocol:
        return PassthroughProtocol(self)

    def close(self) -> None:
        """Abort every connection and stop the timer."""
        super().close()
        self.unread_hellos.stop()


class PassthroughProtocol(DialingConnection):
    """One connection: finds out what it is meant for, and is joined to a stream there."""

    def __init__(self, factory: PassthroughFactory) -> None:
        super().__init__(factory)
        self._factory = factory
        self._hello = ClientHelloReader()
        self._asked: SocketAddress | None = None
        self._port: int | None = None
        self._meant = "a node that is not known yet"
        self._has_place = False

    def connectionMade(self) -> None:
        """Dial where the kernel tells the destination, else read the ClientHello."""
        super().connectionMade()
        factory = self._factory
        factory.stats.connections += 1
        self.call.request_id = factory.request_ids.make()
        self._source = address_behind(self.transport)
        places, caller = factory.places, caller_at(self._source)
        if not places.has_one_for(caller):
            self._reset(
                Refusal.OVERLOADED,
                "there are already {taken} others, too many in total or from that address; see"
                " who holds them (ss -tn)",
                taken=places.taken,
            )
            return
        places.count(caller, 1)
        self._has_place = True
        handle = cast(socket.socket, ISystemHandle(self.transport).getHandle())
        asked = factory.led_here_from(handle)
        destination = None
        if asked is not None:
            self._asked = asked
            self._meant = str(asked)
            self._port = factory.nodes.port(asked)
            if self._port not in factory.ports:
                self._reset(
                    Refusal.PORT,
                    "{port} is not in --passthrough-ports: add it, or redirect it elsewhere",
                    port=self._port,
                )
                return
            destination = factory.nodes.by_address(asked)
        if destination is not None:
            self._dial_to(destination)
        else:
            factory.unread_hellos.add(self, self._source)

    def dataReceived(self, data: bytes) -> None:
        try:
            hello = self._hello.feed(data)
        except BadClientHello as error:
            self._reset(
                Refusal.NOT_TLS,
                "{error}; the node is determined from TLS here: send other protocols to"
                " --insecure-port",
                error=str(error),
            )
            return
        if hello is not None:
            self._factory.unread_hellos.discard(self)
            self._find_named(hello.server_name)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._leave_place()
        self._factory.unread_hellos.discard(self)
        super().connectionLost(reason)

    def hello_overdue(self) -> None:
        """Turn away a caller that has not sent its ClientHello in time."""
        self._reset(
            Refusal.TIMEOUT,
            "its ClientHello was not complete within {seconds:g} s",
            seconds=HELLO_TIMEOUT,
        )

    def evicted(self, waiting: int) -> None:
        """Make room for a caller that is newer; ``waiting`` are as many as there may be."""
        self._reset(
            Refusal.OVERLOADED,
            "{waiting} connections wait for their ClientHello, of which this one is the oldest;"
            " see who holds them (ss -tn)",
            waiting=waiting,
        )

    def stream_opened(self, stream: IStream) -> None:
        """Relay, beginning with what has been read already."""
        self._factory.stats.passed += 1
        early = self._hello.received
        # There may be many connections, and they may last.
        del self._hello
        self.join(stream, early)

    def dial_failed(self, error: BaseException) -> None:
        """Reset the connection: the kubelet alone could say more in TLS."""
        if isinstance(error, NodeNotConnected):
            self._reset(Refusal.NOT_CONNECTED, "{error}", error=str(error))
        else:
            self._reset(Refusal.DIAL, "its kubelet could not be reached: {error}", error=str(error))

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._factory.places.count(caller_at(self._source), -1)

    def _find_named(self, name: str | None) -> None:
        if name is None:
            self._serve_here()
            return
        destination = self._factory.nodes.by_name(name)
        if destination is None:
            self._alert(
                Refusal.UNKNOWN_NAME,
                "its ClientHello names {name}, which is not a node behind the tunnel; let the"
                " caller connect to the name of one (kubectl get nodes --show-labels)",
                name=name,
            )
            return
        if self._port is not None:
            destination = replace(destination, port=self._port)
        self._dial_to(destination)

    def _serve_here(self) -> None:
        """End TLS here, for who does not look whom it is with; nothing is audited before that."""
        factory = self._factory
        # Transports have the attribute, and no interface tells of it.
        transport: Any = self.transport
        factory.warnings.warn(
            "--passthrough-port: the TLS of {caller} names no node, and is terminated at this"
            " server as on --secure-port; kube-apiserver with --kubelet-certificate-authority"
            " names it",
            caller=self._source,
        )
        protocol = factory.unnamed.buildProtocol(transport.getPeer())
        self._leave_place()
        factory.forget(self)
        if protocol is None:
            transport.abortConnection()
            return
        transport.protocol = protocol
        protocol.makeConnection(transport)
        protocol.dataReceived(self._hello.received)

    def _dial_to(self, destination: Destination) -> None:
        """Dial, and read nothing more before there is a stream.

        So a caller that ends its direction meanwhile is not taken for one that has left.
        """
        self.transport.pauseProducing()
        self._meant = f"{destination.node}/{destination.authority}"
        self.dial(destination.node, destination.host, destination.port)

    def _alert(self, refusal: Refusal, problem: str, **fields: object) -> None:
        """Refuse in the words of TLS: the caller then says that the name is the matter."""
        self._refused(refusal, problem, fields)
        self.transport.write(_UNRECOGNIZED_NAME)
        self.transport.loseConnection()

    def _reset(self, refusal: Refusal, problem: str, **fields: object) -> None:
        """Refuse as TCP can."""
        self._refused(refusal, problem, fields)
        self.transport.abortConnection()

    def _refused(self, refusal: Refusal, problem: str, fields: dict[str, object]) -> None:
        """Count it and log it; ``problem`` is a literal that is filled with ``fields``."""
        factory = self._factory
        factory.stats.refused[refusal] += 1
        factory.unread_hellos.discard(self)
        asked = "" if self._asked is None else str(self._asked)
        self.call.refused(self.transport, problem.format(**fields), destination=asked)
        factory.warnings.warn(
            "--passthrough-port: connection {request_id} from {caller} to {meant} is refused: "
            + problem,
            request_id=self.call.request_id,
            node=self.call.node,
            caller=self._source,
            meant=self._meant,
            **fields,
        )
