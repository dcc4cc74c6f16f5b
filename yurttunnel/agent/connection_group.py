"""What the clients of one agent tell the servers, and what they know together."""

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
"""A lost connection is tried again within this many seconds: streams are waiting."""

URGENT_DELAY = 5.0
"""While a server is missing, the next attempt comes within this many seconds at first.

2,000 agents that have lost the same server dial its address 800 times a second together while
nobody answers there, which costs the other servers nothing. When it is back they come spread over
these five seconds: 800 TLS handshakes in the first second, fewer in each that follows, 400 a second
on the average."""

URGENT_ATTEMPTS = 120
"""After so many attempts in vain, some five minutes, a server is not expected back soon."""

LONGEST_DELAY = 60.0
"""However often it has failed, the next attempt comes within this many seconds."""

LONGEST_LOOK = 300.0
"""Seconds between two looks whether an address leads to a server that is not connected yet. One
costs both ends a TLS handshake: a thousand agents make about four a second of it."""

FIRST_LOOKS = 10
"""So many looks for a server that is missing, some twenty seconds of them, come as soon as other
attempts. Each is a TLS handshake with a server that is connected already. Of 2,000 agents with one
address that would be 1,200 a second, or what the servers can do, since an agent waits for each
answer; so they become fewer then, about 70 a second."""

URGENT_LOOKS = 20
"""After so many looks in vain for a server that is missing, some five minutes, it is taken to be
gone: the number that servers told may be an old one."""

REPLACED_DELAY = 20.0
"""Seconds that an agent waits at most when another one of the same node has taken its session; it
doubles each time. Each replacement ends the streams of the other."""

LONGEST_REPLACED_DELAY = 300.0
"""Seconds that it becomes at most, and that a session has to last for it to begin anew."""

MOST_KEPT = 32
"""How many of its sessions an agent tells a server at most: a HELLO is to hold its names, too."""

MOST_SERVERS = 32
"""With how many servers an agent has sessions at most, whatever they say how many they are."""


@dataclass(slots=True)
class ClientSettings:
    """What the agent tells the servers of itself.

    ``identifiers()`` gives, in the form of ``--agent-identifiers``, what it may be reached by at
    the moment. ``limits`` may be replaced: they count for sessions that begin then.
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
        """Make the HELLO that asks for a session.

        ``held`` are the processes of servers with which the agent has sessions already, ``kept``
        its other sessions. Its size depends on nothing else.
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
    """What the clients of one agent know together.

    ``advertised`` is how many servers there are by the newest HELLO that says it, ``None`` when
    none has, ``servers`` how many they are taken to be. ``wanting`` says that there are sessions
    with fewer servers than there are to be, ``spare`` that there are more servers than that.
    ``refusals`` counts attempts that have led to a server that is connected already.
    ``changed()`` is called whenever one of ``clients`` has got a session, has lost one, or stands
    by, ``everybody_told()`` when all agents have been told of servers, so that they are not to come
    at the same moment.
    """

    clients: Sequence[ServerClient] = field(default_factory=list)
    advertised: int | None = None
    servers: int = MOST_SERVERS
    wanting: bool = False
    spare: bool = False
    refusals: int = 0
    changed: Callable[[], object] = lambda: None
    everybody_told: Callable[[], object] = lambda: None

    def told(self, servers: int | None) -> None:
        """Take what a HELLO says of the number of servers.

        One that says nothing does not know it, as a server that has begun while the Kubernetes
        API did not answer.
        """
        if servers is not None:
            self.advertised = servers

    def told_meanwhile(self, servers: int) -> None:
        """Take what a server tells all its agents of the number of servers."""
        self.advertised = min(servers, MOST_SERVERS)
        self.everybody_told()

    def kept_by_others(self, client: ServerClient) -> list[bytes]:
        """Return the sessions of others than ``client``, the newest if there are very many."""
        others = [other for other in self.clients if other is not client]
        return [session.session_id for other in others for session in other.sessions()][-MOST_KEPT:]

    def held_by_others(self, client: ServerClient) -> list[bytes]:
        """Return the server processes with which others than ``client`` have sessions."""
        processes = {other.process for other in self.clients if other is not client}
        return sorted(process for process in processes if process is not None)

    def knows(self, process: bytes) -> bool:
        """Whether a client has a session with that server process, and be it one that ends."""
        sessions = [session for client in self.clients for session in client.sessions()]
        return any(session.wire.peer.process == process for session in sessions)

    def next_delay(
        self, retries: int, looks: int = 0, standing_by: bool = False, resumes: bool = False
    ) -> float:
        """Choose how many seconds to wait after so many attempts, fewer when more depends on it.

        ``looks`` of them have led to servers that are connected already; ``standing_by`` says
        that the last one has, ``resumes`` that a session waits to be resumed. The delay lies
        evenly between nothing and a bound that doubles each time ("full jitter"), so that many
        agents do not return at the same moment.
        """
        if standing_by and not self.wanting:
            return random.uniform(LONGEST_LOOK / 2, LONGEST_LOOK)
        if not (self.wanting or resumes):
            longest = LONGEST_DELAY
        elif standing_by and 2 * looks > retries:
            longest = _longest_between_looks(looks)
        else:
            longest = URGENT_DELAY if retries < URGENT_ATTEMPTS else LONGEST_DELAY
        return full_jitter(retries, FIRST_DELAY, longest)


def delay_after_replacements(times: int) -> float:
    """Choose how many seconds to wait when other agents have taken so many sessions in a row."""
    return equal_jitter(times - 1, REPLACED_DELAY, LONGEST_REPLACED_DELAY)


def _longest_between_looks(looks: int) -> float:
    if looks <= FIRST_LOOKS:
        return URGENT_DELAY
    return LONGEST_DELAY if looks <= URGENT_LOOKS else LONGEST_LOOK


def advertised_servers(hello: Hello) -> int | None:
    """Read how many servers there are; ``None`` when the server does not say so, or nonsense."""
    text = hello.properties.get(SERVERS, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        return None
    return min(max(1, int(text)), MOST_SERVERS)
