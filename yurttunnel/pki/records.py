"""The server's records of enrolled nodes, one file for each in ``nodes``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from twisted.logger import Logger

from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import (
    BadIdentifiers,
    Identifiers,
    format_identifiers,
    parse_identifiers,
)
from yurttunnel.pki.names import BadIdentity, check_node_name

NODES_DIRECTORY = "nodes"

_NEVER = datetime.datetime.max.replace(tzinfo=datetime.UTC)

_log = Logger()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """An enrolled node.

    ``identifiers`` are those of its newest certificate and of all other certificates of this
    enrolment that have not expired. ``enrolment`` is in all of its certificates until it is
    revoked. ``keys`` are pins of the keys that authenticate the node: that of its newest
    certificate and, since the response with that may have been lost, the one that it renewed with.
    """

    node: str
    identifiers: Identifiers
    enrolment: str
    keys: tuple[str, ...]
    enrolled: datetime.datetime
    """In UTC."""
    ends: Mapping[str, datetime.datetime] = field(default_factory=dict)
    """For each identifier, in text form, when the last certificate with it expires; in UTC.
    Identifiers that are not listed, such as the node's own name, never expire."""
    token_created: datetime.datetime | None = None
    """When the join token of the enrolment was created: later than the preceding revocation,
    whatever the clock was. If it is not set, ``enrolled`` is used."""

    def claims(self) -> frozenset[str]:
        """Return the names and addresses that identify this node."""
        return claims_of(self.node, self.identifiers)

    def with_certificate(
        self, identifiers: Identifiers, end: datetime.datetime, now: datetime.datetime
    ) -> NodeRecord:
        """Return the record with another certificate, without identifiers that have expired.

        The certificate is valid until ``end``. Raises :class:`BadIdentifiers` if there are too many
        identifiers in total.
        """
        ends = {item: self.ends.get(item, _NEVER) for item in _items(self.identifiers)}
        ends = {item: last for item, last in ends.items() if last > now}
        ends |= {item: max(end, ends.get(item, end)) for item in _items(identifiers)}
        return replace(self, identifiers=parse_identifiers("&".join(ends)), ends=ends)


def claims_of(node: str, identifiers: Identifiers) -> frozenset[str]:
    """Return the names and addresses that identify a node with these identifiers.

    Loopback and link-local addresses are excluded, since every node has them, and networks, which
    may overlap; a network of one address is parsed as that address (:func:`parse_identifiers`).
    """
    addresses = (a for a in identifiers.addresses if not (a.is_loopback or a.is_link_local))
    return frozenset({node, *identifiers.hosts, *map(str, addresses)})


class NodeRecords:
    """All records, read once and written through; raises :class:`StateError`.

    An index of names and addresses makes lookups for an enrolment independent of the number of
    nodes.
    """

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory.subdirectory(NODES_DIRECTORY)
        self._records: dict[str, NodeRecord] = {}
        self._claimants: dict[str, set[str]] = {}
        for name in self._directory.names():
            try:
                check_node_name(name)
            except BadIdentity as error:
                # No certificate with that name is accepted, so the node is effectively revoked.
                _log.warn(
                    "the record {path} is ignored: {error}",
                    path=self._directory.path / name,
                    error=error,
                )
            else:
                self._index(_decode(self._directory, name))

    def get(self, node: str) -> NodeRecord | None:
        """Return the record of ``node``, if it has ever been enrolled."""
        return self._records.get(node)

    def all(self) -> list[NodeRecord]:
        """Return the records of all nodes that have ever been enrolled."""
        return list(self._records.values())

    def with_any(self, claims: Iterable[str]) -> list[NodeRecord]:
        """Return the records that have one of ``claims``, ordered by node."""
        nodes = {node for claim in claims for node in self._claimants.get(claim, ())}
        return [self._records[node] for node in sorted(nodes)]

    def shared(self) -> list[str]:
        """List the names and addresses in several records, including revoked ones."""
        return sorted(claim for claim, nodes in self._claimants.items() if len(nodes) > 1)

    def put(self, record: NodeRecord) -> None:
        """Store ``record`` in place of the node's previous one.

        It is on disk when this returns, which takes about a quarter of the millisecond for which an
        enrolment blocks the reactor, and more on a slow disk.
        """
        self._directory.write(record.node, _encode(record))
        self._index(record)

    def _index(self, record: NodeRecord) -> None:
        former = self._records.get(record.node)
        self._records[record.node] = record
        if former is not None and former.identifiers == record.identifiers:
            return
        for claim in former.claims() if former is not None else ():
            self._claimants[claim].discard(record.node)
            if not self._claimants[claim]:
                del self._claimants[claim]
        for claim in record.claims():
            self._claimants.setdefault(claim, set()).add(record.node)


def read_record(directory: StateDirectory, node: str) -> NodeRecord | None:
    """Read one record from the state directory of a server that may be running."""
    check_node_name(node)
    nodes = directory.path / NODES_DIRECTORY
    if not nodes.exists():
        return None
    within = StateDirectory.open_existing(nodes)
    return None if within.read(node) is None else _decode(within, node)


def _encode(record: NodeRecord) -> bytes:
    entry = {
        "node": record.node,
        "identifiers": format_identifiers(record.identifiers),
        "enrolment": record.enrolment,
        "keys": list(record.keys),
        "enrolled": record.enrolled.isoformat(),
        "ends": {item: end.isoformat() for item, end in record.ends.items()},
        "token_created": record.token_created and record.token_created.isoformat(),
    }
    return json.dumps(entry, indent=1).encode()


def _decode(directory: StateDirectory, name: str) -> NodeRecord:
    try:
        entry = json.loads(directory.read(name) or b"")
        if entry["node"] != name:
            raise ValueError("the name in the file is another")
        created = entry.get("token_created")
        return NodeRecord(
            node=check_node_name(name),
            identifiers=_identifiers(directory.path / name, name, entry["identifiers"]),
            enrolment=str(entry["enrolment"]),
            keys=tuple(str(key) for key in entry["keys"]),
            enrolled=datetime.datetime.fromisoformat(entry["enrolled"]),
            ends={
                str(item): datetime.datetime.fromisoformat(end)
                for item, end in dict(entry.get("ends", ())).items()
            },
            token_created=created and datetime.datetime.fromisoformat(created),
        )
    except (ValueError, KeyError, TypeError, BadIdentity, BadIdentifiers) as error:
        raise StateError(
            f"{directory.path / name} is not a node's record: restore it from a backup"
            " (removing it would let any join token take the node's name)"
        ) from error


def _items(identifiers: Identifiers) -> list[str]:
    return format_identifiers(identifiers).split("&")


def _identifiers(path: Path, node: str, text: str) -> Identifiers:
    """Parse identifiers, without those that no node may have, which are unused anyway."""
    valid = [f"host={node}"]
    for item in text.split("&"):
        try:
            parse_identifiers(item)
        except BadIdentifiers as error:
            _log.warn("an identifier in {path} is ignored: {error}", path=path, error=error)
        else:
            valid.append(item)
    return parse_identifiers("&".join(dict.fromkeys(valid)))
