"""The state that the clients of one agent share, and what they send to the servers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yurttunnel.ops.backoff import equal_jitter, full_jitter
from yurttunnel.wire.hello import HELD, KEPT, NO_SESSION, SERVERS, Hello, Limits

if TYPE_CHECKING:
    from yurttunnel.agent.client import ServerClient

FIRST_DELAY = 0.3
"""The longest delay in seconds before the first retry: streams are waiting."""

URGENT_DELAY = 5.0
"""The longest delay in seconds, at first, while a server is missing.

2,000 agents that have lost the same server make 800 attempts a second together while nothing
listens at its address, which costs the other servers nothing. When it is back, they connect over
these five seconds: 800 TLS handshakes in the first second, fewer in each of the following, 400 a
second on average.
"""

URGENT_ATTEMPTS = 120
"""After this number of failed attempts, about five minutes, a server is not expected back soon."""

MAX_DELAY = 60.0
"""The longest delay in seconds, however many attempts have failed."""

MAX_PROBE_DELAY = 300.0
"""Seconds between two checks whether an address leads to a new server. A check costs both ends a
TLS handshake: a thousand agents make about four a second."""

FREQUENT_PROBES = 10
"""This many checks for a missing server, about twenty seconds, are as frequent as other attempts.
Each is a TLS handshake with a server that is connected already. For 2,000 agents with one address
that would be 1,200 a second, or as many as the servers can do, since an agent waits for each
response. Therefore checks become rarer then, about 70 a second."""

URGENT_PROBES = 20
"""After this number of checks for a missing server, about five minutes, it is considered gone: the
number that servers sent may be outdated."""

REPLACED_DELAY = 20.0
"""The longest delay in seconds after another agent of the same node has taken over a session; it
doubles each time. Each replacement ends the streams of the other agent."""

MAX_REPLACED_DELAY = 300.0
"""The maximum of that delay, and how long a session must last to reset it."""

MAX_LISTED_SESSIONS = 32
"""The maximum number of sessions that an agent lists in HELLO, which must also hold its names."""

MAX_SERVERS = 32
"""The maximum number of servers with which an agent has sessions, whatever number they send."""


@dataclass(slots=True)
class ClientSettings:
    """What the agent sends to the servers about itself.

    ``identifiers()`` returns, in the form of ``--agent-identifiers``, the current identifiers.
    ``limits`` may be replaced, and then apply to new sessions.
    """

    node: str
    identifiers: Callable[[], str]
    limits: Limits
    software: str
    process: bytes = field(default_factory=lambda: os.urandom(16))

    def hello(
        self,
        session: bytes = NO_SESSION,
        received: int = 0,
        held: Collection[bytes] = (),
        kept: Collection[bytes] = (),
    ) -> Hello:
        """Return the HELLO that requests a session.

        ``held`` are the server processes with which the agent has sessions already, ``kept`` its
        other sessions. Its size depends on nothing else.
        """
        properties = {"software": self.software, "identifiers": self.identifiers()}
        if held:
            properties[HELD] = ",".join(process.hex() for process in held)
        if kept:
            properties[KEPT] = ",".join(session.hex() for session in kept)
        return Hello(
            limits=self.limits,
            session=session,
            process=self.process,
            received=received,
            properties=properties,
        )


@dataclass(eq=False, slots=True)
class ConnectionGroup:
    """The state that the clients of one agent share.

    ``advertised`` is the number of servers in the latest HELLO that has one, ``None`` if none had,
    ``servers`` the assumed number. ``needs_sessions`` is whether there are fewer sessions than
    desired, ``has_spare_servers`` whether there are more servers than that. ``already_connected``
    counts attempts that reached a server that is connected already. ``on_change()`` is called when
    one of ``clients`` has got or lost a session, or stands by; ``on_servers_changed()`` when all
    agents have received a new number of servers, which must not all connect at the same moment.
    """

    clients: Sequence[ServerClient] = field(default_factory=list)
    advertised: int | None = None
    servers: int = MAX_SERVERS
    needs_sessions: bool = False
    has_spare_servers: bool = False
    already_connected: int = 0
    on_change: Callable[[], object] = lambda: None
    on_servers_changed: Callable[[], object] = lambda: None

    def set_advertised(self, servers: int | None) -> None:
        """Apply the number of servers in a HELLO.

        ``None`` means that the server does not know it, for example because it started while the
        Kubernetes API was unreachable.
        """
        if servers is not None:
            self.advertised = servers

    def servers_changed(self, servers: int) -> None:
        """Apply a number of servers that a server sends to all its agents."""
        self.advertised = min(servers, MAX_SERVERS)
        self.on_servers_changed()

    def other_sessions(self, client: ServerClient) -> list[bytes]:
        """Return the sessions of clients other than ``client``; the newest if too many."""
        others = [other for other in self.clients if other is not client]
        sessions = [session for other in others for session in other.sessions()]
        return [session.session_id for session in sessions[-MAX_LISTED_SESSIONS:]]

    def other_processes(self, client: ServerClient) -> list[bytes]:
        """Return the server processes with which clients other than ``client`` have sessions."""
        processes = {other.process for other in self.clients if other is not client}
        return sorted(process for process in processes if process is not None)

    def has_session_with(self, process: bytes) -> bool:
        """Return whether a client has a session, draining or not, with that process."""
        sessions = [session for client in self.clients for session in client.sessions()]
        return any(session.wire.peer.process == process for session in sessions)

    def next_delay(
        self,
        retries: int,
        rejections: int = 0,
        standing_by: bool = False,
        has_session: bool = False,
    ) -> float:
        """Return a random delay in seconds after ``retries`` attempts, shorter if more depends on
        it.

        ``rejections`` of them reached servers that are connected already; ``standing_by`` is
        whether the last one did, ``has_session`` whether a session is to be resumed. The delay is
        between zero and a bound that doubles each time ("full jitter"), so that many agents do not
        reconnect at the same moment.
        """
        if standing_by and not self.needs_sessions:
            return random.uniform(MAX_PROBE_DELAY / 2, MAX_PROBE_DELAY)
        if not (self.needs_sessions or has_session):
            longest = MAX_DELAY
        elif standing_by and 2 * rejections > retries:
            longest = _max_probe_delay(rejections)
        else:
            longest = URGENT_DELAY if retries < URGENT_ATTEMPTS else MAX_DELAY
        return full_jitter(retries, FIRST_DELAY, longest)


def delay_after_replacements(times: int) -> float:
    """Return a random delay in seconds after ``times`` consecutive replacements by other agents."""
    return equal_jitter(times - 1, REPLACED_DELAY, MAX_REPLACED_DELAY)


def _max_probe_delay(rejections: int) -> float:
    if rejections <= FREQUENT_PROBES:
        return URGENT_DELAY
    return MAX_DELAY if rejections <= URGENT_PROBES else MAX_PROBE_DELAY


def advertised_servers(hello: Hello) -> int | None:
    """Return the number of servers in a HELLO; ``None`` if it is missing or malformed."""
    text = hello.properties.get(SERVERS, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        return None
    return min(max(1, int(text)), MAX_SERVERS)
