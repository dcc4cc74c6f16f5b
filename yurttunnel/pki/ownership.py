"""The ownership of names and addresses by enrolled nodes, connected or not."""

from __future__ import annotations

from collections.abc import Collection

from twisted.logger import Logger

from yurttunnel.http.authority import Address, BadAuthority, canonical_host
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords, claims_of
from yurttunnel.pki.revocation import Revocations


class Ownership:
    """The owners of names and addresses, from the records of nodes that are not revoked.

    A name has one owner, and so has an address that a node has as a name. Other addresses may
    belong to several nodes, since two sites behind NAT may use the same private addresses.

    Enrolments enforce this. If records from elsewhere list several nodes for a name, its owner is
    the node of that name, or else the node that was enrolled first; a warning at the start lists
    them.
    """

    _log = Logger()

    def __init__(self, records: NodeRecords, revocations: Revocations) -> None:
        self._records = records
        self._revocations = revocations
        for claim in records.shared():
            sharing = self._records_with(claim)
            owner = self.owner(claim)
            if owner is not None and len(sharing) > 1:
                self._log.warn(
                    "{claim} belongs to several enrolled nodes, {nodes}: only {owner} gets its"
                    " traffic; revoke the nodes that should not have it",
                    claim=claim,
                    nodes=", ".join(record.node for record in sharing),
                    owner=owner,
                )

    def owner(self, claim: str) -> str | None:
        """Return the owner of the name ``claim``, in canonical form; ``None`` if it has none."""
        record = _owner_record(claim, self._records_with(claim))
        return record.node if record is not None and _is_name(claim, record) else None

    def nodes_with(self, address: Address) -> Collection[str]:
        """Return the nodes that have an address, connected or not."""
        return [record.node for record in self._records_with(str(address))]

    def belongs_to_other_node(self, node: str, host: str) -> bool:
        """Return whether ``host``, a name or an address, is other nodes' but not ``node``'s."""
        try:
            claim = str(canonical_host(host))
        except BadAuthority:
            return False
        owner = self.owner(claim)
        if owner is not None:
            return owner != node
        records = self._records_with(claim)
        return bool(records) and all(record.node != node for record in records)

    def claims_of_other_nodes(self, node: str, identifiers: Identifiers) -> dict[str, str]:
        """Return the claims of ``node`` that belong to other nodes, with their owners.

        These are names of other nodes, and also their addresses if ``node`` claims one as a name,
        because it would then receive the traffic to that address.
        """
        owners = {claim: self.owner(claim) for claim in claims_of(node, identifiers)}
        for name in (node, *identifiers.hosts):
            record = _owner_record(name, self._records_with(name))
            owners[name] = None if record is None else record.node
        return {
            claim: owner for claim, owner in owners.items() if owner is not None and owner != node
        }

    def _records_with(self, claim: str) -> list[NodeRecord]:
        return [
            record
            for record in self._records.with_any([claim])
            if not self._revocations.is_record_revoked(record)
        ]


def _owner_record(claim: str, records: Collection[NodeRecord]) -> NodeRecord | None:
    """Return the record of a claim's owner among the records that have the claim."""

    def rank(record: NodeRecord) -> tuple[bool, bool, object, str]:
        is_own = record.node == claim
        return not is_own, not _is_name(claim, record), record.enrolled, record.node

    return min(records, key=rank, default=None)


def _is_name(claim: str, record: NodeRecord) -> bool:
    return claim == record.node or claim in record.identifiers.hosts
