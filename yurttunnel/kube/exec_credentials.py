"""Credentials from a program (kubernetes.io, "client-go credential plugins"; KEP-541)."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.kube.credentials import Credentials, CredentialsUnavailable, ICredentialsSource
from yurttunnel.ops.clocks import time_of_day
from yurttunnel.tunnel.reactor import IReactor

PLUGIN_SECONDS = 25.0
"""The timeout of a program; shorter than that of a call (``CALL_SECONDS``), so that the call's
error names the program."""

MAX_OUTPUT = 1024 * 1024
"""The maximum size of the output in bytes."""

_EXPIRY_MARGIN = 60.0
"""Seconds before expiry at which credentials are renewed, since clocks may differ."""

_MAX_ERROR = 300


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

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
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
            run = _Run(reactor, self._plugin)
            running = run.ended.addCallbacks(self._succeeded, self._failed)
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

    def _succeeded(self, output: bytes) -> None:
        try:
            known, self._expires = _parse_output(self._plugin, output)
        except CredentialsUnavailable:
            self._failed(Failure())
            return
        self._known = known
        for each in self._ended():
            each.callback(known)

    def _failed(self, failure: Failure) -> None:
        for each in self._ended():
            each.errback(failure)

    def _ended(self) -> list[Deferred[Credentials]]:
        self._running = None
        waiting, self._waiting = self._waiting, []
        return waiting


class _Run(ProcessProtocol):
    """One run of a program; ``ended`` fires with its output."""

    def __init__(self, reactor: IReactor, plugin: Plugin) -> None:
        self._plugin = plugin
        self._output = bytearray()
        self._errors = bytearray()
        self._problem = ""
        self.ended: Deferred[bytes] = Deferred(lambda _: self._kill("nobody waits for it"))
        spec: dict[str, Any] = {"interactive": False}
        if plugin.cluster is not None:
            spec["cluster"] = plugin.cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        self._deadline = reactor.callLater(
            PLUGIN_SECONDS, self._kill, f"it took longer than {PLUGIN_SECONDS:.0f} s"
        )
        try:
            program = shutil.which(plugin.command, path=environment.get("PATH"))
            if program is None:
                self._end("it is not installed, or cannot be run")
                return
            arguments = [plugin.command, *plugin.arguments]
            reactor.spawnProcess(self, program, arguments, env=environment)
        except (OSError, ValueError) as error:
            # No descriptor, process or memory is left, or an argument contains a NUL.
            self._end(f"it cannot be started: {error}")

    def connectionMade(self) -> None:
        """Close its standard input, so that a password prompt sees the end of the file."""
        assert self.transport is not None  # it has just been set
        self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        self._output += data
        if len(self._output) > MAX_OUTPUT:
            self._output.clear()
            self._kill(f"it wrote more than {MAX_OUTPUT} bytes")

    def errReceived(self, data: bytes) -> None:
        """Keep the last part of its standard error."""
        self._errors = (self._errors + data)[-_MAX_ERROR:]

    def processEnded(self, reason: Failure) -> None:
        """Fire with the output, if the program succeeded."""
        if not self._problem and reason.check(ProcessDone) is None:
            self._problem = str(reason.value)
        self._end(self._problem)

    def _kill(self, problem: str) -> None:
        self._problem = self._problem or problem
        if self.transport is not None:
            try:
                self.transport.signalProcess(signal.SIGKILL)
            except ProcessExitedAlready:
                # The program has exited, perhaps except for its children.
                pass
            # Children that inherited its outputs would delay the notification of its exit.
            self.transport.loseConnection()
            self._end(self._problem)

    def _end(self, problem: str) -> None:
        if self._deadline.active():
            self._deadline.cancel()
        if self.ended.called:
            return
        if not problem:
            self.ended.callback(bytes(self._output))
            return
        message = " ".join(self._errors.decode("utf-8", "replace").split())
        hint = " ".join(self._plugin.hint.split())
        details = "; ".join(filter(None, (problem, message, hint)))
        self.ended.errback(
            CredentialsUnavailable(f"the credential plugin {self._plugin.command}: {details}")
        )


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
