"""The nodes that should exist, connected or not: from the API, or from enrolments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from yurttunnel.cluster.nodes import Nodes
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import Revocations


class ExpectedNodes(Protocol):
    """Knows which nodes should exist."""

    def is_member(self, node: str) -> bool:
        """Return whether ``node`` counts as lost when it is gone; not after it was deleted."""
        ...

    def expected(self) -> Iterable[str]:
        """Iterate over the nodes that should be connected."""
        ...

    def reason(self, node: str) -> str | None:
        """Return why ``node`` should be connected, ``None`` if it is not expected."""
        ...


class ClusterNodes:
    """The nodes of the cluster: those with the labels of edge nodes are expected."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def is_member(self, node: str) -> bool:
        """Return whether the cluster has ``node``, as far as is known."""
        return not self._nodes.synced or self._nodes.get(node) is not None

    def expected(self) -> Iterator[str]:
        """Iterate over the edge nodes, once the cache is synced."""
        if self._nodes.synced:
            yield from [each.name for each in self._nodes.all() if each.edge]

    def reason(self, node: str) -> str | None:
        """Return that it is labelled as an edge node, if it is."""
        found = self._nodes.get(node) if self._nodes.synced else None
        if found is None or not found.edge:
            return None
        return "labelled as an edge node, but its agent has not connected"


class EnrolledNodes:
    """The nodes that were given certificates, unless these were revoked."""

    def __init__(self, records: NodeRecords, revocations: Revocations) -> None:
        self._records = records
        self._revocations = revocations

    def is_member(self, node: str) -> bool:
        """Return whether ``node`` was not revoked; another server may have enrolled it."""
        revocations = self._revocations
        return revocations.revoked_at(node) is None or revocations.is_enrolled(node)

    def expected(self) -> Iterator[str]:
        """Iterate over the enrolled nodes."""
        for each in self._records.all():
            if self._revocations.is_enrolled(each.node):
                yield each.node

    def reason(self, node: str) -> str | None:
        """Return when it was enrolled, if it was."""
        record = self._records.get(node)
        if record is None or not self._revocations.is_enrolled(node):
            return None
        when = f"{record.enrolled:%Y-%m-%d %H:%M} UTC"
        return f"enrolled on {when}, but its agent has not connected since"
