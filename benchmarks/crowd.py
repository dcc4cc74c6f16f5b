"""Many agents in one process, each with its own node, certificate, enrolment and session.

They use the real agent's code from the sessions down to TLS, with its backoff. They share the parts
that an agent process has once (meta port, counters, dialer), so that thousands fit into one
process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.internet.interfaces import (
    IDelayedCall,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.agent.connection_group import ClientSettings
from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.policy import DestinationPolicy
from yurttunnel.agent.resolver import NodeResolver, system_lookups
from yurttunnel.agent.server_endpoint import server_endpoint
from yurttunnel.agent.servers import ServerSet
from yurttunnel.pki.authority import Authority, request_certificate
from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.credentials import Credentials, new_key
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.pki.enrolment_client import ServerAddress, enroll
from yurttunnel.pki.identity import Identifiers, format_identifiers
from yurttunnel.pki.token import JoinToken
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.connection import SessionConnection
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import Hello, Limits

FIRST_ADDRESS = int(ip_address("10.0.0.1"))
"""The address of the first node; each node has its own, and nothing connects to them."""

LOOPBACK = ip_address("127.0.0.1")
"""The address that the names of all nodes resolve to, on the node itself."""

AT_A_TIME = 8
"""The number of concurrent enrolments, so that the server is kept busy but not overloaded."""

MAX_CONNECTING = 512
"""The number of concurrent connection attempts. An agent on its own machine answers its server
within a round trip; in this process it would wait for thousands of other attempts, for longer than
the server's timeout."""

MEMORY_BUDGET = 1024 * 1024 * 1024
"""The memory budget in bytes for the streams of all sessions."""


NODE_NAME = "many-%d"
"""The name of an agent's node, numbered from 0."""


@dataclass(slots=True)
class Stats:
    """A snapshot of the agents.

    ``enrolled`` agents have enrolled, in a total of ``enrolment_seconds``. ``failed_attempts`` is
    the number of connection attempts that ended before the server's HELLO. ``connected_since`` are
    the start times of the sessions of all connected agents, in seconds since the epoch.
    """

    enrolled: int
    enrolment_seconds: float
    failed_attempts: int
    connected_since: list[float] = field(default_factory=list)


