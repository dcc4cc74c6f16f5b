"""Says who an agent is by its certificate, while some still have the one of yurttunnel 1.2."""

from __future__ import annotations

from collections import OrderedDict

from cryptography import x509
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.cluster_identity import cluster_identity, has_common_name
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.metrics import CommonCertificateCounters

WARNING_INTERVAL = 3600.0
"""Seconds between two warnings of the same node."""
MAX_NODES = 4096
"""How many nodes are kept in mind for that."""


class NodeIdentification:
    """Reads certificates of agents; those of yurttunnel 1.2 only if ``accepts_common``."""

    _log = Logger()

    def __init__(self, clock: IReactorTime, accepts_common: bool) -> None:
        self._clock = clock
        self._accepts_common = accepts_common
        # When each node was warned of, the last one last.
        self._warned: OrderedDict[str, float] = OrderedDict()
        self.counters = CommonCertificateCounters()

    def identify(self, certificate: x509.Certificate) -> NodeIdentity:
        """Return whose certificate this is, which TLS has verified; raises ``BadIdentity``."""
        if not has_common_name(certificate):
            return cluster_identity(certificate)
        if not self._accepts_common:
            self.counters.refused += 1
        identity = cluster_identity(certificate, self._accepts_common)
        self.counters.accepted += 1
        self._warn(identity.node)
        return identity

    def _warn(self, node: str) -> None:
        now = self._clock.seconds()
        if now - self._warned.get(node, -WARNING_INTERVAL) < WARNING_INTERVAL:
            return
        self._warned[node] = now
        self._warned.move_to_end(node)
        if len(self._warned) > MAX_NODES:
            self._warned.popitem(last=False)
        self._log.warn(
            "{node}: accepted with a certificate that every agent of yurttunnel 1.2 can get in"
            " the name of any node, because of --accept-common-agent-certificates; upgrade this"
            " node's agent",
            node=node,
        )
