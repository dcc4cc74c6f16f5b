"""Which of the servers' addresses each client dials, chosen anew for each attempt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IStreamClientEndpoint

if TYPE_CHECKING:
    from yurttunnel.agent.client import ServerClient

Location = tuple[str, int]
"""Where a server can be dialed: a name or an address, and a port."""


MOST_PASSED_OVER = 16
"""A location that leads to a server that is connected already is dialed again after so many
attempts where nobody answers, at most; twice as many each time at first."""


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
    """The locations of the servers, and which of them each of ``clients`` dials.

    ``secured(host, port)`` makes the endpoint for one, TLS included. While ``shared`` is false,
    a location is not dialed by two as long as there is one that nobody dials. A client with a
    session comes back to where that is before all else, and looks elsewhere for a server that has
    several; one that drains takes no location from another.
    """

    def __init__(
        self,
        secured: Callable[[str, int], IStreamClientEndpoint],
        clients: Sequence[ServerClient],
    ) -> None:
        self.secured = secured
        self.shared = False
        self.locations: tuple[Location, ...] = ()
        self._clients = clients
        self._records: dict[Location, _Record] = {}
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

    def next(self, client: ServerClient) -> IStreamClientEndpoint:
        """Choose the location for the next attempt of a client, and return what leads there.

        Raises ``ValueError`` for a name that no name server could be asked for.
        """
        home = client.home if client.resumes else None
        location = min(self.locations, key=lambda each: self._cost(client, each, home))
        taken = {other.number for other in self._others(client, location)}
        client.location = location
        client.number = next(number for number in itertools.count(1) if number not in taken)
        return self.secured(*location)

    def arrived(self, client: ServerClient) -> None:
        """Note that the last attempt of a client has led to its session."""
        client.home = client.location
        record = self._record(client)
        record.failures = record.looks = 0

    def failed(self, client: ServerClient, already_connected: bool = False) -> None:
        """Note that it has led to none: nobody has answered, or only to refuse, or has left since.

        ``already_connected`` says that it has led to a server with which there is a session.
        """
        record = self._record(client)
        if already_connected:
            record.looks += 1
        else:
            record.failures += 1
        record.failed = next(self._attempts)

    def at_home(self, client: ServerClient) -> bool:
        """Return whether a client has dialed where its session has been, if that can be dialed."""
        return client.location == client.home or client.home not in self.locations

    def _record(self, client: ServerClient) -> _Record:
        """Return that of where a client has dialed, one that nobody keeps if it is not in use."""
        location = client.location
        return _Record() if location is None else self._records.get(location) or _Record()

    def _others(self, client: ServerClient, location: Location) -> list[ServerClient]:
        return [
            other
            for other in self._clients
            if other is not client and other.location == location and not other.draining
        ]

    def _cost(
        self, client: ServerClient, location: Location, home: Location | None
    ) -> tuple[int, int, int, bool, int, bool, float]:
        record = self._records[location]
        others, passed_over = len(self._others(client, location)), record.passed_over()
        if location == home:
            # Who else dials there, or has looked there, has come from somewhere else.
            others, passed_over = 0, record.failures
        return (
            0 if self.shared else others,
            others + passed_over,
            others,
            location != home,
            record.failed,
            location != client.location,
            record.rank,
        )
