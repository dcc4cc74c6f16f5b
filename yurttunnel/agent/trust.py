"""The node's credentials for the servers, and the authorities it trusts, kept current."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping

from twisted.application.service import MultiService
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime

from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.contexts import ClientContexts, LiveContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.renewal import CertificateRenewal


class AgentTrust(MultiService):
    """An agent's credentials.

    As a service it gets and renews the ``certificate`` of its node. Servers' certificates must be
    issued by ``authorities()``, or, if that is ``None``, by the issuer of the node's own.
    """

    def __init__(
        self,
        clock: IReactorTime,
        certificate: CertificateRenewal,
        authorities: Callable[[], Authorities | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._live = LiveContexts(clock)
        self._authorities = authorities
        self._contexts: ClientContexts | None = None
        self.certificate = certificate
        certificate.on_change.append(lambda _: self._live.update())
        certificate.setServiceParent(self)

    async def ready(self) -> ClientContexts:
        """Wait for a certificate, while the service runs, and return the contexts for sessions.

        They are then current for each handshake. Can be cancelled. Fails only if waiting longer
        would change nothing, with a message for whoever started the agent.
        """
        await self.certificate.when_ready()
        if self._contexts is None:
            self._contexts = ClientContexts(self._credentials())
            self._live.follow(self._contexts, self._credentials)
        return self._contexts

    def creator(self, server_name: str) -> IOpenSSLClientConnectionCreator:
        """Return TLS for a server whose certificate is for a name, once this is ready."""
        assert self._contexts is not None
        return self._contexts.creator(server_name)

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return the expiry of the certificates in use, by name; empty without one."""
        end = self.certificate.not_after
        return {} if end is None else {"agent": end}

    def problem(self) -> str | None:
        """Return why there is no valid certificate, if there is none."""
        return self.certificate.problem()

    def warning(self) -> str | None:
        """Return which renewals or reloads fail, while the current files are still valid."""
        return self.certificate.warning()

    def authorities_changed(self, authorities: Authorities) -> None:
        """Trust the current authorities from now on, or raise."""
        self._live.update()
        self.certificate.authorities_changed(authorities)

    def _credentials(self) -> Credentials:
        return self.certificate.credentials(self._authorities())
