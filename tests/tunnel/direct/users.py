"""Protocols and producers that record their events."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.tunnel.memory import Producer


class User(Protocol):
    """Records its events in ``events``, and runs the callback in ``on`` for each."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.reason: Failure | None = None
        self.on: dict[str, Callable[[], object]] = {}

    def note(self, what: str) -> None:
        """Record an event, and run its callback."""
        self.events.append(what)
        self.on.get(what, lambda: None)()

    def connectionMade(self) -> None:
        """Record the event."""
        self.note("made")

    def dataReceived(self, data: bytes) -> None:
        """Store data."""
        self.received += data
        self.note("data")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Record the event."""
        self.reason = reason
        self.note("lost")

    @property
    def lost(self) -> bool:
        """Whether the connection is lost."""
        return "lost" in self.events


@implementer(IHalfCloseableProtocol)
class HalfCloseUser(User):
    """A :class:`User` with half-close support."""

    def readConnectionLost(self) -> None:
        """Record the end of the peer's direction."""
        self.note("read lost")

    def writeConnectionLost(self) -> None:
        """Record the end of this side's direction."""
        self.note("write lost")


@implementer(IPushProducer)
class Push(Producer):
    """A push producer that declares its interface, which sockets require."""


@implementer(IPullProducer)
class Pull:
    """A pull producer that runs the next of ``steps`` each time it is called."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.asked = 0
        self.stopped = False

    def resumeProducing(self) -> None:
        """Run the next step."""
        self.asked += 1
        if self.steps:
            self.steps.pop(0)()

    def stopProducing(self) -> None:
        """Record the call."""
        self.stopped = True
