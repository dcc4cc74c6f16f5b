"""Chooses the server address for each attempt of each client."""

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
"""The location of a server: a name or an address, and a port."""


MAX_SKIPS = 16
"""An address of a server that is connected already is dialed again after at most this number of
unanswered attempts elsewhere; at first the number doubles each time."""


@dataclass(slots=True)
class _Record:
    """The history of a location.

    ``rank`` is random, so that many agents that need few of the servers spread over them.
    ``failures`` counts consecutive unanswered attempts, ``rejections`` those that reached a server
    that was connected already; ``failed`` is when the last one led to no session, as a number of
    attempts of the whole agent. ``skip`` counts all attempts that led to no session: the next one
    begins with another address of a name, because that address may belong to another server.
    """

    rank: float = field(default_factory=random.random)
    failures: int = 0
    rejections: int = 0
    failed: int = 0
    skip: int = 0

    def skips(self, rejections: int) -> int:
        """Return the number of attempts elsewhere that come first after ``rejections``.

        A rejection costs the server a TLS handshake, an unanswered attempt costs nothing.
        """
        doubled = min(rejections, 4)
        return self.failures + (1 << doubled) - 1 + MAX_SKIPS * (rejections - doubled)


class Routes:
    """The locations of the servers, and the one that each of ``clients`` dials.

    ``tls_endpoint(host, port, skip)`` returns the endpoint of a location, including TLS, which
    dials the first ``skip`` addresses of a name last (:func:`.server_endpoint`). While ``shared``
    is false, two clients do not dial the same location as long as another one is unused. A client
    with a session prefers the location of that, and otherwise tries others, because a server may
    have several: also those of clients that stand by, which have reached a connected server there.
    A draining client does not occupy a location.
    """

    def __init__(
        self,
        tls_endpoint: Callable[[str, int, int], IStreamClientEndpoint],
        clients: Sequence[ServerClient],
    ) -> None:
        self.tls_endpoint = tls_endpoint
        self.shared = False
        self.locations: tuple[Location, ...] = ()
        self._clients = clients
        self._records: dict[Location, _Record] = {}
        self._attempts = itertools.count(1)

    def use(self, locations: Sequence[Location]) -> None:
        """Use ``locations`` from now on."""
        self.locations = tuple(dict.fromkeys(locations))
        known = self._records
        self._records = {each: known.get(each) or _Record() for each in self.locations}
        self.reset_history()

    def reset_history(self) -> None:
        """Reset the history: a server that is missing or new may be at any location."""
        for record in self._records.values():
            record.failures = record.rejections = 0

    def next(self, client: ServerClient) -> IStreamClientEndpoint:
        """Choose the location for the next attempt of a client, and return its endpoint.

        Raises ``ValueError`` for a name that cannot be resolved in DNS.
        """
        session_location = client.session_location if client.has_session else None
        location = min(self.locations, key=lambda each: self._cost(client, each, session_location))
        taken = {other.number for other in self._others(client, location)}
        client.location = location
        client.number = next(number for number in itertools.count(1) if number not in taken)
        return self.tls_endpoint(*location, self._records[location].skip)

    def session_started(self, client: ServerClient) -> None:
        """Record that the last attempt of a client has led to its session."""
        client.session_location = client.location
        record = self._record(client)
        record.failures = record.rejections = 0

    def failed(self, client: ServerClient, already_connected: bool = False) -> None:
        """Record that it has not: no server has accepted the client, or it has left since.

        ``already_connected`` is whether the attempt reached a server with which there is a session.
        """
        record = self._record(client)
        if already_connected:
            record.failures = 0
            record.rejections += 1
        else:
            record.failures += 1
        record.failed = next(self._attempts)
        record.skip += 1

    def is_at_session_location(self, client: ServerClient) -> bool:
        """Return whether a client has dialed its session's location, or that is not in use."""
        location = client.session_location
        return client.location == location or location not in self.locations

    def _record(self, client: ServerClient) -> _Record:
        """Return the record of a client's location, a temporary one if that is not in use."""
        location = client.location
        return _Record() if location is None else self._records.get(location) or _Record()

    def _others(self, client: ServerClient, location: Location) -> list[ServerClient]:
        return [
            other
            for other in self._clients
            if other is not client and other.location == location and not other.draining
        ]

    def _cost(
        self, client: ServerClient, location: Location, session_location: Location | None
    ) -> tuple[int, int, int, bool, int, bool, float]:
        record = self._records[location]
        others, skips = len(self._others(client, location)), record.skips(record.rejections)
        if location == session_location:
            # Other clients' attempts do not count at the location of a client's own session.
            others, skips = 0, record.failures
        elif session_location is not None:
            # Clients that stand by are rejected where this one's session may go on.
            others = sum(not other.standing_by for other in self._others(client, location))
            skips = record.skips(client.rejections)
        return (
            0 if self.shared else others,
            others + skips,
            others,
            location != session_location,
            record.failed,
            location != client.location,
            record.rank,
        )
