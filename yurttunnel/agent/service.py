"""The agent as a service: gets a certificate, connects to the servers, and drains at the end."""

from __future__ import annotations

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from yurttunnel.agent.dialer import Dialer
from yurttunnel.agent.server_addresses import IServerAddresses
from yurttunnel.agent.servers import ServerSet, ServerStats
from yurttunnel.agent.trust import AgentTrust
from yurttunnel.ops.shutdown import exit_with_error
from yurttunnel.ops.timeouts import all_fired_within
from yurttunnel.pki.contexts import ServerNotTrusted
from yurttunnel.pki.directory import StateError
from yurttunnel.pki.enrolment_messages import EnrolmentRefused
from yurttunnel.pki.token import BadToken
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.wire.codes import Code


class AgentService(Service):
    """Connects to the servers, wherever they are, as soon as the node has a certificate.

    ``servers`` then uses the locations of ``addresses``. ``drain_timeout`` is in seconds: how long
    stopping waits for streams to end.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        trust: AgentTrust,
        addresses: IServerAddresses,
        servers: ServerSet,
        dialer: Dialer,
        drain_timeout: float,
    ) -> None:
        self._reactor = reactor
        self._trust = trust
        self._addresses = addresses
        self.servers = servers
        self._dialer = dialer
        self.drain_timeout = drain_timeout
        self._startup: Deferred[None] | None = None
        self._is_started = False
        self._draining = False

    def stats(self) -> ServerStats:
        """Return the values of the servers' metrics."""
        return self.servers.stats() if self._is_started else ServerStats()

    def problem(self) -> str | None:
        """Return why no server can reach the node, for ``/readyz``; one server suffices."""
        if self._draining:
            return "draining"
        if not self._is_started:
            return self._trust.problem() or "about to connect"
        problem = self.servers.problem()
        if problem is not None and not self.servers.has_addresses:
            return self._addresses.problem() or problem
        return problem

    def warning(self) -> str | None:
        """Return which servers are missing, as a warning, also if all are."""
        return self.problem() or self.servers.warning()

    async def update_identifiers(self) -> None:
        """Send changed identifiers of the certificate to a server."""
        if not self._draining:
            self.servers.update_identifiers()

    def startService(self) -> None:
        """Get a certificate if needed, then connect to the servers."""
        super().startService()
        self._startup = Deferred.fromCoroutine(self._start_up())

    async def _start_up(self) -> None:
        try:
            await self._trust.ready()
            self._is_started = True
            self._addresses.follow(self.servers.use)
        except CancelledError:
            return
        except (EnrolmentRefused, ServerNotTrusted, BadToken, StateError, ValueError) as error:
            # A retry would not help; whoever started the agent should see the error.
            exit_with_error(self._reactor, f"yurttunnel-agent: {error}")
        except Exception as error:
            self._log.failure("the agent could not start because of a defect")
            exit_with_error(self._reactor, f"yurttunnel-agent: internal error: {error!r}")

    def stopService(self) -> Deferred[None]:
        """Accept nothing new, let streams end within the drain timeout, then abort the rest."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        super().stopService()
        self._draining = True
        if self._startup is not None:
            self._startup.cancel()
        ended = [session.ended() for session in self.servers.sessions()]
        self.servers.drain("the agent is about to stop")
        if not await all_fired_within(self._reactor, self.drain_timeout, ended):
            self._log.warn("streams were still open after --drain-timeout; they are ended")
        self._dialer.stop()
        self.servers.close(Code.GOING_AWAY, "the agent has stopped")
