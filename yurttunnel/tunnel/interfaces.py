"""The seams of the tunnel: what a session offers, and what the two ends plug into it."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from zope.interface import Attribute, Interface

from yurttunnel.tunnel.shares import OTHER, Holder
from yurttunnel.tunnel.transports import IHalfCloseableTransport
from yurttunnel.wire.codes import Code


class IStream(IHalfCloseableTransport):
    """One byte stream through a session, as a Twisted transport.

    All methods have the meaning that they have for a TCP connection:

    - ``write``, ``writeSequence``, ``loseConnection``, ``abortConnection``,
      ``loseWriteConnection``, ``getPeer``, ``getHost``;
    - ``registerProducer(producer, streaming)``: a producer is paused while the stream has no
      credit or the session's connection is busy;
    - ``pauseProducing``/``resumeProducing``: a paused stream buffers at most its window, earns
      no credit, and holds up no other stream.
    """

    request_id: str = Attribute("`str`: names the stream in logs of both ends.")
    bytes_received: int = Attribute("`int`: payload bytes that came from the peer.")
    bytes_sent: int = Attribute("`int`: payload bytes that were handed to the session.")

    def attach(protocol: IProtocol) -> None:
        """Make ``protocol`` the stream's user; called once, it gets ``makeConnection``.

        The stream is paused until then. When ``protocol`` provides ``IHalfCloseableProtocol``
        it learns of the peer's FIN by ``readConnectionLost``; otherwise the stream is closed
        as soon as the peer has ended, as TCP connections do in Twisted. ``connectionLost`` is
        called exactly once, with ``ConnectionDone`` or with :class:`StreamFailed`.
        """

    def abort(code: Code, text: str) -> None:
        """Reset the stream: the peer learns ``code`` and ``text``, unsent data is dropped."""


class IStreamOpener(Interface):
    """Something through which connections can be had: a session, or a set of them."""

    def open_stream(
        host: str, port: int, timeout: float, request_id: str, holder: Holder = OTHER
    ) -> Deferred[IStream]:
        """Ask the far end to connect to ``host`` (`str`) and ``port`` (1-65535).

        ``timeout`` is in seconds and covers the whole opening, ``request_id`` is a `str` of at
        most 255 ASCII characters. The stream is of ``holder``'s share; when that is used up it
        fails with :attr:`Code.OVERLOADED`.

        Returns a ``Deferred`` that fires with an :class:`IStream` once the far end *has*
        connected, or fails with :class:`StreamFailed`. Cancelling it cancels the dial.
        """


class IStreamRequest(Interface):
    """A stream that the peer wants to open; answered exactly once."""

    host: str = Attribute("`str`: name or address of the target.")
    port: int = Attribute("`int`: 1-65535.")
    timeout: float = Attribute("`float`: seconds in which the peer wants an answer.")
    request_id: str = Attribute("`str`: names the stream in logs of both ends.")

    def accept() -> IStream:
        """Answer OK and return the :class:`IStream`; the caller then attaches a protocol.

        After the peer has given up (see ``on_cancel``) the stream that is returned ends at once.
        """

    def fail(code: Code, text: str) -> None:
        """Answer that the target was not reached; ``text`` is shown to whoever asked."""

    def on_cancel(callback: Callable[[], object]) -> None:
        """Have ``callback()`` called if the peer gives up, or the session ends, unanswered."""


class IStreamAcceptor(Interface):
    """What a session hands the peer's requests to: the agent's dialler."""

    def stream_requested(request: IStreamRequest) -> None:
        """Answer ``request`` (:class:`IStreamRequest`), now or later.

        Raises :class:`~yurttunnel.wire.frames.Violation`, and nothing else, to end the session.
        """
