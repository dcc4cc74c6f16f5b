"""Whose a name or an address is: enrolled nodes have theirs, connected or not."""

from __future__ import annotations

from collections.abc import Collection

from twisted.logger import Logger

from yurttunnel.http.authority import Address, BadAuthority, canonical_host
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords, claims_of
from yurttunnel.pki.revocation import Revocations


class Ownership:
    """Who has what, by the records of nodes that have not been revoked.

    A name has one owner, and an address that is somebody's name is that owner's alone. Other
    addresses may belong to several nodes: two sites behind NAT have the same private ones.

    Enrolments see to that. Where records that came otherwise name several, a name is that of the
    node of that name, or else of the one that was enrolled first; the log tells of them at the
    start.
    """

    _log = Logger()

    def __init__(self, records: NodeRecords, revocations: Revocations) -> None:
        self._records = records
        self._revocations = revocations
        for claim in records.shared():
            having = self._having(claim)
            owner = self.owner(claim)
            if owner is not None and len(having) > 1:
                self._log.warn(
                    "{claim} belongs to several enrolled nodes, {nodes}: only {owner} gets its"
                    " traffic; revoke the nodes that should not have it",
                    claim=claim,
                    nodes=", ".join(record.node for record in having),
                    owner=owner,
                )

    def owner(self, claim: str) -> str | None:
        """Return the node that has ``claim``, in its canonical form, for a name, if one has."""
        first = _first(claim, self._having(claim))
        return first.node if first is not None and _is_name(claim, first) else None

    def nodes_with(self, address: Address) -> Collection[str]:
        """Return the nodes that have an address, connected or not."""
        return [record.node for record in self._having(str(address))]

    def is_anothers(self, node: str, host: str) -> bool:
        """Return whether ``host``, a name or an address, is other nodes' and not ``node``'s."""
        try:
            claim = str(canonical_host(host))
        except BadAuthority:
            return False
        owner = self.owner(claim)
        if owner is not None:
            return owner != node
        having = self._having(claim)
        return bool(having) and all(record.node != node for record in having)

    def of_others(self, node: str, identifiers: Identifiers) -> dict[str, str]:
        """Return what ``node`` wants and cannot have, since others have it, with its owners.

        That are their names, and for a name of its own their addresses, too: whoever had it
        would get what is for the address.
        """
        owners = {claim: self.owner(claim) for claim in claims_of(node, identifiers)}
        for name in (node, *identifiers.hosts):
            first = _first(name, self._having(name))
            owners[name] = None if first is None else first.node
        return {
            claim: owner for claim, owner in owners.items() if owner is not None and owner != node
        }

    def _having(self, claim: str) -> list[NodeRecord]:
        return [
            record
            for record in self._records.with_any([claim])
            if not self._revocations.is_record_revoked(record)
        ]


def _first(claim: str, having: Collection[NodeRecord]) -> NodeRecord | None:
    """Return whose a claim is, if it is one node's alone."""

    def rank(record: NodeRecord) -> tuple[bool, bool, object, str]:
        is_own = record.node == claim
        return not is_own, not _is_name(claim, record), record.enrolled, record.node

    return min(having, key=rank, default=None)


def _is_name(claim: str, record: NodeRecord) -> bool:
    return claim == record.node or claim in record.identifiers.hosts
