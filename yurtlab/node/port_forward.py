"""Port-forward: connections from the node to ports of a pod's processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.internet.interfaces import IReactorTCP
from twisted.internet.protocol import Factory, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurtlab.node.interfaces import IForwardedConnection, IPortForwarder
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.tunnel.relay import LocalConnection

CONNECT_SECONDS = 10.0
"""The timeout of a connection; on the same machine it succeeds immediately or never."""

MAX_CONNECTIONS = 1000
"""The maximum number of concurrent connections to a pod."""

_ADDRESS = "127.0.0.1"


@implementer(IPortForwarder)
class PortForwarder:
    """Connects to ports of this machine: pods have no network of their own here.

    ``pod`` identifies the pod in messages: ``NAME_NAMESPACE, uid UID``.
    """

    def __init__(self, reactor: IReactorTCP, pod: str) -> None:
        self._reactor = reactor
        self._pod = pod
        self._connections: set[IForwardedConnection] = set()

    def connection_requested(self, port: int, connection: IForwardedConnection) -> None:
        """Connect to ``port``, then join the two."""
        if not 0 < port < 65536:
            self._refuse(connection, port, "that is no port")
        elif len(self._connections) >= MAX_CONNECTIONS:
            self._refuse(connection, port, f"there are {MAX_CONNECTIONS} connections already")
        else:
            self._connections.add(connection)
            endpoint = TCP4ClientEndpoint(self._reactor, _ADDRESS, port, CONNECT_SECONDS)
            ended = partial(self._connections.discard, connection)
            factory = Factory.forProtocol(partial(_PodSide, connection.accept, ended))
            factory.noisy = False
            _ = endpoint.connect(factory).addErrback(self._failed, connection, port)

    def _failed(self, reason: Failure, connection: IForwardedConnection, port: int) -> None:
        self._connections.discard(connection)
        if reason.check(ConnectionRefusedError):
            text = "connect: connection refused"
        elif reason.check(TimeoutError):
            text = "i/o timeout"
        else:
            text = reason.getErrorMessage()
        place = f"dial tcp4 {_ADDRESS}:{port}"
        text = f"failed to connect to localhost:{port}: {place}: {text}"
        self._refuse(connection, port, text)

    def _refuse(self, connection: IForwardedConnection, port: int, reason: str) -> None:
        """Send the client the kubelet's error for a failed connection."""
        connection.refuse(f"error forwarding port {port} to pod {self._pod}: {reason}")


class _PodSide(LocalConnection):
    """The socket to the process in the pod; ``accept()`` returns the client's side."""

    def __init__(self, accept: Callable[[], IStream], ended: Callable[[], object]) -> None:
        self._accept = accept
        self._ended = ended

    def connectionMade(self) -> None:
        """Join it to the client's side, before either is read."""
        self.join(self._accept())

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Free its place, and end the client's side."""
        self._ended()
        super().connectionLost(reason)
