"""A stream client endpoint, by which any Twisted client can connect through an agent."""

from __future__ import annotations

from itertools import count

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from zope.interface import implementer

from yurttunnel.tunnel.interfaces import IStream, IStreamOpener, StreamFailed
from yurttunnel.wire.codes import Code

_numbers = count(1)


@implementer(IStreamClientEndpoint)
class TunnelEndpoint:
    """Connects to ``host`` and ``port`` through ``opener``, within ``timeout`` seconds.

    ``opener`` is a session, or an object that selects one. The Deferred of :meth:`connect` fails
    with :class:`StreamFailed`.
    """

    def __init__(self, opener: IStreamOpener, host: str, port: int, timeout: float = 15.0) -> None:
        self._opener = opener
        self._host = host
        self._port = port
        self._timeout = timeout

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Open a stream and attach a protocol of ``protocolFactory`` to it."""
        request_id = f"endpoint-{next(_numbers)}"
        opened = self._opener.open_stream(self._host, self._port, self._timeout, request_id)
        return opened.addCallback(_attach, protocolFactory)


def _attach(stream: IStream, factory: IProtocolFactory) -> IProtocol:
    try:
        protocol = factory.buildProtocol(stream.getPeer())
        if protocol is None:
            raise StreamFailed(Code.CANCELLED, "the factory has built no protocol")
        stream.attach(protocol)
    except Exception:
        stream.abort(Code.CANCELLED, "no protocol could be connected to the stream")
        raise
    return protocol
