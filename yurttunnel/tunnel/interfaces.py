"""The interfaces of the tunnel: those that a session provides, and those that its users provide."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from zope.interface import Attribute, Interface

from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.codes import Code, CodedError


class StreamFailed(CodedError):
    """A stream could not be opened, or ended before both directions had ended.

    ``code`` is the reason as a code of the protocol, ``text`` a message for the user who requested
    the stream.
    """


class IStream(IHalfCloseableTransport):
    """One byte stream through a session, as a Twisted transport.

    The methods behave as those of a TCP connection:

    - ``write``, ``writeSequence``, ``loseConnection``, ``abortConnection``,
      ``loseWriteConnection``, ``getPeer``, ``getHost``;
    - ``registerProducer(producer, streaming)``: the producer is paused while the stream has no
      credit or the session's connection is busy;
    - ``pauseProducing``/``resumeProducing``: a paused stream buffers at most its window, grants
      no credit, and blocks no other stream.
    """

    request_id: str = Attribute("`str`: the name of the stream in the logs of both ends.")
    bytes_received: int = Attribute("`int`: the number of payload bytes received from the peer.")
    bytes_sent: int = Attribute("`int`: the number of payload bytes passed to the session.")

    def attach(protocol: IProtocol) -> None:
        """Connect ``protocol`` to the stream by ``makeConnection``; called once.

        The stream is paused until then. If ``protocol`` provides ``IHalfCloseableProtocol``, the
        peer's FIN calls ``readConnectionLost``; otherwise the FIN closes the stream, as for TCP
        connections in Twisted. ``connectionLost`` is called exactly once, with ``ConnectionDone``
        or with :class:`StreamFailed`.
        """

    def abort(code: Code, text: str) -> None:
        """Reset the stream: send ``code`` and ``text`` to the peer, and drop unsent data."""


class IStreamOpener(Interface):
    """An object that opens streams: a session, or a set of sessions."""

    def open_stream(
        host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Request the far end to connect to ``host`` (`str`) and ``port`` (1-65535).

        ``timeout`` is in seconds and covers the whole opening. ``request_id`` is a `str` of at
        most 255 ASCII characters. The stream counts against the share of ``holder``; if that is
        used up, the request fails with :attr:`Code.OVERLOADED`.

        Returns a ``Deferred`` that fires with an :class:`IStream` once the far end *has*
        connected, or fails with :class:`StreamFailed`. Cancelling it cancels the dial.
        """


class IStreamRequest(Interface):
    """A peer's request to open a stream, to be answered exactly once."""

    host: str = Attribute("`str`: the name or address of the target.")
    port: int = Attribute("`int`: the port of the target, 1-65535.")
    timeout: float = Attribute("`float`: the seconds within which the peer expects an answer.")
    request_id: str = Attribute("`str`: the name of the stream in the logs of both ends.")

    def accept() -> IStream:
        """Answer OK and return the :class:`IStream`; the caller then attaches a protocol.

        If the peer has cancelled the request (see ``on_cancel``), the stream ends at once.
        """

    def fail(code: Code, text: str) -> None:
        """Answer that the target was not reached; ``text`` is shown to the caller."""

    def on_cancel(callback: Callable[[], object]) -> None:
        """Register a callback for the peer's cancellation, or the session's end, before an answer.

        If that has happened already, the callback is called at once.
        """


class IStreamAcceptor(Interface):
    """The handler of the peer's requests in a session: the agent's dialer."""

    def stream_requested(request: IStreamRequest) -> None:
        """Answer ``request`` (:class:`IStreamRequest`), now or later.

        Raises :class:`~yurttunnel.wire.frames.Violation`, and nothing else, to end the session.
        """
