"""The nodes that a test's server expects."""

from __future__ import annotations

from tests.cluster.fakes import FakeInformers
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.server.expected_nodes import ClusterNodes


def nothing_expected() -> ClusterNodes:
    """Return the nodes of a cluster whose cache has not synced."""
    return ClusterNodes(Nodes(FakeInformers(synced=False)))
