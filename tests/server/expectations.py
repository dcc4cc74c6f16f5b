"""Which nodes a test's server expects."""

from __future__ import annotations

from tests.cluster.fakes import FakeInformers
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.server.expected_nodes import ClusterNodes


def nothing_expected() -> ClusterNodes:
    """The nodes of a cluster whose API has told nothing yet."""
    return ClusterNodes(Nodes(FakeInformers(synced=False)))
