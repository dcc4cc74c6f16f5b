"""Credentials from a program (kubernetes.io, "client-go credential plugins"; KEP-541)."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable, ICredentialsSource
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.ops.programs import CompletedProgram, ProgramFailed, Programs, Spawn, spawn
from yurttunnel.tunnel.reactor import IReactor

PLUGIN_SECONDS = 25.0
"""The timeout of a program; shorter than that of a call (``CALL_SECONDS``), so that the call's
error names the program."""

MAX_OUTPUT = 1024 * 1024
"""The maximum size of the output in bytes."""

_EXPIRY_MARGIN = 60.0
"""Seconds before expiry at which credentials are renewed, since clocks may differ."""

_MAX_ERROR = 300
"""The maximum number of characters of the program's standard error in an error."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A program with its arguments and environment; ``hint`` describes how to install it."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    api_version: str = "client.authentication.k8s.io/v1"
    cluster: Mapping[str, Any] | None = None
    hint: str = ""


@implementer(ICredentialsSource)
class ExecCredentials:
    """Runs ``plugin`` if there are no credentials, or they have expired or were rejected."""

    def __init__(self, plugin: Plugin, spawn: Spawn = spawn) -> None:
        self._plugin = plugin
        self._spawn = spawn
        self._known: Credentials | None = None
        self._expires: float | None = None
        self._running: Deferred[None] | None = None
        self._waiting: list[Deferred[Credentials]] = []

    def current(self, reactor: IReactor) -> Deferred[Credentials]:
        """Return the cached credentials, or run the program, once for all waiting callers."""
        if self._known is not None and (
            self._expires is None or time_of_day(reactor) < self._expires - _EXPIRY_MARGIN
        ):
            return succeed(self._known)
        waiting: Deferred[Credentials] = Deferred(self._stop_waiting)
        self._waiting.append(waiting)
        if self._running is None:
            plugin = self._plugin
            run = Programs(reactor, self._spawn).run(
                [plugin.command, *plugin.arguments],
                seconds=PLUGIN_SECONDS,
                max_output=MAX_OUTPUT,
                environment=_environment(plugin),
            )
            running = run.addCallback(self._exited).addErrback(self._failed)
            # The run may have failed at once.
            self._running = None if running.called else running
        return waiting

    def forget(self, refused: Credentials) -> None:
        # Several calls in progress may be rejected with the previous credentials, one after the
        # other.
        if refused is self._known:
            self._known = None

    def _stop_waiting(self, waiting: Deferred[Credentials]) -> None:
        self._waiting.remove(waiting)
        if not self._waiting and self._running is not None:
            self._running.cancel()

    def _exited(self, program: CompletedProgram) -> None:
        plugin = self._plugin
        if program.status != 0:
            problem = f"{plugin.command} exited with status {program.status}"
            raise _unavailable(plugin, problem, program.errors)
        self._known, self._expires = _parse_output(plugin, program.output)
        for each in self._ended():
            each.callback(self._known)

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, ProgramFailed):
            failure = Failure(_unavailable(self._plugin, str(error), error.errors))
        for each in self._ended():
            each.errback(failure)

    def _ended(self) -> list[Deferred[Credentials]]:
        self._running = None
        waiting, self._waiting = self._waiting, []
        return waiting


def _environment(plugin: Plugin) -> Mapping[str, str]:
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    return {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _unavailable(plugin: Plugin, problem: str, errors: str) -> CredentialsUnavailable:
    written = " ".join(errors.split())[-_MAX_ERROR:]
    hint = " ".join(plugin.hint.split())
    details = "; ".join(filter(None, (problem, written, hint)))
    return CredentialsUnavailable(f"the credential plugin failed: {details}")


def _parse_output(plugin: Plugin, output: bytes) -> tuple[Credentials, float | None]:
    """Parse an ``ExecCredential``; return it with its expiry, in seconds since 1970."""
    try:
        found = json.loads(output)
        status = found["status"]
        if found["kind"] != "ExecCredential" or found["apiVersion"] != plugin.api_version:
            raise ValueError(f"it is not an ExecCredential of {plugin.api_version}")
        credentials = Credentials(
            str(status.get("token") or "").strip(),
            str(status.get("clientCertificateData") or "").encode("ascii"),
            str(status.get("clientKeyData") or "").encode("ascii"),
        )
        expiry = status.get("expirationTimestamp")
        expires = None if not expiry else datetime.datetime.fromisoformat(expiry).timestamp()
        if not credentials.token and not (credentials.certificate and credentials.key):
            raise ValueError("it has neither a token nor a certificate with its key")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # Only the error, because the output is secret.
        reason = "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise CredentialsUnavailable(
            f"the answer of the credential plugin {plugin.command} cannot be used: {reason}"
        ) from None
    return credentials, expires
