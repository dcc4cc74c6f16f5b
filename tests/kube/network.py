"""Connections in memory between HTTP clients and servers."""

from __future__ import annotations

from twisted.internet.defer import fail, succeed
from twisted.internet.error import ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from zope.interface import implementer

from tests.fakes import MemoryConnection


class _Link:
    """A connection: each end receives what the other sends."""

    def __init__(self, near, far):
        self._ends = (near, far)
        self._passed = {near: 0, far: 0}
        self._ended = False

    def turn(self):
        """Transfer pending data; return whether there was any."""
        moved = False
        for end, other in (self._ends, self._ends[::-1]):
            end.turn()
            for data in end.segments[self._passed[end] :]:
                moved = True
                self._passed[end] += 1
                if other.closed_with is None:
                    other.receive(data)
            if end.closed_with is not None and not self._ended:
                self._ended = moved = True
                if other.closed_with is None:
                    other.break_off(ConnectionLost())
        return moved

    def break_off(self):
        """Lose the connection at both ends."""
        for end in self._ends:
            if end.closed_with is None:
                end.break_off(ConnectionLost())


@implementer(IStreamClientEndpoint)
class Network:
    """Connects clients to a server; ``accept(connection)`` opens its end."""

    def __init__(self, clock, accept):
        self.clock = clock
        self._accept = accept
        self.refusing = False
        self.links = []

    def connect(self, factory):
        """Connect."""
        if self.refusing:
            return fail(ConnectionRefusedError())
        protocol = factory.buildProtocol(None)
        far = self._accept()
        near = MemoryConnection(self.clock).open(protocol)
        self.links.append(_Link(near, far))
        return succeed(protocol)

    def settle(self):
        """Transfer all pending data."""
        idle = 0
        while idle < 3:
            self.clock.advance(0)
            moved = [link.turn() for link in self.links]
            idle = 0 if any(moved) else idle + 1

    def cut_off(self):
        """Lose all connections, and reject new ones."""
        self.refusing = True
        for link in self.links:
            link.break_off()
