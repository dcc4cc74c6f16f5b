"""Revoked nodes: a file that a command extends, and a service that watches it.

Revoking a node revokes its enrolment, and with it every certificate that was or will be renewed
within it, even if the server issues one at the same moment. The node can be enrolled again with a
join token that is newer than the revocation.

Another server of the same authority may have enrolled the node, without a record here. Therefore
all certificates of the node's name that are not known to be newer than the revocation are revoked,
too. Newer are certificates of an enrolment that was recorded here by a newer token, and those whose
validity begins after the revocation. Certificates are backdated by five minutes, so one that is up
to that much newer counts as older; in return, no older one counts as newer while the clocks of two
servers differ by less.

Revocation works on a full disk, because the running server reserves space for it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.ops.clocks import utc_now
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.pki.credentials import BACKDATE
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.pki.names import BadIdentity, check_node_name
from yurttunnel.pki.records import NodeRecord, NodeRecords, read_record
from yurttunnel.pki.token import newest_token

REVOCATIONS_FILE = "revoked.json"
RESERVE_MARGIN = 64 * 1024
"""Bytes reserved besides twice the size of the file, which is rewritten each time: for some hundred
revocations, and the file system's own needs for a file."""
RESERVE_INTERVAL = 10.0
"""Seconds between checks whether the reserve is large enough for the file."""
CHECK_INTERVAL = 0.25
"""Seconds between checks of the file, so that a session ends within one second."""


class RevocationFailed(Exception):
    """A node was not revoked; one line describes why."""


class Revocation(NamedTuple):
    """The time of a node's revocation; ``enrolment`` is empty if none was recorded here."""

    node: str
    enrolment: str
    revoked: datetime.datetime


def revoke_node(clock: IReactorTime, state_dir: str | Path, node: str) -> str:
    """Revoke ``node`` in a server's state directory, whether or not the server runs.

    Returns a sentence for the operator. Revoking again revokes what the node has been issued since
    then. On a full disk, the space that the server has reserved is used. Raises
    :class:`RevocationFailed` for an invalid node name, and :class:`StateError`.
    """
    directory = StateDirectory.open_existing(state_dir)
    try:
        check_node_name(node)
    except BadIdentity as error:
        raise RevocationFailed(str(error)) from None
    try:
        return _revoke(clock, directory, node)
    except StateError as error:
        if not (error.disk_is_full and directory.use_reserve()):
            raise
    sentence = _revoke(clock, directory, node)
    return (
        f"{sentence}; the disk of {directory.path} is full, and the space that was reserved on it"
        " is used up: free space now, or the next revocation fails"
    )


def _revoke(clock: IReactorTime, directory: StateDirectory, node: str) -> str:
    with directory.lock():
        record = read_record(directory, node)
        enrolment = record.enrolment if record is not None else ""
        known = _load(directory)
        # No existing token may count as newer, even if the clock was set back.
        now = utc_now(clock)
        revoked = max(now, newest_token(directory) or now)
        revoked = max([revoked, *(r.revoked for r in known if r.node == node)])
        others = [r for r in known if (r.node, r.enrolment) != (node, enrolment)]
        _save(directory, [*others, Revocation(node, enrolment, revoked)])
    if record is not None:
        return f"node {node} is revoked"
    minutes = BACKDATE.total_seconds() / 60
    return (
        f"node {node} was not enrolled at this server, but its certificate will not be accepted"
        f" here, nor one that another server issues within the next {minutes:.0f} minutes"
    )


