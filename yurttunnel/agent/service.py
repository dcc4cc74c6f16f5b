"""The agent as a service: enrols, connects to its servers, and leaves them in an orderly way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.application.service import MultiService, Service
from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from yurttunnel.agent.client import ServerClient
from yurttunnel.agent.dialer import Dialer
from yurttunnel.ops.drain import within
from yurttunnel.ops.fatal import end_process
from yurttunnel.pki.contexts import ClientContexts, ServerNotTrusted
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.enrolment_messages import EnrolmentRefused
from yurttunnel.pki.standalone import AgentTrust
from yurttunnel.pki.token import BadToken
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.wire.codes import Code


class AgentService(Service):
    """Runs one client for each server, as soon as the node has a certificate.

    ``make_clients`` builds the clients once there are TLS contexts. ``drain_timeout`` is in
    seconds: how long stopping waits for streams to end.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        trust: AgentTrust,
        servers: Sequence[ServerAddress],
        make_clients: Callable[[ClientContexts], list[ServerClient]],
        dialer: Dialer,
        drain_timeout: float,
    ) -> None:
        self._reactor = reactor
        self._trust = trust
        self._servers = servers
        self._make_clients = make_clients
        self._dialer = dialer
        self._drain_timeout = drain_timeout
        self._clients: list[ServerClient] = []
        self._beginning: Deferred[None] | None = None
        self._draining = False

    def sessions(self) -> list[TunnelSession]:
        """Give the sessions with all servers."""
        return [session for client in self._clients for session in client.sessions()]

    def failed_attempts(self) -> int:
        """Count the connection attempts that ended before a server's HELLO."""
        return sum(client.failed_attempts for client in self._clients)

    def not_connected(self) -> str | None:
        """Say why no server can reach the node, for ``/readyz``; one that does is enough."""
        if self._draining:
            return "draining"
        if not self._clients:
            return "not enrolled yet"
        if any(client.connected for client in self._clients):
            return None
        return f"not connected: {', '.join(self._missing())}"

    def partly_connected(self) -> str | None:
        """Say which servers are missing beside those that are connected, as a warning."""
        if self._draining or not any(client.connected for client in self._clients):
            return None
        missing = self._missing()
        return f"not connected: {', '.join(missing)}" if missing else None

    def _missing(self) -> list[str]:
        return [
            f"{client.server} ({client.last_error or 'the connection was lost'})"
            for client in self._clients
            if not (client.connected or client.standing_by)
        ]

    def certificate_problem(self) -> str | None:
        """Say what is wrong with the node's certificate, for ``/readyz``."""
        renewal = self._trust.renewal
        return "not enrolled yet" if renewal is None else renewal.last_error or None

    def startService(self) -> None:
        """Enrol if needed, then connect to every server."""
        super().startService()
        self._beginning = Deferred.fromCoroutine(self._begin())

    async def _begin(self) -> None:
        try:
            contexts = await self._trust.ready(self._servers)
            self._clients = self._make_clients(contexts)
        except CancelledError:
            return
        except (EnrolmentRefused, ServerNotTrusted, BadToken, StateError, ValueError) as error:
            # Trying again would not change it; whoever started the agent should see it.
            end_process(self._reactor, f"yurttunnel-agent: {error}")
            return
        except Exception as error:
            self._log.failure("the agent could not begin, by a defect of its own")
            end_process(self._reactor, f"yurttunnel-agent: internal error: {error!r}")
            return
        for client in self._clients:
            client.start()

    def stopService(self) -> Deferred[None]:
        """Take nothing new, let streams end within the drain timeout, then end the rest."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._draining = True
        if self._beginning is not None:
            self._beginning.cancel()
        ended = [session.ended() for session in self.sessions()]
        for client in self._clients:
            client.drain("the agent is about to stop")
        if not await within(self._reactor, self._drain_timeout, ended):
            self._log.warn("streams were still open after --drain-timeout; they are ended")
        self._dialer.stop()
        for client in self._clients:
            client.close(Code.GOING_AWAY, "the agent has stopped")


class PortService(Service):
    """Listens while it runs; ``listen`` binds at once, or raises CannotListen."""

    def __init__(self, listen: Callable[[], IListeningPort]) -> None:
        self._listen = listen
        self._port: IListeningPort | None = None

    def startService(self) -> None:
        """Bind."""
        self._port = self._listen()
        super().startService()

    def stopService(self) -> Deferred[None] | None:
        """Close the port."""
        super().stopService()
        port, self._port = self._port, None
        return None if port is None else port.stopListening()


class StoppedInTurn(MultiService):
    """Stops its parts one after the other, the last one first.

    So those that come first serve the others to their end: ``/readyz`` tells of the drain.
    """

    def stopService(self) -> Deferred[None]:
        """Stop every part, each when the one behind it has stopped."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        Service.stopService(self)
        for part in reversed(list(self)):
            await maybeDeferred(part.stopService)
