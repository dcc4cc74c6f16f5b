"""The node's credentials for the servers, and the authorities it trusts, kept current."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime

from yurttunnel.pki.authorities import Authorities
from yurttunnel.pki.contexts import EXPECTED_SERVER, ClientContexts, ExpectedServer
from yurttunnel.pki.renewal import CertificateRenewal
from yurttunnel.pki.trust import Trust


class AgentTrust(Trust):
    """An agent's trust: ``certificate`` is that of its node, ``expected`` that of
    :class:`ClientContexts`.
    """

    def __init__(
        self,
        clock: IReactorTime,
        certificate: CertificateRenewal,
        authorities: Callable[[], Authorities | None] = lambda: None,
        reload_problem: Callable[[], str | None] = lambda: None,
        expected: ExpectedServer = EXPECTED_SERVER,
    ) -> None:
        super().__init__(clock, {"agent": certificate}, authorities, reload_problem)
        self._contexts: ClientContexts | None = None
        self._build = partial(ClientContexts, expected=expected)
        self.certificate = certificate

    async def ready(self) -> ClientContexts:
        """Wait for a certificate, while the service runs, and return the contexts for sessions.

        They are then current for each handshake. Can be cancelled. Fails only if waiting longer
        would change nothing, with a message for whoever started the agent.
        """
        await self.certificate.when_ready()
        if self._contexts is None:
            credentials = partial(self.credentials, self.certificate)
            self._contexts = self._live.follow(credentials, self._build)
        return self._contexts

    def creator(self, server_name: str) -> IOpenSSLClientConnectionCreator:
        """Return TLS for a server whose certificate is for a name, once this is ready."""
        assert self._contexts is not None
        return self._contexts.creator(server_name)
