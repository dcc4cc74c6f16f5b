"""Who the node is to the servers: the seam between the agent and the ways to a certificate."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from yurttunnel.pki.contexts import ClientContexts
from yurttunnel.pki.enrolment_client import ServerAddress
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.standalone import AgentTrust


class NodeTrust(Protocol):
    """Gets the node a certificate and keeps it good.

    In a cluster that is :class:`~yurttunnel.pki.cluster_agent.ClusterAgentTrust`.
    """

    def ready(self) -> Awaitable[ClientContexts]:
        """Return the contexts for sessions once there is a certificate, however long it takes.

        Cancelling ends the waiting. Fails only when waiting longer would change nothing, with a
        sentence for whoever has started the agent.
        """

    def problem(self) -> str | None:
        """Return, for ``/readyz``, why there is no certificate that is good, if there is none."""

    def warning(self) -> str | None:
        """Return what keeps a certificate that is good from being replaced, or from being kept."""

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return when the certificates in use end, by name; nothing while there are none."""


class EnrolledTrust:
    """Trust without a cluster: the certificate is that of an enrolment at one of ``servers``."""

    def __init__(self, trust: AgentTrust, servers: Sequence[ServerAddress]) -> None:
        self._trust = trust
        self._servers = servers

    async def ready(self) -> ClientContexts:
        """Enroll if needed."""
        return await self._trust.ready(self._servers)

    def problem(self) -> str | None:
        """Return why there is no good certificate (not enrolled, expired), ``None`` if there is."""
        renewal = self._trust.renewal
        if renewal is None:
            return self._trust.waits_for or "not enrolled yet"
        return renewal.problem()

    def warning(self) -> str | None:
        """Return why the certificate is not renewed, or not kept, while it is good."""
        renewal = self._trust.renewal
        return None if renewal is None else renewal.warning()

    def certificates(self) -> Mapping[str, datetime.datetime]:
        """Return the end of the node's certificate."""
        renewal = self._trust.renewal
        return {} if renewal is None else {"agent": renewal.not_after}


def claimable(desired: Identifiers, covered: Identifiers | None) -> Identifiers:
    """Return what of ``desired`` a certificate covers: a server refuses who claims more.

    Without a certificate (``None``) that is all of it.
    """
    if covered is None:
        return desired
    return Identifiers(
        hosts=desired.hosts & covered.hosts,
        addresses=frozenset(
            address
            for address in desired.addresses
            if address in covered.addresses
            or any(address in network for network in covered.networks)
        ),
        networks=desired.networks & covered.networks,
        default_route=desired.default_route and covered.default_route,
    )
