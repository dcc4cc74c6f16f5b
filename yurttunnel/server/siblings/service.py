"""The siblings of a server as a service: discovery, sessions, metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twisted.application.service import Service
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.interfaces import (
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    IStreamClientEndpoint,
)
from twisted.logger import Logger

from yurttunnel.kube.interfaces import IInformer
from yurttunnel.metrics import Metric, counter, gauge
from yurttunnel.server.agents import AgentListener, RefuseStreams
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.siblings.acceptor import SiblingAcceptor
from yurttunnel.server.siblings.client import SiblingClient, SiblingContext, State
from yurttunnel.server.siblings.replicas import Address, by_replica
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.sockets import TunedEndpoint, tune_session_socket
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.tunnel.tls import SIBLING_ALPN
from yurttunnel.wire.codes import Code

CONNECT_TIMEOUT = 5.0
"""The timeout in seconds for the TCP connection to a sibling."""

MAX_SIBLINGS = 64
"""The maximum number of siblings with sessions; each server has one with each other."""


LISTING_TIMEOUT = 60.0
"""Seconds from its start for which a server waits to be listed itself before it reports the number
of replicas. Listing takes the first probe of its pod, within ten seconds, and the control plane's
processing, in which client-go's informers delay nothing by more than a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingStats:
    """The values of the metrics.

    ``known`` and ``connected`` count siblings, without this server. ``remote_nodes`` counts nodes
    that are reached only through siblings. ``outgoing`` counts this server's requests to siblings,
    ``incoming`` theirs to it; ``open_outgoing`` and ``open_incoming`` are the current numbers of
    streams. ``failed_attempts`` counts connections that did not become a session.
    """

    known: int
    connected: int
    remote_nodes: int
    outgoing: TunnelCounters
    incoming: TunnelCounters
    open_outgoing: int
    open_incoming: int
    failed_attempts: int


def _openings(stats: SiblingStats) -> Iterable[tuple[tuple[str, str], int]]:
    for direction, counters in (("out", stats.outgoing), ("in", stats.incoming)):
        for code in sorted({Code.DONE, Code.SESSION_LOST, *counters.dials}):
            yield (direction, code.name), counters.dials[code]


METRICS: tuple[Metric[SiblingStats], ...] = (
    gauge(
        "yurttunnel_server_siblings",
        "Other replicas of this server: known from the EndpointSlices of its Service, and"
        " connected. If fewer are connected than known for long, the log has the reason; check the"
        " network between the servers on the agents' port.",
        lambda stats: (("known", stats.known), ("connected", stats.connected)),
        "state",
    ),
    gauge(
        "yurttunnel_server_remote_nodes",
        "Nodes that this server reaches only through a sibling. Many for long: agents do not"
        " connect to all servers; check which servers they know (/readyz of the agent, its log).",
        lambda stats: stats.remote_nodes,
    ),
    gauge(
        "yurttunnel_server_sibling_streams",
        "Streams between this server and its siblings: out, to nodes that are connected to a"
        " sibling; in, to nodes that are connected to this server. Each connected sibling adds one"
        " stream in either direction for the list of nodes.",
        lambda stats: (("out", stats.open_outgoing), ("in", stats.open_incoming)),
        "direction",
    ),
    counter(
        "yurttunnel_server_sibling_stream_openings",
        "Streams opened between servers, by result: DONE, or the code of docs/protocol.md."
        " Occasional SESSION_LOST: a node or a sibling was lost meanwhile, and another route is"
        " tried if there is one.",
        _openings,
        "direction",
        "code",
    ),
    counter(
        "yurttunnel_server_sibling_bytes",
        "Payload of the streams between servers, out and in. Much of it compared with other"
        " traffic: see remote_nodes.",
        lambda stats: (
            ("out", stats.outgoing.bytes_sent + stats.incoming.bytes_sent),
            ("in", stats.outgoing.bytes_received + stats.incoming.bytes_received),
        ),
        "direction",
    ),
    counter(
        "yurttunnel_server_sibling_connection_failures",
        "Failed attempts to connect to siblings, before the sibling's HELLO. Some are normal"
        " while a replica starts or stops; the log has each new reason.",
        lambda stats: stats.failed_attempts,
    ),
)


