"""The listener of ``--passthrough-port``: connections are forwarded to kubelets unchanged.

The server reads only what identifies the node. If the server's own rules (iptables) have redirected
the connection from an address of a node, that address is the destination. If they have not (DNS,
traffic to a Service), or the address belongs to no node or to several, the name in the caller's
ClientHello is. TLS is not terminated, so the caller and the kubelet verify each other.

A ClientHello without a name comes from a caller that does not verify the kubelet, such as a
kube-apiserver without ``--kubelet-certificate-authority`` that requests an upgrade. The server
handles such a connection as on ``--secure-port``, where the request identifies the node.

The server does not authenticate callers here, so limits bound what they can hold. At the limit of
incomplete ClientHellos the oldest is evicted: genuine callers send theirs at once.
"""

from __future__ import annotations

import enum
import socket
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

from twisted.internet.interfaces import IAddress, IProtocolFactory, IReactorTime, ISystemHandle
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.shared_limit import SharedLimit
from yurttunnel.ops.log import RateLimitedLog
from yurttunnel.server.frontends.calls import DialingConnection, DialingFactory
from yurttunnel.server.frontends.kubelet.destination import Destination
from yurttunnel.server.frontends.passthrough.client_hello import BadClientHello, ClientHelloReader
from yurttunnel.server.frontends.passthrough.nodes import PassthroughNodes
from yurttunnel.server.frontends.passthrough.unread import UnreadHellos
from yurttunnel.server.handshake_failures import peer_address
from yurttunnel.server.registry import NodeNotConnected, SessionRegistry
from yurttunnel.steering.original_destination import (
    SocketAddress,
    redirect_source,
)
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.shares import Kind, caller_at


class Refusal(enum.Enum):
    """Why a connection was rejected; the values are label values of a metric."""

    PORT = "port"
    """It was redirected from a port that is not passed through."""
    OVERLOADED = "overloaded"
    """There are too many others, or it was the oldest of too many without a ClientHello."""
    TIMEOUT = "timeout"
    """Its ClientHello was not complete in time."""
    NOT_TLS = "not_tls"
    """It does not begin with a ClientHello."""
    UNKNOWN_NAME = "unknown_name"
    """Its ClientHello names something other than a node behind the tunnel."""
    NOT_CONNECTED = "not_connected"
    """Its node has no agent connected."""
    DIAL = "dial"
    """The kubelet was not reached."""


@dataclass(slots=True)
class PassthroughStats:
    """Totals since the process started.

    A connection that is neither refused nor passed was closed by its caller, or was handled as on
    --secure-port, because its ClientHello has no name.
    """

    connections: int = 0
    passed: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)


HELLO_TIMEOUT = 10.0
"""Seconds from the connection to its complete ClientHello, as for the head of a request."""

MAX_UNREAD_HELLOS = 1024
"""The maximum number of connections without a complete ClientHello; each may hold 32 KiB."""

MAX_UNREAD_PER_SOURCE = 64
"""The same for one source address; behind a Service all callers may have the same address."""

MAX_CONNECTIONS = 4096
"""The maximum number of connections, the same as on the ports for requests; each holds a file
descriptor and a stream."""

_UNRECOGNIZED_NAME = bytes([21, 3, 1, 0, 2, 2, 112])
"""A record with the fatal alert ``unrecognized_name`` (RFC 8446 sections 5.1 and 6), in the version
of TLS 1.0: clients of all versions accept it before a version is negotiated."""


class PassthroughFactory(DialingFactory):
    """Accepts connections to kubelets, on plain TCP transports.

    ``ports`` are the ports of nodes from which the kernel may redirect connections here. At most
    ``max_unread_hellos`` ClientHellos may be incomplete at a time, of which
    ``max_unread_per_source`` from one address. There are at most ``max_connections``, and one
    address may have as many as remain free. ``redirect_source`` returns the original destination of
    a connection from its socket, or ``None`` if it was made to this listener. ``no_sni_factory``
    builds the protocols for connections whose ClientHello has no name; it must be set before the
    first connection.
    """

    kind = Kind.PASSTHROUGH
    no_sni_factory: IProtocolFactory

    def __init__(
        self,
        clock: IReactorTime,
        registry: SessionRegistry,
        nodes: PassthroughNodes,
        ports: Collection[int],
        *,
        max_unread_hellos: int = MAX_UNREAD_HELLOS,
        max_unread_per_source: int = MAX_UNREAD_PER_SOURCE,
        max_connections: int = MAX_CONNECTIONS,
        redirect_source: Callable[[socket.socket], SocketAddress | None] = redirect_source,
    ) -> None:
        super().__init__(registry)
        self.nodes = nodes
        self.ports = ports
        self.connection_limit = SharedLimit(max_connections)
        self.redirect_source = redirect_source
        self.stats = PassthroughStats()
        self.warnings = RateLimitedLog(clock, PassthroughProtocol.log)
        self.unread_hellos: UnreadHellos[PassthroughProtocol] = UnreadHellos(
            clock,
            HELLO_TIMEOUT,
            max_unread_hellos,
            max_unread_per_source,
            overdue=PassthroughProtocol.hello_overdue,
            evicted=PassthroughProtocol.evicted,
        )

    def buildProtocol(self, addr: IAddress | None) -> PassthroughProtocol:
        return PassthroughProtocol(self)

    def close(self) -> None:
        """Abort all connections and stop the timer."""
        super().close()
        self.unread_hellos.stop()


