"""The agent as a service: gets a certificate, connects to servers, and leaves them cleanly."""

from __future__ import annotations

from collections.abc import Callable

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.server_addresses import IServerAddresses
from yurttunnel.agent.servers import ServerSet, ServerStats
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.ops.ending import end_process
from yurttunnel.ops.waiting import within
from yurttunnel.pki.contexts import ClientContexts, ServerNotTrusted
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_messages import EnrolmentRefused
from yurttunnel.pki.token import BadToken
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.wire.codes import Code


class AgentService(Service):
    """Connects to the servers, wherever they are, as soon as the node has a certificate.

    ``make_servers`` builds what keeps the sessions once there are TLS contexts, ``addresses``
    tells it where to. ``drain_timeout`` is in seconds: how long stopping waits for streams to
    end.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        trust: AgentTrust,
        addresses: IServerAddresses,
        make_servers: Callable[[ClientContexts], ServerSet],
        dialer: Dialer,
        drain_timeout: float,
    ) -> None:
        self._reactor = reactor
        self._trust = trust
        self._addresses = addresses
        self._make_servers = make_servers
        self._dialer = dialer
        self.drain_timeout = drain_timeout
        self._servers: ServerSet | None = None
        self._beginning: Deferred[None] | None = None
        self._draining = False

    def sessions(self) -> list[TunnelSession]:
        """Return the sessions with all servers."""
        return [] if self._servers is None else self._servers.sessions()

    def failed_attempts(self) -> int:
        """Count the connection attempts that ended before a server's HELLO."""
        return 0 if self._servers is None else self._servers.failed_attempts()

    def stats(self) -> ServerStats:
        """Return what is counted of servers, for the metrics."""
        return ServerStats() if self._servers is None else self._servers.stats()

    def not_connected(self) -> str | None:
        """Return why no server can reach the node, for ``/readyz``; one that does is enough."""
        if self._draining:
            return "draining"
        if self._servers is None:
            return self._trust.problem() or "about to connect"
        problem = self._servers.not_connected()
        if problem is not None and not self._servers.has_addresses:
            return self._addresses.problem() or problem
        return problem

    def partly_connected(self) -> str | None:
        """Return which servers are missing, as a warning, also when none is there."""
        problem = self.not_connected()
        if problem is not None or self._servers is None:
            return problem
        return self._servers.partly_connected()

    async def claim_anew(self) -> None:
        """Have a server told of the certificate's identifiers, if they have changed."""
        if self._servers is not None and not self._draining:
            self._servers.claim_anew()

    def startService(self) -> None:
        """Get a certificate if needed, then connect to the servers."""
        super().startService()
        self._beginning = Deferred.fromCoroutine(self._begin())

    async def _begin(self) -> None:
        try:
            self._servers = self._make_servers(await self._trust.ready())
            self._addresses.follow(self._servers.use)
        except CancelledError:
            return
        except (EnrolmentRefused, ServerNotTrusted, BadToken, StateError, ValueError) as error:
            # Trying again would not change it; whoever started the agent should see it.
            end_process(self._reactor, f"yurttunnel-agent: {error}")
        except Exception as error:
            self._log.failure("the agent could not begin because of a defect")
            end_process(self._reactor, f"yurttunnel-agent: internal error: {error!r}")

    def stopService(self) -> Deferred[None]:
        """Take nothing new, let streams end within the drain timeout, then end the rest."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._draining = True
        if self._beginning is not None:
            self._beginning.cancel()
        ended = [session.ended() for session in self.sessions()]
        if self._servers is not None:
            self._servers.drain("the agent is about to stop")
        if not await within(self._reactor, self.drain_timeout, ended):
            self._log.warn("streams were still open after --drain-timeout; they are ended")
        self._dialer.stop()
        if self._servers is not None:
            self._servers.close(Code.GOING_AWAY, "the agent has stopped")