class Crowd:
    """``count`` agents of the server at ``host`` and ``port`` whose state is in ``server_state``.

    :meth:`get_certificates` enrolls ``enrolling`` of them; the certificates of the others are of
    the same kind but signed directly with the authority's key, which is faster. :meth:`connect`
    connects some of them. Through each agent every port of 127.0.0.1 is reachable by the name of
    its node.
    """

    def __init__(
        self, reactor: Any, host: str, port: int, server_state: Path, count: int, enrolling: int
    ) -> None:
        self._reactor = reactor
        self._location = (host, port)
        self._server = ServerAddress(host, port, server_endpoint(reactor, host, port))
        self._server_state = server_state
        self._count = count
        self._enrolling = min(enrolling, count)
        self._contexts: dict[int, ClientContexts] = {}
        self._enrolment_seconds = 0.0
        self._agents: list[ServerSet] = []
        self._starting: IDelayedCall | None = None
        self._connecting = DeferredSemaphore(MAX_CONNECTING)
        names = {NODE_NAME % number: (LOOPBACK,) for number in range(count)}
        counters = TunnelCounters()
        dialer = Dialer(
            reactor,
            DestinationPolicy("many", [LOOPBACK]),
            NodeResolver(system_lookups(reactor), names),
            "many",
            counters.dial_durations,
        )
        self._context = SessionContext(reactor, counters, MemoryBudget(MEMORY_BUDGET), dialer)

    async def get_certificates(self) -> None:
        """Get a certificate for each agent; raises ``FirstError`` if one fails."""
        await self._enroll()
        authority = Authority.open(self._reactor, StateDirectory.open_existing(self._server_state))
        for number in range(self._enrolling, self._count):
            key = new_key()
            certificate = authority.sign_node(
                NODE_NAME % number, _identifiers(number), key.public_key(), secrets.token_hex(8)
            )
            self._contexts[number] = ClientContexts(authority.credentials(key, certificate))

    async def _enroll(self) -> None:
        began = time.monotonic()
        token = JoinToken.parse((self._server_state / "join-token").read_text("ascii").strip())
        # The workers share the iterator: each takes the next number when it has finished one.
        work = (self._enroll_one(number, token) for number in range(self._enrolling))
        workers = [self._context.cooperator.cooperate(work) for _ in range(AT_A_TIME)]
        await gatherResults([each.whenDone() for each in workers], consumeErrors=True)
        self._enrolment_seconds = time.monotonic() - began

    def _enroll_one(self, number: int, token: JoinToken) -> Deferred[None]:
        async def enrolment() -> None:
            node, identifiers, key = NODE_NAME % number, _identifiers(number), new_key()
            csr = request_certificate(key)
            certificate, authority = await enroll(
                self._reactor, token, node, identifiers, csr, self._server
            )
            credentials = Credentials(key, certificate, (authority,), (authority,))
            self._contexts[number] = ClientContexts(credentials)

        return Deferred.fromCoroutine(enrolment())

    @property
    def has_certificates(self) -> bool:
        """Whether each agent has a certificate."""
        return len(self._contexts) == self._count

    def connect(self, count: int, rate: float) -> None:
        """Connect the first ``count`` agents, at most ``rate`` each second."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        if len(self._agents) < min(count, self._count):
            self._agents.append(self._start(len(self._agents)))
            self._starting = self._reactor.callLater(1 / rate, self._connect_next, count, rate)

    def _connect_next(self, count: int, rate: float) -> None:
        self._starting = None
        self.connect(count, rate)

    def _start(self, number: int) -> ServerSet:
        contexts, identifiers = self._contexts[number], format_identifiers(_identifiers(number))

        def secured(host: str, port: int, skip: int) -> IStreamClientEndpoint:
            endpoint = server_endpoint(self._reactor, host, port, lambda: skip)
            secured = tls.TLSEndpoint(self._reactor, contexts.creator(host), endpoint)
            return _QueuedEndpoint(secured, self._connecting)

        settings = ClientSettings(NODE_NAME % number, lambda: identifiers, Limits(), "benchmark")
        servers = ServerSet(self._context, settings, secured)
        servers.use([self._location])
        return servers

    def sessions(self) -> list[TunnelSession]:
        """Return all sessions."""
        return [session for agent in self._agents for session in agent.sessions()]

    def stats(self) -> Stats:
        """Return a snapshot."""
        return Stats(
            enrolled=self._enrolling,
            enrolment_seconds=self._enrolment_seconds,
            failed_attempts=sum(agent.failed_attempts() for agent in self._agents),
            connected_since=[
                session.since.timestamp() for session in self.sessions() if session.connected
            ],
        )

    def stop(self) -> None:
        """End all sessions."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        for agent in self._agents:
            agent.close(Code.GOING_AWAY, "the agent has stopped")


@implementer(IStreamClientEndpoint)
class _QueuedEndpoint:
    """Connects through ``endpoint`` once it has acquired one of the ``connecting``.

    It releases that when the session has begun, or the attempt has failed.
    """

    def __init__(self, endpoint: IStreamClientEndpoint, connecting: DeferredSemaphore) -> None:
        self._endpoint = endpoint
        self._connecting = connecting

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect a protocol of ``protocolFactory``."""
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        await self._connecting.acquire()
        try:
            connection = await self._endpoint.connect(factory)
        except BaseException:
            self._connecting.release()
            raise
        assert isinstance(connection, SessionConnection)
        self._release_after(connection)
        return connection

    def _release_after(self, connection: SessionConnection) -> None:
        start, lost = connection.start, connection.connectionLost

        def begun(
            session: TunnelSession, hello: Hello, on_used: Callable[[], object] | None = None
        ) -> None:
            self._connecting.release()
            connection.connectionLost = lost  # type: ignore[method-assign] # it has been released
            start(session, hello, on_used)

        def failed(reason: Failure = connectionDone) -> None:
            self._connecting.release()
            lost(reason)

        connection.start = begun  # type: ignore[method-assign] # no event reports it
        connection.connectionLost = failed  # type: ignore[method-assign] # as above


def _identifiers(number: int) -> Identifiers:
    return Identifiers(frozenset(), frozenset({IPv4Address(FIRST_ADDRESS + number)}))