class Revocations(Reconciler):
    """The revocations of a state directory, kept up to date while the service runs.

    ``callback(node)`` is called for each node that is revoked while the service runs. While the
    file cannot be read, the known revocations stay in force, and ``problem`` reports it; the
    constructor raises :class:`StateError` instead.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, directory: StateDirectory, records: NodeRecords
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._records = records
        self._callbacks: list[Callable[[str], None]] = []
        self._fingerprint = directory.fingerprint(REVOCATIONS_FILE)
        self._known: set[Revocation] = set()
        self._enrolments: set[str] = set()
        self._times: dict[str, datetime.datetime] = {}
        self._unreadable = ""
        self._reserve_problem = ""
        self._reserve_due = 0.0
        self._apply(_load(directory))
        self._reserve_space()
        super().__init__(clock, CHECK_INTERVAL, "looking for revoked nodes", self._check)

    @property
    def problem(self) -> str | None:
        """Why later revocations are not known, for readiness; ``None`` without a problem."""
        return f"revocations cannot be read: {self._unreadable}" if self._unreadable else None

    @property
    def warning(self) -> str | None:
        """Why a revocation would fail on a full disk, for readiness; ``None`` if it would not."""
        if not self._reserve_problem:
            return None
        return f"no disk space is reserved for revocations: {self._reserve_problem}"

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Register ``callback(node)``, called whenever a node is revoked; it must not raise."""
        self._callbacks.append(callback)

    def is_revoked(self, identity: NodeIdentity) -> bool:
        """Return whether the certificate of ``identity`` has been revoked."""
        if identity.enrolment in self._enrolments:
            return True
        revoked = self._times.get(identity.node)
        if revoked is None or identity.not_before > revoked:
            return False
        record = self._records.get(identity.node)
        if record is None or record.enrolment != identity.enrolment:
            return True
        return self.is_record_revoked(record)

    def is_enrolled(self, node: str) -> bool:
        """Return whether ``node`` is the name of an enrolled node, connected or not."""
        record = self._records.get(node)
        return record is not None and not self.is_record_revoked(record)

    def is_record_revoked(self, record: NodeRecord) -> bool:
        """Return whether an enrolment has been revoked, by its id or by the time of its token.

        The record may have been written just after the command had looked for it and found none;
        the token existed before.
        """
        revoked = self._times.get(record.node)
        is_older = revoked is not None and (record.token_created or record.enrolled) <= revoked
        return is_older or record.enrolment in self._enrolments

    def revoked_at(self, node: str) -> datetime.datetime | None:
        """Return when a node was last revoked; ``None`` if never."""
        return self._times.get(node)

    def all(self) -> Mapping[str, datetime.datetime]:
        """Return the time of each node's last revocation, by name."""
        return self._times

    def last_revocation(self) -> datetime.datetime | None:
        """Return when any node was last revoked; ``None`` if never."""
        return max(self._times.values(), default=None)

    def refresh(self) -> None:
        """Reload the file if it has changed; cheap enough to call before each decision."""
        try:
            fingerprint = self._directory.fingerprint(REVOCATIONS_FILE)
            if fingerprint == self._fingerprint:
                return
            revocations = _load(self._directory)
        except StateError as error:
            self._report_problem(str(error))
            return
        self._fingerprint = fingerprint
        self._unreadable = ""
        for node in self._apply(revocations):
            for callback in self._callbacks:
                callback(node)

    async def _check(self) -> None:
        self.refresh()
        if self._clock.seconds() >= self._reserve_due:
            self._reserve_space()

    def _reserve_space(self) -> None:
        """Reserve disk space for :func:`revoke_node`, unless it is reserved already."""
        self._reserve_due = self._clock.seconds() + RESERVE_INTERVAL
        size = 0 if self._fingerprint is None else self._fingerprint[2]
        try:
            self._directory.reserve(2 * size + RESERVE_MARGIN)
        except StateError as error:
            if not self._reserve_problem:
                self._reserve_problem = str(error)
                self._log.warn("{problem}", problem=self.warning)
        else:
            self._reserve_problem = ""

    def _apply(self, revocations: list[Revocation]) -> list[str]:
        new = [r for r in revocations if r not in self._known]
        # Known revocations are kept, even if they are missing from the file.
        self._known.update(new)
        for revocation in new:
            if revocation.enrolment:
                self._enrolments.add(revocation.enrolment)
            before = self._times.get(revocation.node, revocation.revoked)
            self._times[revocation.node] = max(before, revocation.revoked)
        return [r.node for r in new]

    def _report_problem(self, unreadable: str) -> None:
        if unreadable != self._unreadable:
            self._unreadable = unreadable
            self._log.error("{problem}", problem=self.problem)


def _load(directory: StateDirectory) -> list[Revocation]:
    content = directory.read(REVOCATIONS_FILE)
    if content is None:
        return []
    try:
        return [
            Revocation(
                str(entry["node"]),
                str(entry["enrolment"]),
                datetime.datetime.fromisoformat(entry["revoked"]),
            )
            for entry in json.loads(content)["revoked"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{directory.path / REVOCATIONS_FILE} is not a list of revocations:"
            " restore it from a backup"
        ) from error


def _save(directory: StateDirectory, revocations: list[Revocation]) -> None:
    entries = [
        {"node": r.node, "enrolment": r.enrolment, "revoked": r.revoked.isoformat()}
        for r in revocations
    ]
    directory.write(REVOCATIONS_FILE, json.dumps({"revoked": entries}, indent=1).encode())