class PassthroughProtocol(DialingConnection):
    """One connection: finds its destination, and is joined to a stream there."""

    def __init__(self, factory: PassthroughFactory) -> None:
        super().__init__(factory)
        self._factory = factory
        self._hello = ClientHelloReader()
        self._original: SocketAddress | None = None
        self._port: int | None = None
        self._target = "an unknown node"
        self._is_counted = False

    def connectionMade(self) -> None:
        """Dial if the kernel reports the destination, otherwise read the ClientHello."""
        super().connectionMade()
        factory = self._factory
        factory.stats.connections += 1
        self.call.request_id = factory.request_ids.make()
        self._source = peer_address(self.transport)
        connection_limit, caller = factory.connection_limit, caller_at(self._source)
        if not connection_limit.has_room_for(caller):
            self._reset(
                Refusal.OVERLOADED,
                "there are already {taken} others, too many in total or from that address; see"
                " who holds them (ss -tn)",
                taken=connection_limit.used,
            )
            return
        connection_limit.add(caller, 1)
        self._is_counted = True
        handle = cast(socket.socket, ISystemHandle(self.transport).getHandle())
        original = factory.redirect_source(handle)
        destination = None
        if original is not None:
            self._original = original
            self._target = str(original)
            self._port = factory.nodes.port(original)
            if self._port not in factory.ports:
                self._reset(
                    Refusal.PORT,
                    "{port} is not in --passthrough-ports: add it, or redirect it elsewhere",
                    port=self._port,
                )
                return
            destination = factory.nodes.by_address(original)
        if destination is not None:
            self._dial_destination(destination)
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
        self._release()
        self._factory.unread_hellos.discard(self)
        super().connectionLost(reason)

    def hello_overdue(self) -> None:
        """Reject a caller that has not sent its ClientHello in time."""
        self._reset(
            Refusal.TIMEOUT,
            "its ClientHello was not complete within {seconds:g} s",
            seconds=HELLO_TIMEOUT,
        )

    def evicted(self, waiting: int) -> None:
        """Make room for a newer caller: ``waiting`` connections are waiting, the maximum."""
        self._reset(
            Refusal.OVERLOADED,
            "{waiting} connections wait for their ClientHello, of which this one is the oldest;"
            " see who holds them (ss -tn)",
            waiting=waiting,
        )

    def stream_opened(self, stream: IStream) -> None:
        """Relay, starting with the bytes that were already read."""
        self._factory.stats.passed += 1
        early = self._hello.received
        # Frees memory: there may be many connections, and they may last long.
        del self._hello
        self.join(stream, early)

    def dial_failed(self, error: BaseException) -> None:
        """Reset the connection: only the kubelet could report an error in TLS."""
        if isinstance(error, NodeNotConnected):
            self._reset(Refusal.NOT_CONNECTED, "{error}", error=str(error))
        else:
            self._reset(Refusal.DIAL, "its kubelet could not be reached: {error}", error=str(error))

    def _release(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._factory.connection_limit.add(caller_at(self._source), -1)

    def _find_named(self, name: str | None) -> None:
        if name is None:
            self._terminate_tls()
            return
        destination = self._factory.nodes.by_name(name)
        if destination is None:
            self._alert(
                "its ClientHello names {name}, which is not a node behind the tunnel; let the"
                " caller connect to the name of one (kubectl get nodes --show-labels)",
                name,
            )
            return
        if self._port is not None:
            destination = replace(destination, port=self._port)
        self._dial_destination(destination)

    def _terminate_tls(self) -> None:
        """Terminate TLS here, for a client that does not verify it; nothing is audited yet."""
        factory = self._factory
        # Transports have this attribute, but no interface declares it.
        transport: Any = self.transport
        factory.warnings.warn(
            "--passthrough-port: the TLS of {caller} names no node, and is terminated at this"
            " server as on --secure-port; kube-apiserver with --kubelet-certificate-authority"
            " names it",
            caller=self._source,
        )
        protocol = factory.no_sni_factory.buildProtocol(transport.getPeer())
        self._release()
        factory.forget(self)
        if protocol is None:
            transport.abortConnection()
            return
        transport.protocol = protocol
        protocol.makeConnection(transport)
        protocol.dataReceived(self._hello.received)

    def _dial_destination(self, destination: Destination) -> None:
        """Dial, and pause reading until there is a stream.

        Otherwise a caller that closes its sending direction meanwhile would count as gone.
        """
        self.transport.pauseProducing()
        self._target = f"{destination.node}/{destination.authority}"
        self.dial(destination.node, destination.host, destination.port)

    def _alert(self, problem: str, name: str) -> None:
        """Reject with a TLS alert, so that the caller reports the name as the cause."""
        self._refused(Refusal.UNKNOWN_NAME, problem, {"name": name})
        self.transport.write(_UNRECOGNIZED_NAME)
        self.transport.loseConnection()

    def _reset(self, refusal: Refusal, problem: str, **fields: object) -> None:
        """Reject with a TCP reset."""
        self._refused(refusal, problem, fields)
        self.transport.abortConnection()

    def _refused(self, refusal: Refusal, problem: str, fields: dict[str, object]) -> None:
        """Count and log a rejection; ``problem`` is a literal that is formatted with ``fields``."""
        factory = self._factory
        factory.stats.refused[refusal] += 1
        factory.unread_hellos.discard(self)
        original = "" if self._original is None else str(self._original)
        self.call.record_refusal(self.transport, problem.format(**fields), destination=original)
        factory.warnings.warn(
            "--passthrough-port: connection {request_id} from {caller} to {meant} is refused: "
            + problem,
            request_id=self.call.request_id,
            node=self.call.node,
            caller=self._source,
            meant=self._target,
            **fields,
        )
