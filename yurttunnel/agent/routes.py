"""Which of the servers' addresses each client dials, chosen anew for each attempt."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from zope.interface import implementer

from yurttunnel.http.authority import join_authority

Location = tuple[str, int]
"""Where a server can be dialed: a name or an address, and a port."""


MOST_PASSED_OVER = 16
"""A location that leads to a server that is connected already is dialed again after so many
attempts where nobody answers, at most; twice as many each time at first."""


class Answer(enum.Enum):
    """What the last attempt of a client has come to."""

    NONE = "none"
    """Nobody has answered, or only to refuse, or the server has left since."""
    ALREADY_CONNECTED = "already connected"
    """It has led to a server that is connected already."""
    SESSION = "session"


class Traveler(Protocol):
    """What a client shows of itself, see :class:`~yurttunnel.agent.client.ServerClient`."""

    server: str
    answer: Answer
    at_home: bool

    @property
    def draining(self) -> bool:
        """Whether it only waits for the ends of its streams."""

    @property
    def resumes(self) -> bool:
        """Whether it has a session, and wants the server of that."""


@dataclass(slots=True)
class _Record:
    """What is known of a location.

    ``rank`` is random, so that many agents that need few of the servers spread over them.
    ``failures`` counts attempts in a row that nobody answered, ``looks`` those that have led to a
    server that was connected already; ``failed`` is when the last one led to no session, in
    attempts of the whole agent.
    """

    rank: float = field(default_factory=random.random)
    failures: int = 0
    looks: int = 0
    failed: int = 0

    def passed_over(self) -> int:
        """How many attempts elsewhere come first.

        A look costs the server a TLS handshake, an attempt that nobody answers costs nothing.
        """
        doubled = min(self.looks, 4)
        return self.failures + (1 << doubled) - 1 + MOST_PASSED_OVER * (self.looks - doubled)


class Routes:
    """The locations of the servers, and who goes where.

    ``secured(host, port)`` makes the endpoint for one, TLS included. While ``shared`` is false,
    a location is not dialed by two as long as there is one that nobody dials. A client with a
    session comes back to where that is before all else, and looks elsewhere for a server that has
    several; one that drains takes no location from another.
    """

    def __init__(self, secured: Callable[[str, int], IStreamClientEndpoint]) -> None:
        self.secured = secured
        self.shared = False
        self.locations: tuple[Location, ...] = ()
        self._records: dict[Location, _Record] = {}
        self._routes: list[Route] = []
        self._attempts = itertools.count(1)

    def use(self, locations: Sequence[Location]) -> None:
        """Lead to ``locations`` from now on."""
        self.locations = tuple(dict.fromkeys(locations))
        known = self._records
        self._records = {each: known.get(each) or _Record() for each in self.locations}
        self.begin_anew()

    def begin_anew(self) -> None:
        """Look everywhere: a server is missing that may be at any location, or one is new."""
        for record in self._records.values():
            record.failures = record.looks = 0

    def new_route(self) -> Route:
        """Make the route of one more client."""
        route = Route(self)
        self._routes.append(route)
        return route

    def end_route(self, route: Route) -> None:
        """Forget the route of a client that is no more."""
        self._routes.remove(route)

    def note_sessions(self) -> None:
        """Note which attempts have led to sessions, and whose server has left since."""
        for route in self._routes:
            client = route.client
            if client is not None and (client.answer is Answer.SESSION or client.draining):
                self.note(route)

    def note(self, route: Route) -> None:
        """Note what the last attempt of a client has come to, unless that is known."""
        record = self._records.get(route.location) if route.location is not None else None
        if record is None or route.client is None or route.noted is route.client.answer:
            return
        answer = route.noted = route.client.answer
        if answer is Answer.SESSION:
            route.home = route.location
            record.failures = record.looks = 0
            return
        if answer is Answer.ALREADY_CONNECTED:
            record.looks += 1
        else:
            record.failures += 1
        record.failed = next(self._attempts)

    def choose(self, route: Route) -> Location:
        """Return the location for the next attempt of a client."""
        home = route.home if route.resumes else None
        return min(self.locations, key=lambda location: self._cost(route, location, home))

    def number(self, route: Route, location: Location) -> int:
        """Return a number that no other route to ``location`` has, from 1."""
        taken = {other.number for other in self._others(route, location)}
        return next(number for number in itertools.count(1) if number not in taken)

    def _others(self, route: Route, location: Location) -> list[Route]:
        return [
            other
            for other in self._routes
            if other is not route and other.location == location and not other.drains
        ]

    def _cost(
        self, route: Route, location: Location, home: Location | None
    ) -> tuple[int, int, int, bool, int, bool, float]:
        record = self._records[location]
        others, passed_over = len(self._others(route, location)), record.passed_over()
        if location == home:
            # Who else dials there, or has looked there, has come from somewhere else.
            others, passed_over = 0, record.failures
        return (
            0 if self.shared else others,
            others + passed_over,
            others,
            location != home,
            record.failed,
            location != route.location,
            record.rank,
        )


@implementer(IStreamClientEndpoint)
class Route:
    """The endpoint of one client, which leads to one location or another of ``routes``.

    ``location`` was dialed last; at ``home`` the client has got its last session.
    """

    def __init__(self, routes: Routes) -> None:
        self.location: Location | None = None
        self.home: Location | None = None
        self.number = 0
        self.client: Traveler | None = None
        self.noted: Answer | None = None
        self._routes = routes

    @property
    def drains(self) -> bool:
        """Whether its client only waits for the ends of its streams."""
        return self.client is not None and self.client.draining

    @property
    def resumes(self) -> bool:
        """Whether its client wants the server with which it has a session."""
        return self.client is not None and self.client.resumes

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect to the location that suits best, and have the client know its name."""
        client = self.client
        assert client is not None  # it has been told of the route before it uses it
        self._routes.note(self)
        location = self._routes.choose(self)
        self.number = self._routes.number(self, location)
        self.location = location
        client.answer, self.noted = Answer.NONE, None
        client.at_home = location == self.home or self.home not in self._routes.locations
        client.server = join_authority(*location)
        if self.number > 1:
            # Sessions with several servers behind one address are told apart.
            client.server += f" ({self.number})"
        try:
            return self._routes.secured(*location).connect(protocolFactory)
        except ValueError as error:
            # A name that no name server could be asked for.
            return fail(error)