class Siblings(Service):
    """Keeps a session with each sibling in ``addresses``, and serves theirs.

    ``context`` is that of the agents' sessions, with which memory is shared; ``agents`` is the
    listener whose port is shared, and which is notified of the number of replicas. ``creator`` is
    TLS to siblings: it offers ``SIBLING_ALPN``, and requires a certificate for the name that all
    replicas have. ``addresses`` is the informer of
    :func:`~yurttunnel.server.siblings.replicas.replica_slices`. This is a ``SessionOwner`` of the
    server's service, and is stopped after that.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        context: SessionContext,
        registry: SessionRegistry,
        agents: AgentListener,
        creator: IOpenSSLClientConnectionCreator,
        addresses: IInformer,
    ) -> None:
        self._reactor = reactor
        self._registry = registry
        self._agents = agents
        self._addresses = addresses
        self._counters = TunnelCounters()
        self._creator = creator
        self._context = SiblingContext(
            sessions=SessionContext(reactor, self._counters, context.budget, RefuseStreams()),
            registry=registry,
            process=agents.process,
            endpoint=self._endpoint,
            on_draining=agents.sessions_draining,
            on_identified=self._sibling_identified,
            on_closed=self._remove_ended,
        )
        self._acceptor = SiblingAcceptor(context, registry, agents.process, self._sibling_connected)
        self._clients: dict[str, SiblingClient] = {}
        self._draining: list[SiblingClient] = []
        self._former_failures = 0
        self._listed = False
        self._listed_call: IDelayedCall | None = None
        self._unfollow: Any = None
        self._apply_call: IDelayedCall | None = None
        agents.share_port(SIBLING_ALPN, self._acceptor.build)
        agents.on_closing.append(self.close_sessions)

    # -- for the composition -------------------------------------------------------------------

    def replicas(self) -> int | None:
        """Return the number of replicas, including this server; at least 1.

        ``None`` while it is unknown: the API has not responded yet, or, for :data:`LISTING_TIMEOUT`
        from the start, does not list this server. It lists this server once that is ready, and only
        then can it be expected to list replicas that have started at the same time.
        """
        if not self._addresses.synced or not (self._listed or self._is_late()):
            return None
        clients = self._clients.values()
        others = sum(client.state is not State.SELF for client in clients)
        # Until each address is identified, one of those not connected may be this server.
        listed = others < len(self._clients) or not all(client.connected for client in clients)
        return max(1, len(self._clients) if listed else others + 1)

    def problem(self) -> str | None:
        """Return which siblings are not connected, for ``/readyz``; does not affect readiness."""
        missing = [
            f"{client.replica} ({client.last_error})"
            for client in self._others()
            if client.last_error and not client.connected
        ]
        return f"siblings that cannot be connected to: {', '.join(missing)}" if missing else None

    def stats(self) -> SiblingStats:
        """Return the values of the metrics."""
        return SiblingStats(
            known=len(self._others()),
            connected=sum(client.connected for client in self._others()),
            remote_nodes=self._registry.remote_nodes,
            outgoing=self._counters,
            incoming=self._acceptor.counters,
            open_outgoing=_streams(self._outgoing()),
            open_incoming=_streams(self._acceptor.sessions()),
            failed_attempts=self._former_failures
            + sum(client.failed_attempts for client in self._all_clients()),
        )

    # -- IService, SessionOwner ---------------------------------------------------------------

    def startService(self) -> None:
        super().startService()
        self._listed_call = self._reactor.callLater(LISTING_TIMEOUT, self._late)
        self._unfollow = self._addresses.add_handler(self._changed)

    def stopService(self) -> None:
        super().stopService()
        self.close_sessions(Code.GOING_AWAY, "the server has stopped")

    def sessions(self) -> list[TunnelSession]:
        """Return the sessions in both directions, including those that are ending."""
        return [*self._outgoing(), *self._acceptor.sessions()]

    def drain(self, text: str) -> None:
        """Ask siblings to use other servers, open nothing through them, and let streams end."""
        self._stop_following()
        for client in self._clients.values():
            client.drain(text)
        self._acceptor.drain(text)

    def close_sessions(self, code: Code, text: str) -> None:
        """Stop discovery, and close all sessions now."""
        self._stop_following()
        for client in self._all_clients():
            client.close(code, text)
        self._acceptor.close(code, text)

    # -- helpers -------------------------------------------------------------------------------

    def _stop_following(self) -> None:
        unfollow, self._unfollow = self._unfollow, None
        if unfollow is not None:
            unfollow()
        calls, self._apply_call, self._listed_call = (
            (self._apply_call, self._listed_call),
            None,
            None,
        )
        for call in calls:
            if call is not None:
                call.cancel()

    def _is_late(self) -> bool:
        return bool(self.running) and self._listed_call is None

    def _late(self) -> None:
        """Assume that this server is not among those listed, for example if it runs in no pod."""
        self._listed_call = None
        self._agents.replicas_changed()

    def _sibling_identified(self) -> None:
        """Update the number of replicas after an address was identified."""
        self._listed = self._listed or len(self._others()) < len(self._clients)
        self._agents.replicas_changed()

    def _changed(self, old: object, new: object) -> None:
        """Schedule one update for all slices that change in one reactor iteration."""
        if self._apply_call is None:
            self._apply_call = self._reactor.callLater(0, self._apply)

    def _apply(self) -> None:
        self._apply_call = None
        desired = by_replica(self._addresses.values())
        if len(desired) > MAX_SIBLINGS:
            self._log.warn(
                "there are {count} replicas; only {most} are connected to",
                count=len(desired),
                most=MAX_SIBLINGS,
            )
            desired = dict(list(desired.items())[:MAX_SIBLINGS])
        for replica in self._clients.keys() - desired.keys():
            client = self._clients.pop(replica)
            self._draining.append(client)
            client.drain("the replica is not listed any longer")
        for replica, addresses in desired.items():
            client_there = self._clients.get(replica)
            if client_there is not None:
                client_there.update(addresses)
            else:
                client = self._clients[replica] = SiblingClient(self._context, replica, addresses)
                client.start()
        self._remove_ended()
        self._agents.replicas_changed()

    def _remove_ended(self) -> None:
        ended = [client for client in self._draining if not client.sessions()]
        self._former_failures += sum(client.failed_attempts for client in ended)
        self._draining = [client for client in self._draining if client not in ended]

    def _sibling_connected(self) -> None:
        """Connect to siblings now, instead of waiting for the backoff: one has just connected."""
        for client in self._clients.values():
            client.retry_now()

    def _endpoint(self, address: Address) -> IStreamClientEndpoint:
        host, port = address
        make = TCP6ClientEndpoint if ":" in host else TCP4ClientEndpoint
        tcp = make(self._reactor, host, port, timeout=CONNECT_TIMEOUT)
        tuned = TunedEndpoint(tcp, tune_session_socket)
        return tls.TLSEndpoint(self._reactor, self._creator, tuned)

    def _others(self) -> list[SiblingClient]:
        clients = self._clients.values()
        return [client for client in clients if client.state is not State.SELF]

    def _all_clients(self) -> list[SiblingClient]:
        return [*self._clients.values(), *self._draining]

    def _outgoing(self) -> list[TunnelSession]:
        return [tunnel for client in self._all_clients() for tunnel in client.sessions()]


def _streams(tunnels: list[TunnelSession]) -> int:
    return sum(len(tunnel.wire.streams) for tunnel in tunnels)
