"""Protocols and producers that note what they are told."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IHalfCloseableProtocol, IPullProducer, IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer


class User(Protocol):
    """Notes in ``told`` what happens, and does what ``on[...]`` says in the middle of it."""

    def __init__(self) -> None:
        self.received = b""
        self.told: list[str] = []
        self.reason: Failure | None = None
        self.on: dict[str, Callable[[], object]] = {}

    def note(self, what: str) -> None:
        """Note, then do."""
        self.told.append(what)
        self.on.get(what, lambda: None)()

    def connectionMade(self) -> None:
        """Note the beginning."""
        self.note("made")

    def dataReceived(self, data: bytes) -> None:
        """Keep data."""
        self.received += data
        self.note("data")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Note the end."""
        self.reason = reason
        self.note("lost")

    @property
    def lost(self) -> bool:
        """Whether it is over."""
        return "lost" in self.told


@implementer(IHalfCloseableProtocol)
class HalfCloseUser(User):
    """A :class:`User` that knows of half-closes."""

    def readConnectionLost(self) -> None:
        """Note the end of what the peer sends."""
        self.note("read lost")

    def writeConnectionLost(self) -> None:
        """Note the end of what this side sends."""
        self.note("write lost")


@implementer(IPushProducer)
class Push:
    """A push producer that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pauseProducing(self) -> None:
        """Note."""
        self.told.append("pause")

    def resumeProducing(self) -> None:
        """Note."""
        self.told.append("resume")

    def stopProducing(self) -> None:
        """Note."""
        self.told.append("stop")


@implementer(IPullProducer)
class Pull:
    """A pull producer that does the next of ``steps`` each time it is asked."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.asked = 0
        self.stopped = False

    def resumeProducing(self) -> None:
        """Do the next step."""
        self.asked += 1
        if self.steps:
            self.steps.pop(0)()

    def stopProducing(self) -> None:
        """Note."""
        self.stopped = True
