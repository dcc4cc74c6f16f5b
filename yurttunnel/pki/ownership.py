"""Whose a name or an address is: enrolled nodes have theirs, connected or not."""

from __future__ import annotations

from twisted.logger import Logger

from yurttunnel.http.authority import BadAuthority, canonical_host
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.records import NodeRecord, NodeRecords, claims_of
from yurttunnel.pki.revocation import Revocations


class Ownership:
    """Who has what, by the records of nodes that have not been revoked.

    Enrolments see to it that each name and address has one owner. Where records that came
    otherwise name several, it is the node of that name, or else the one that was enrolled first;
    the log tells of them at the start.
    """

    _log = Logger()

    def __init__(self, records: NodeRecords, revocations: Revocations) -> None:
        self._records = records
        self._revocations = revocations
        for claim in records.shared():
            having = [record.node for record in self._having(claim)]
            if len(having) > 1:
                self._log.warn(
                    "{claim} belongs to several enrolled nodes, {nodes}: only {owner} gets what is"
                    " for it; revoke those that should not have it",
                    claim=claim,
                    nodes=", ".join(having),
                    owner=self.owner(claim),
                )

    def owner(self, claim: str) -> str | None:
        """Return the node that has a name or address in its canonical form, if one has it."""
        having = self._having(claim)
        if not having:
            return None
        return min(having, key=lambda each: (each.node != claim, each.enrolled, each.node)).node

    def is_anothers(self, node: str, host: str) -> bool:
        """Return whether ``host``, a name or an address, is another node's than ``node``'s."""
        try:
            owner = self.owner(str(canonical_host(host)))
        except BadAuthority:
            return False
        return owner not in (None, node)

    def of_others(self, node: str, identifiers: Identifiers) -> dict[str, str]:
        """Return what others have of what ``node`` wants to itself, with its owners."""
        owners = {claim: self.owner(claim) for claim in claims_of(node, identifiers)}
        return {
            claim: owner for claim, owner in owners.items() if owner is not None and owner != node
        }

    def _having(self, claim: str) -> list[NodeRecord]:
        return [
            record
            for record in self._records.with_any([claim])
            if not self._revocations.is_enrolment_revoked(record.enrolment)
        ]
