"""The modules that a standalone start imports: memory and time are spent only where needed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.e2e.programs import Program, Tunnel
from tests.e2e.support import EndToEndTestCase

OTHERS = (
    "h11",
    "http.server",
    "hyperlink",
    "importlib.metadata",
    "kubernetes",
    "prometheus_client",
    "treq",
    "twisted.conch",
    "twisted.spread",
    "twisted.web",
    "wsproto",
    "yaml",
)
"""Packages and modules of others that a standalone start has no use for."""

CLUSTER = (
    "yurttunnel.kube.client",
    "yurttunnel.kube.informer",
    "yurttunnel.kube.lease",
    "yurttunnel.ops.diagnose.command",
    "yurttunnel.pki.cluster_issuer",
    "yurttunnel.quickstart",
    "yurttunnel.steering.dns",
    "yurttunnel.steering.firewall",
    "yurttunnel.steering.netlink",
)
"""Modules for clusters, or for a separate command."""

SERVER_ONLY = ("yurttunnel.server", "yurttunnel.cluster", "yurttunnel.http.pool")
AGENT_ONLY = ("yurttunnel.agent",)

_IMPORT = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


class ImportTests(EndToEndTestCase):
    """Server and agent, from their start until the first requests of pages."""

    async def loaded(self, program: Program) -> set[str]:
        """Request all pages of probes and scrapers, and return the imported modules."""
        for page in ("/healthz", "/readyz", "/metrics", "/agents", "/"):
            status, _ = await program.get(page)
            self.assertEqual(200, status, page)
        found = set(_IMPORT.findall(program.log))
        # The list is that of a start, and not an empty one.
        self.assertIn("yurttunnel.wire.session", found)
        self.assertIn("twisted.internet.epollreactor", found)
        return found

    async def start(self) -> Tunnel:
        """Start both, with the interpreter's imports in their logs."""
        tunnel = self.make_tunnel()
        for program in (tunnel.server, tunnel.agent):
            program.run_under("env", "PYTHONPROFILEIMPORTTIME=1")
        await tunnel.start()
        return tunnel

    def assert_none_of(self, unwanted: Iterable[str], loaded: set[str]) -> None:
        """Fail if a module of ``unwanted``, or one in such a package, was imported."""
        parts = tuple(unwanted)
        found = [name for name in loaded if name.startswith(tuple(f"{part}." for part in parts))]
        self.assertEqual([], sorted({*found, *loaded.intersection(parts)}))

    async def test_server(self):
        """A server without a cluster imports nothing of clusters and agents, and no unused
        library.
        """
        tunnel = await self.start()
        self.assert_none_of((*OTHERS, *CLUSTER, *AGENT_ONLY), await self.loaded(tunnel.server))

    async def test_agent(self):
        """An agent without a cluster imports nothing of clusters and servers, and no unused
        library."""
        tunnel = await self.start()
        self.assert_none_of((*OTHERS, *CLUSTER, *SERVER_ONLY), await self.loaded(tunnel.agent))
