"""The sessions of an agent with the desired number of different servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from yurttunnel.agent.client import ServerClient
from yurttunnel.agent.connection_group import (
    FIRST_DELAY,
    MAX_SERVERS,
    URGENT_DELAY,
    ClientSettings,
    ConnectionGroup,
)
from yurttunnel.agent.routes import Location, Routes
from yurttunnel.metrics import Metric, counter, gauge
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.wire.codes import Code

NEW_LOCATION_DELAY = 10.0
"""The longest delay in seconds before a connected agent tries new addresses, of which all agents
learn at the same moment."""


@dataclass(frozen=True, slots=True)
class ServerStats:
    """The desired number of servers, the connected ones, and their addresses.

    ``already_connected`` counts attempts that reached a connected server, or another one than that
    of the session to resume.
    """

    desired: int = 0
    connected: int = 0
    addresses: int = 0
    already_connected: int = 0


METRICS: tuple[Metric[ServerStats], ...] = (
    gauge(
        "yurttunnel_agent_servers",
        "Number of servers: wanted, to which the agent should be connected (all replicas, or"
        " --server-connections), and connected. If connected is lower for minutes, /readyz lists"
        " each server. Requests reach the node as long as one server is connected.",
        lambda stats: (("wanted", stats.desired), ("connected", stats.connected)),
        "state",
    ),
    gauge(
        "yurttunnel_agent_server_addresses",
        "Number of known addresses of servers. If 0, see server addresses on /readyz.",
        lambda stats: stats.addresses,
    ),
    counter(
        "yurttunnel_agent_already_connected",
        "Connections that reached a server to which the agent was already connected, or another"
        " server than that of the session to resume. Some are normal if several servers share one"
        " address. A high rate while fewer are connected than"
        " wanted means that a load balancer does not distribute connections.",
        lambda stats: stats.already_connected,
    ),
)


class ServerSet:
    """Keeps sessions with the servers behind the addresses passed to :meth:`use`.

    Their number depends on the servers. If these send the number of servers, as in a cluster, there
    is a session with each, or with ``limit`` of them, whatever their addresses; one more client
    occasionally looks for an unreported server. If they do not, there is one client for each
    address, or for ``limit`` of them.

    A session at an address that is no longer used continues while its connection works. It is
    drained once there is another one, or an address in use leads to the same server.

    ``tls_endpoint`` is that of :class:`Routes`. ``expected`` is the number of servers to assume
    until they send it, ``None`` for one at each address.
    """

    _log = Logger()

    def __init__(
        self,
        context: SessionContext,
        settings: ClientSettings,
        tls_endpoint: Callable[[str, int, int], IStreamClientEndpoint],
        limit: int | None = None,
        expected: int | None = None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._limit = min(limit or MAX_SERVERS, MAX_SERVERS)
        self._clients: list[ServerClient] = []
        self._routes = Routes(tls_endpoint, self._clients)
        self._group = ConnectionGroup(
            self._clients,
            advertised=expected,
            on_change=self._adjust,
            # A change that all agents receive at the same moment must not cause simultaneous
            # attempts.
            on_servers_changed=lambda: self._adjust(within=URGENT_DELAY),
        )
        self._previous_processes: set[bytes] = set()
        self._removed_failures = 0
        self._adjusting = False
        self._adjust_again = False
        self._stopping = False

    # -- for the service -----------------------------------------------------------------------

    def use(self, locations: Sequence[Location]) -> None:
        """Use these addresses from now on; an empty list changes nothing."""
        if not locations or self._stopping or tuple(locations) == self._routes.locations:
            return
        self._routes.use(locations)
        any_session = any(client.process is not None for client in self._clients)
        for client in self._clients:
            if client.waiting:
                client.retry_soon(NEW_LOCATION_DELAY if any_session else FIRST_DELAY)
        self._adjust()

    def update_identifiers(self) -> None:
        """Send changed identifiers of the node to one server, by a new session.

        The others serve meanwhile: call it again for the next one.
        """
        identifiers = self._settings.identifiers()
        for client in self._clients:
            if client.connected and not client.draining and client.sent_identifiers != identifiers:
                self._log.info(
                    "{server}: the certificate has other identifiers now; starting a new session",
                    server=client.server,
                )
                client.replace_session("the agent starts a session with other identifiers")
                return

    def drain(self, text: str) -> None:
        """Let all sessions end together, with the last stream of all.

        Until then each server may have new streams for the node, and perhaps no other route.
        """
        self._stopping = True
        self._group.on_change = self._end_if_idle
        for client in self._clients:
            client.drain(text, self._is_idle)

    def close(self, code: Code, text: str) -> None:
        """Close all sessions now."""
        self._stopping = True
        for client in self._clients:
            client.close(code, text)

    # -- statistics -------------------------------------------------------------------------------

    def sessions(self) -> list[TunnelSession]:
        """Return all sessions, including those that are finishing their streams."""
        return [session for client in self._clients for session in client.sessions()]

    def failed_attempts(self) -> int:
        """Return the number of connection attempts that ended before a server's HELLO."""
        return self._removed_failures + sum(client.failed_attempts for client in self._clients)

    def stats(self) -> ServerStats:
        """Return the values of the metrics."""
        return ServerStats(
            self.desired, self.connected, len(self._routes.locations), self._group.already_connected
        )

    @property
    def has_addresses(self) -> bool:
        """Whether any address is known."""
        return bool(self._routes.locations)

    @property
    def connected(self) -> int:
        """The number of different servers with connected sessions."""
        return len({client.process for client in self._clients if client.connected} - {None})

    @property
    def desired(self) -> int:
        """The desired number of different servers with sessions.

        Not fewer than there are already: a server may not know of all the others.
        """
        return min(max(self._server_count, len(self._processes_of(self._current()))), self._limit)

    @property
    def _server_count(self) -> int:
        """The number of servers, as far as the agent knows."""
        return self._group.advertised or len(self._routes.locations)

    def problem(self) -> str | None:
        """Return why no server can reach the node; one connected server suffices."""
        if not self.has_addresses:
            return "no address of a server is known"
        if self.connected:
            return None
        return f"not connected: {', '.join(self._missing())}"

    def warning(self) -> str | None:
        """Return which servers are missing besides the connected ones."""
        if not self.connected:
            return None
        if self._group.advertised is None:
            missing = self._missing()
            return f"not connected: {', '.join(missing)}" if missing else None
        if self.connected >= self.desired:
            return self._server_count_problem()
        failed = [
            client.problem
            for client in self._clients
            if client.failed_server and not (client.connected or client.draining)
        ]
        sentence = f"connected to {self.connected} of {self.desired} servers"
        return f"{sentence}; not reached: {', '.join(failed)}" if failed else sentence

    def _server_count_problem(self) -> str | None:
        """Return a message while there may be servers that none has reported."""
        if any(client.connected and client.knows_server_count for client in self._clients):
            return None
        return (
            f"connected to {self.connected}; the total number of servers is not known, because no"
            " connected server has sent it yet"
        )

    def _missing(self) -> list[str]:
        return [
            client.problem
            for client in self._clients
            if not (client.connected or client.standing_by or client.draining)
        ]

    # -- helpers -------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not any(session.wire.streams for session in self.sessions())

    def _end_if_idle(self) -> None:
        for session in self.sessions():
            session.end_if_idle()

    def _adjust(self, within: float = 0.0) -> None:
        """Add and remove clients to match the desired number, until nothing changes any more.

        Missing servers are tried after at most ``within`` seconds; 0 means soon.
        """
        self._adjust_again = True
        if self._adjusting or self._stopping:
            return
        self._adjusting = True
        try:
            while self._adjust_again and not self._stopping:
                self._adjust_again = False
                self._adjust_once(within)
        finally:
            self._adjusting = False

    def _adjust_once(self, within: float) -> None:
        self._remove_ended()
        self._routes.shared = self._group.advertised is not None
        self._group.servers = self._server_count
        self._group.has_spare_servers = self._server_count > self._limit
        current = self._current()
        processes, previous = self._processes_of(current), self._previous_processes
        wanting, before = len(processes) < self.desired, self._group.needs_sessions
        self._group.needs_sessions, self._previous_processes = wanting, processes
        is_missing, lost = wanting and not before, previous - processes
        if is_missing or lost:
            self._routes.reset_history()
        if is_missing:
            for client in current:
                if client.waiting:
                    client.retry_soon(within or FIRST_DELAY)
        probes = self._routes.shared and not wanting and self.desired < self._limit
        desired = self.desired + probes
        self._remove_surplus(current, desired)
        # The cause of one agent's lost session may have affected those of all agents.
        self._add_missing(current, desired, within or (FIRST_DELAY if lost else 0.0))
        if any(client.connected or self._reaches_connected_server(client) for client in current):
            self._drain_unused_locations(current)

    def _current(self) -> list[ServerClient]:
        """Return the clients that should have a session at an address in use."""
        return [
            client
            for client in self._clients
            if not client.draining and not self._is_at_unused_location(client)
        ]

    @staticmethod
    def _processes_of(clients: list[ServerClient]) -> set[bytes]:
        """Return the server processes with which clients have sessions, connected or not."""
        return {client.process for client in clients if client.process is not None}

    def _is_at_unused_location(self, client: ServerClient) -> bool:
        """Return whether a client has a session at an address that is no longer used."""
        return client.process is not None and client.location not in self._routes.locations

    def _reaches_connected_server(self, client: ServerClient) -> bool:
        """Return whether an address in use belongs to a server that is connected already."""
        in_use = client.location in self._routes.locations
        return client.standing_by and client.waiting and in_use

    def _remove_ended(self) -> None:
        for client in list(self._clients):
            if client.draining and not client.sessions():
                self._remove(client)

    def _remove_surplus(self, current: list[ServerClient], desired: int) -> None:
        """Remove clients that are not needed; those with a session keep it."""
        idle = [client for client in current if client.waiting]
        idle.sort(key=lambda client: client.standing_by)
        while len(current) > desired and idle:
            client = idle.pop()
            client.close(Code.GOING_AWAY, "there are sessions with enough servers")
            current.remove(client)
            self._remove(client)

    def _add_missing(self, current: list[ServerClient], desired: int, within: float) -> None:
        """Add clients: if they share an address, one by one, to reach different servers."""
        at_once = min(desired, len(self._routes.locations))
        while len(current) < desired and (
            len(current) < at_once or not any(client.is_connecting for client in current)
        ):
            client = self._new_client()
            current.append(client)
            if len(current) > self.desired:
                client.start_standing_by()
            else:
                client.start(within)

    def _new_client(self) -> ServerClient:
        client = ServerClient(self._context, self._routes, self._settings, self._group)
        self._clients.append(client)
        return client

    def _remove(self, client: ServerClient) -> None:
        self._removed_failures += client.failed_attempts
        self._clients.remove(client)

    def _drain_unused_locations(self, current: list[ServerClient]) -> None:
        """Drain clients at addresses not in use; others may then connect to their servers."""
        unused = [
            client for client in self._clients if client not in current and not client.draining
        ]
        for client in unused:
            self._log.info(
                "{server}: the address is no longer in use; the session ends with its last stream",
                server=client.server,
            )
            client.drain("the server's address has changed")
        if unused:
            for client in current:
                if client.standing_by:
                    client.retry_soon()
