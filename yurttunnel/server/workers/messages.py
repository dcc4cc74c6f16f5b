"""The kinds of messages between the processes of one server, and how what is in them is written."""

from __future__ import annotations

import datetime
from dataclasses import asdict, fields
from typing import Any

from yurttunnel.pki.credentials import (
    Credentials,
    certificates_from_pem,
    certificates_to_pem,
    key_from_pem,
    key_to_pem,
)
from yurttunnel.pki.identity import (
    Identifiers,
    NodeIdentity,
    format_identifiers,
    parse_identifiers,
)
from yurttunnel.tunnel.statistics import SessionSnapshot

# From the first process.
START = "start"
"""What the worker is to be, :class:`~yurttunnel.server.workers.settings.WorkerSettings`."""
CREDENTIALS = "credentials"
"""As whom to show itself to agents from now on, and whom to believe."""
AGENT = "agent"
"""A connection of an agent, with what has been read of it."""
CALLER = "caller"
"""A connection of a caller that wants a stream to ``node``, with what has been read of it; it has
come by the entry that ``flag`` asks for."""
ADMITTED = "admitted"
"""Who the agent is that was asked about as ``number``; ``servers`` is how many there are."""
SERVERS = "servers"
"""There are so many ``servers`` now, which agents are told."""
REFUSED = "refused"
"""Why that agent is not let in: ``code`` and ``text``."""
CHECK = "check"
"""Say who has been let in as ``node``: something of it has been revoked."""
END = "end"
"""End the sessions of ``node``, with ``code`` and ``text``: all, or those with ``identity``."""
VERBOSE = "verbose"
"""Whether messages are wanted from now on that help to find defects."""
PAGE = "page"
"""Make the page ``name`` of ``/debug``, asked for as ``number``."""
DRAIN = "drain"
"""Let the sessions end, then end."""

# From a worker.
READY = "ready"
"""It takes connections from now on."""
ADMIT = "admit"
"""May an agent with this certificate, in DER form, come in? Answered under ``number``."""
CHECKED = "checked"
"""Who has been let in, for each session of the node that was asked about."""
ENDED = "ended"
"""The session of ``node`` has ended; ``why`` is for people."""
FIGURES = "figures"
"""What has been counted since the last time, and what has changed of the sessions."""
PAGE_ANSWER = "page-answer"
"""The page that was asked for as ``number``."""
AUDIT = "audit"
"""A line of the audit log."""
LOG = "log"
"""A message for the log, see :mod:`yurttunnel.server.workers.log`."""

_TIMES = ("since", "certificate_not_after")


def credentials_to_fields(credentials: Credentials) -> dict[str, Any]:
    """Write key, certificates and authorities as PEM."""
    return {
        "key": key_to_pem(credentials.key).decode(),
        "certificate": certificates_to_pem([credentials.certificate]).decode(),
        "chain": certificates_to_pem(credentials.chain).decode(),
        "authorities": certificates_to_pem(credentials.authorities).decode(),
    }


def credentials_from_fields(written: dict[str, Any]) -> Credentials:
    """Read what :func:`credentials_to_fields` wrote."""
    (certificate,) = certificates_from_pem(written["certificate"].encode())
    chain, authorities = (
        certificates_from_pem(written[name].encode()) if written[name] else ()
        for name in ("chain", "authorities")
    )
    return Credentials(key_from_pem(written["key"].encode()), certificate, chain, authorities)


def identity_to_fields(identity: NodeIdentity) -> dict[str, Any]:
    """Write who an agent is."""
    return {
        "node": identity.node,
        "identifiers": format_identifiers(identity.identifiers),
        "not_before": identity.not_before.isoformat(),
        "not_after": identity.not_after.isoformat(),
        "enrolment": identity.enrolment,
    }


def identity_from_fields(written: dict[str, Any]) -> NodeIdentity:
    """Read what :func:`identity_to_fields` wrote."""
    text = written["identifiers"]
    return NodeIdentity(
        node=written["node"],
        identifiers=parse_identifiers(text) if text else Identifiers(frozenset()),
        not_before=datetime.datetime.fromisoformat(written["not_before"]),
        not_after=datetime.datetime.fromisoformat(written["not_after"]),
        enrolment=written["enrolment"],
    )


def snapshot_to_fields(snapshot: SessionSnapshot) -> dict[str, Any]:
    """Write the figures of a session."""
    written = asdict(snapshot)
    for name in _TIMES:
        if written[name] is not None:
            written[name] = written[name].isoformat()
    return written


def snapshot_from_fields(written: dict[str, Any]) -> SessionSnapshot:
    """Read what :func:`snapshot_to_fields` wrote."""
    values = {each.name: written[each.name] for each in fields(SessionSnapshot)}
    for name in _TIMES:
        if values[name] is not None:
            values[name] = datetime.datetime.fromisoformat(values[name])
    return SessionSnapshot(**values)
