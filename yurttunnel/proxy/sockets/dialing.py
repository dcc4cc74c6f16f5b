"""Dialing an endpoint for a client: the attempts, and when the next one starts.

The plan has steps of fixed lengths. When an endpoint refuses, the next one is tried at once, within
the rest of the step. When an endpoint is silent until the end of the step, the next step tries
another one. An attempt that started in the middle of a step has had less time than a whole step, so
its silence does not count as a failure. When all endpoints have refused, all are tried again in the
next step, since pods restart.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IDelayedCall, IReadWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.sockets import EXHAUSTED

if TYPE_CHECKING:
    from yurttunnel.proxy.sockets.tcp import TcpProxySocket

PLAN = (0.25, 0.5, 1.0, 2.0)
"""How long each step waits for an attempt, in seconds (upstream: pkg/proxy/userspace)."""

MAX_REFUSALS = 32
"""The maximum number of endpoints tried in one step; each takes tens of microseconds."""

LOOP_REASON = "it is a port of this proxy, which would be a loop"
"""The reason for the failure of an endpoint that is not dialed at all."""

NO_SOURCE_ADDRESS = errno.EADDRNOTAVAIL
"""The error of connect(2) if no local port is left for an endpoint, or if this machine has no IPv6
source address. Neither is a failure of the endpoint, but another endpoint may be reachable."""


@implementer(IReadWriteDescriptor)
class Dialing:
    """Dials for one ``client``, whose address is ``peer``; reports the result to ``owner`` once.

    It does so whatever goes wrong: no client is left waiting.
    """

    _log = Logger()

    __slots__ = (
        "_endpoint",
        "_has_refused",
        "_is_over",
        "_last_failure",
        "_owner",
        "_server",
        "_started_mid_step",
        "_step",
        "_timer",
        "_tried",
        "client",
        "peer",
    )

    def __init__(self, owner: TcpProxySocket, client: socket.socket, peer: tuple[str, int]) -> None:
        self.client = client
        self.peer = peer
        self._owner = owner
        self._step = 0
        self._tried: list[Endpoint] = []
        # Whether an endpoint refused in this step, and why the last one did.
        self._has_refused = False
        self._last_failure = ""
        self._is_over = False
        # The timer for the end of this step; set once an attempt has to be waited for.
        self._timer: IDelayedCall | None = None
        # The attempt in progress, or ``None``.
        self._server: socket.socket | None = None
        self._endpoint: Endpoint | None = None
        # Whether the attempt started in the middle of this step.
        self._started_mid_step = False

    def try_endpoints(self) -> None:
        """Try the endpoints one after the other until an attempt has to be waited for."""
        self._guard(self._try_endpoints)

    def stop(self) -> None:
        """Cancel without a report; the client stays open."""
        self._end()
        endpoint = self._drop_attempt()
        if endpoint is not None:
            self._owner.picker.ended(endpoint)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._server is None else self._server.fileno()

    def logPrefix(self) -> str:
        return "connection to an endpoint"

    def doRead(self) -> None:
        """Do nothing: the attempt is not registered for reading."""

    def doWrite(self) -> None:
        """Check the attempt."""
        self._guard(self._check_attempt)

    def connectionLost(self, reason: Failure) -> None:
        """Check why the attempt failed, or handle that the reactor stops."""
        self._guard(self._attempt_failed, reason)

    # -- attempts ------------------------------------------------------------------------------

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Call ``step``; an exception is logged, and affects only this client."""
        try:
            step(*arguments)
        except Exception:
            self._log.failure("Defect: no endpoint could be found for a client")
            if self._is_over:
                # The owner has the client, and handles it.
                return
            # If the picker is what fails, that has been logged above.
            with suppress(Exception):
                self.stop()
            self._owner.not_dialed(self, "internal error, see the log")

    def _try_endpoints(self) -> None:
        owner = self._owner
        while not self._is_over:
            if self._tried and len(self._tried) >= min(owner.endpoint_count(), MAX_REFUSALS):
                self._tried.clear()
                if self._has_refused:
                    self._wait_for_next_step()
                    return
            endpoint = owner.picker.pick(self.peer[0], self._tried)
            if endpoint is None:
                self._give_up("it has no endpoints")
                return
            if self._start_attempt(endpoint):
                return

    def _check_attempt(self) -> None:
        server, endpoint = self._server, self._endpoint
        if server is None or endpoint is None:
            return
        error_number = self._owner.dialer.outcome(server)
        if error_number == 0:
            self._connected(server, endpoint)
        elif error_number is not None:
            self._refused(os.strerror(error_number))

    def _attempt_failed(self, reason: Failure) -> None:
        if self._server is None:
            return
        error_number = self._owner.dialer.outcome(self._server)
        if error_number:
            self._refused(os.strerror(error_number))
        else:
            self.stop()
            self._owner.not_dialed(self, reason.getErrorMessage())

    def _start_attempt(self, endpoint: Endpoint) -> bool:
        """Start an attempt; return whether there is nothing else to do now."""
        owner = self._owner
        try:
            # The check may need a socket, too.
            if owner.is_loop(endpoint):
                return self._note_failure(endpoint, LOOP_REASON)
            server = owner.dialer.dial(endpoint)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno == NO_SOURCE_ADDRESS:
                return self._skip(endpoint, why)
            if error.errno not in EXHAUSTED:
                return self._note_failure(endpoint, why)
            return self._out_of_resources(endpoint, error)
        self._server, self._endpoint = server, endpoint
        # Endpoints on this machine are connected by now; others usually are not.
        error_number = owner.dialer.outcome(server)
        if error_number == 0:
            self._connected(server, endpoint)
            return True
        if error_number:
            self._drop_attempt()
            return self._note_failure(endpoint, os.strerror(error_number))
        try:
            owner.descriptors.addWriter(self)
        except OSError as error:
            self._drop_attempt()
            return self._out_of_resources(endpoint, error)
        self._started_mid_step = self._timer is not None
        self._wait_for_end_of_step()
        return True

    def _out_of_resources(self, endpoint: Endpoint, error: OSError) -> bool:
        """Give up because this machine has run out of a resource."""
        self._owner.picker.ended(endpoint)
        self._give_up(f"this process cannot open a socket: {os.strerror(error.errno or 0)}")
        return True

    def _connected(self, server: socket.socket, endpoint: Endpoint) -> None:
        owner = self._owner
        owner.picker.connected(endpoint)
        owner.descriptors.remove(self)
        self._server = self._endpoint = None
        self._end()
        owner.dialed(self, server, endpoint)

    def _refused(self, why: str) -> None:
        endpoint = self._drop_attempt()
        if endpoint is not None:
            self._note_failure(endpoint, why)
            self._try_endpoints()

    def _note_failure(self, endpoint: Endpoint, why: str) -> bool:
        self._has_refused = True
        self._last_failure = f"{endpoint}: {why}"
        self._tried.append(endpoint)
        self._owner.picker.failed(endpoint, why)
        return False

    def _skip(self, endpoint: Endpoint, why: str) -> bool:
        """Try another endpoint, without counting a failure of this one."""
        self._has_refused = True
        self._last_failure = f"{endpoint}: {why}"
        self._tried.append(endpoint)
        self._owner.picker.ended(endpoint)
        return False

    def _drop_attempt(self) -> Endpoint | None:
        """Close the socket that is connecting, and return its endpoint."""
        server, endpoint = self._server, self._endpoint
        if server is not None:
            self._owner.descriptors.remove(self)
            server.close()
        self._server = self._endpoint = None
        return endpoint

    # -- steps ---------------------------------------------------------------------------------

    def _wait_for_next_step(self) -> None:
        """Retry all endpoints in the next step."""
        if self._step == len(PLAN) - 1:
            self._give_up_after_failure()
        else:
            self._wait_for_end_of_step()

    def _wait_for_end_of_step(self) -> None:
        if self._timer is None:
            self._timer = self._owner.descriptors.callLater(
                PLAN[self._step], self._guard, self._end_step
            )

    def _end_step(self) -> None:
        self._timer = None
        if self._is_connected():
            # It connected in time; this process is late.
            self._check_attempt()
            return
        endpoint = self._drop_attempt()
        if endpoint is not None and self._started_mid_step:
            self._skip(endpoint, "no answer within the rest of a step")
        elif endpoint is not None:
            self._note_failure(endpoint, f"no answer within {PLAN[self._step]:g} s")
        self._step += 1
        self._has_refused = False
        if self._step == len(PLAN):
            self._give_up_after_failure()
        else:
            self._try_endpoints()

    def _is_connected(self) -> bool:
        return self._server is not None and self._owner.dialer.outcome(self._server) == 0

    def _give_up_after_failure(self) -> None:
        self._give_up(f"no endpoint accepts a connection, the last failure: {self._last_failure}")

    def _give_up(self, why: str) -> None:
        self._end()
        self._owner.not_dialed(self, why)

    def _end(self) -> None:
        self._is_over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
