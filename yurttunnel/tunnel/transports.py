"""The seams of transports: what is needed of each, and of the reactor that serves them."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from zope.interface import Attribute, Interface


class IHalfCloseableTransport(ITransport, IConsumer, IPushProducer):
    """What this project needs of a transport: a TCP or Unix socket has it, and a stream."""

    disconnecting: bool = Attribute("`bool`: loseConnection has been called.")

    def loseWriteConnection() -> None:
        """End the sending direction after what has been written; the other goes on."""

    def abortConnection() -> None:
        """Close at once, dropping what has not been sent; the peer learns that it is no end."""


class IRounds(Interface):
    """A reactor that serves what is ready by rounds, and knows when one ends."""

    def at_end_of_round(call: Callable[[], object]) -> bool:
        """Have ``call()`` called once all that was found ready together has been served.

        Gives ``False``, and does nothing, when nothing else waits to be served.
        """

    def call_soon(call: Callable[..., object], *arguments: object) -> None:
        """Have ``call(*arguments)`` called once whoever calls this has returned to the reactor.

        That is at the end of the round, before what :meth:`at_end_of_round` has been given, or in
        the next turn when none is being served.
        """
