"""Revoked nodes: a file that a command adds to, and a service that notices.

Revoking a node revokes its enrolment, and with it every certificate that was or will be
renewed within it, whatever the server does at the same moment. The node can be enrolled again
with a join token that is newer than the revocation.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import BadIdentity, NodeIdentity, check_node_name
from yurttunnel.pki.periodic import PeriodicService
from yurttunnel.pki.records import read_record
from yurttunnel.pki.token import newest_token

REVOCATIONS_FILE = "revoked.json"
CHECK_INTERVAL = 0.25
"""Seconds between looks at the file, so that a session ends within one second."""


class RevocationFailed(Exception):
    """A node was not revoked; one line that says why."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """One revoked enrolment of a node."""

    node: str
    enrolment: str
    revoked: datetime.datetime


def revoke_node(clock: IReactorTime, state_dir: str | Path, node: str) -> None:
    """Revoke ``node`` in a server's state directory, whether or not the server runs.

    Raises :class:`RevocationFailed` when the node is not known or is revoked already, and
    :class:`StateError`.
    """
    directory = StateDirectory.open_existing(state_dir)
    try:
        check_node_name(node)
    except BadIdentity as error:
        raise RevocationFailed(str(error)) from None
    with directory.lock():
        record = read_record(directory, node)
        if record is None:
            raise RevocationFailed(
                f"no node {node} has been enrolled in {state_dir}: nothing is revoked"
            )
        known = _load(directory)
        if any(r.enrolment == record.enrolment for r in known):
            raise RevocationFailed(f"node {node} has been revoked already")
        # No token that exists now may pass for a newer one, even if the clock was set back.
        now = utc_now(clock)
        revoked = max(now, newest_token(directory) or now)
        _save(directory, [*known, Revocation(node, record.enrolment, revoked)])


class Revocations(PeriodicService):
    """The revocations of a state directory, kept up to date while the service runs.

    ``callback(node)`` is called for each node that is revoked from the start of the service
    on. A file that cannot be read is logged once, and what was known stays. The first reading,
    in the constructor, raises :class:`StateError` instead.
    """

    _log = Logger()

    def __init__(self, clock: IReactorTime, directory: StateDirectory) -> None:
        self._directory = directory
        self._callbacks: list[Callable[[str], None]] = []
        self._seen = directory.fingerprint(REVOCATIONS_FILE)
        self._enrolments: frozenset[str] = frozenset()
        self._times: dict[str, datetime.datetime] = {}
        self._problem = ""
        self._take(_load(directory))
        super().__init__(clock, CHECK_INTERVAL, "looking for revoked nodes", self._look)

    def on_revoked(self, callback: Callable[[str], None]) -> None:
        """Have ``callback(node)`` called whenever a node is revoked; it must not raise."""
        self._callbacks.append(callback)

    def is_revoked(self, identity: NodeIdentity) -> bool:
        """Say whether the certificate behind ``identity`` has been revoked."""
        return self.is_enrolment_revoked(identity.enrolment)

    def is_enrolment_revoked(self, enrolment: str) -> bool:
        """Say whether an enrolment has been revoked."""
        return enrolment in self._enrolments

    def revoked_at(self, node: str) -> datetime.datetime | None:
        """Give when a node was last revoked; ``None`` if never."""
        return self._times.get(node)

    def last_revocation(self) -> datetime.datetime | None:
        """Give when any node was last revoked; ``None`` if never."""
        return max(self._times.values(), default=None)

    def refresh(self) -> None:
        """Look at the file, if it has changed; cheap enough to ask before each decision."""
        try:
            fingerprint = self._directory.fingerprint(REVOCATIONS_FILE)
            if fingerprint == self._seen:
                return
            revocations = _load(self._directory)
        except StateError as error:
            self._report_problem(str(error))
            return
        self._seen = fingerprint
        self._problem = ""
        for node in self._take(revocations):
            for callback in self._callbacks:
                callback(node)

    async def _look(self) -> None:
        self.refresh()

    def _take(self, revocations: list[Revocation]) -> list[str]:
        new = [r.node for r in revocations if r.enrolment not in self._enrolments]
        # What is known stays: nobody is pardoned by a shortened file.
        self._enrolments |= {r.enrolment for r in revocations}
        for revocation in revocations:
            before = self._times.get(revocation.node, revocation.revoked)
            self._times[revocation.node] = max(before, revocation.revoked)
        return new

    def _report_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._log.error("revocations are not read: {problem}", problem=problem)


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
