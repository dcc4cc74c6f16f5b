"""The interfaces of transports, and of a reactor with rounds."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from zope.interface import Attribute, Interface


class IHalfCloseableTransport(ITransport, IConsumer, IPushProducer):
    """The transport that this project requires: a TCP or Unix socket, or a stream."""

    disconnecting: bool = Attribute("`bool`: whether loseConnection has been called.")

    def loseWriteConnection() -> None:
        """End the sending direction once written data is flushed; the other one continues."""

    def abortConnection() -> None:
        """Reset the connection and drop unsent data; the peer sees that it is not a clean end."""


class IRounds(Interface):
    """A reactor that serves events in rounds: all events that one poll has returned."""

    def at_end_of_round(call: Callable[[], object]) -> bool:
        """Schedule ``call()`` for the end of the current round.

        Returns ``False``, and does nothing, if the round has no other event, or none is running.
        """

    def call_soon(call: Callable[..., object], *arguments: object) -> None:
        """Schedule ``call(*arguments)`` for after the caller has returned to the reactor.

        That is at the end of the current round, before the calls of :meth:`at_end_of_round`, or in
        the next iteration of the reactor if no round is running.
        """
