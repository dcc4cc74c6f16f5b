"""Who the node is to the servers, and whom of them it believes, kept up to date."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from twisted.application.service import MultiService
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime

from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.contexts import ClientContexts, LiveAuthorities, LiveContexts
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.renewal import CertificateRenewal


class AgentTrust(MultiService):
    """What an agent needs to be known by its servers.

    As a service it gets the ``certificate`` of its node and keeps it good. Servers' certificates
    have to come from ``authorities``, or, when that is ``None``, from what has issued its own.
    """

    def __init__(
        self,
        clock: IReactorTime,
        certificate: CertificateRenewal,
        authorities: Authorities | None = None,
    ) -> None:
        super().__init__()
        self._live = LiveContexts(clock)
        self._authorities = LiveAuthorities(self._live, authorities)
        self._contexts: ClientContexts | None = None
        self.certificate = certificate
        certificate.on_change.append(lambda _: self._live.update())
        certificate.setServiceParent(self)

    async def ready(self) -> ClientContexts:
        """Wait for a certificate, while the service runs, and return the contexts for sessions.

        They are current for each handshake from then on. Cancelling ends the waiting. Fails only
        when waiting longer would change nothing, with a sentence for whoever started the agent.
        """
        await self.certificate.when_ready()
        if self._contexts is None:
            self._contexts = ClientContexts(self._credentials())
            self._live.follow(self._contexts, self._credentials)
        return self._contexts

    def creator(self, server_name: str) -> IOpenSSLClientConnectionCreator:
        """Return TLS toward a server whose certificate is for a name, when this is ready."""
        assert self._contexts is not None
        return self._contexts.creator(server_name)

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return when the certificates in use end, by name; nothing while there are none."""
        end = self.certificate.not_after
        return {} if end is None else {"agent": end}

    def problem(self) -> str | None:
        """Return why there is no certificate that is good, if there is none."""
        return self.certificate.problem()

    def warning(self) -> str | None:
        """Return what is not kept up to date while what is there does its work."""
        return self.certificate.warning()

    def use_authorities(self, authorities: Authorities) -> None:
        """Believe these from now on, or raise and leave everything as it was."""
        self._authorities.use(authorities)
        self.certificate.authorities_changed(authorities)

    def _credentials(self) -> Credentials:
        return self.certificate.credentials(self._authorities.current)
