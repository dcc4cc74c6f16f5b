"""From a client to a connected endpoint: the attempts, and when the next one begins.

A refusal is an answer: the next endpoint is tried at once, in what is left of the step. Silence
takes the time of a step of the plan, and the next step has another endpoint; one that was begun
amid a step has not had its time, and has not failed. When all endpoints have refused, what is left
of the step is waited for, since pods restart, and all are tried again in the next.
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
"""Seconds that an attempt is waited for, step by step (upstream: pkg/proxy/userspace)."""

MOST_REFUSALS = 32
"""Endpoints that are tried within one step; each takes the processor for a few 10 microseconds."""

LOOP = "it is this proxy itself, which would be a loop"
"""Why an endpoint has failed that is not even tried."""

NO_SOURCE = errno.EADDRNOTAVAIL
"""What connect(2) says where no local port is left towards an endpoint, or, by IPv6, this machine
has no address to come from: no endpoint is to blame for that, either, but another may be had."""


@implementer(IReadWriteDescriptor)
class Dialing:
    """One ``client``, whose address is ``peer``, until ``owner`` is told how it ends; once.

    That is so whatever goes wrong on the way: no client is left waiting.
    """

    _log = Logger()

    __slots__ = (
        "_endpoint",
        "_has_refused",
        "_is_amid",
        "_is_over",
        "_owner",
        "_server",
        "_step",
        "_timer",
        "_tried",
        "_why",
        "client",
        "peer",
    )

    def __init__(self, owner: TcpProxySocket, client: socket.socket, peer: tuple[str, int]) -> None:
        self.client = client
        self.peer = peer
        self._owner = owner
        self._step = 0
        self._tried: list[Endpoint] = []
        # Whether an endpoint could not be had in this step, and why the last one could not.
        self._has_refused = False
        self._why = ""
        self._is_over = False
        # The end of this step, once something is waited for.
        self._timer: IDelayedCall | None = None
        # The attempt that is waited for; neither while none is.
        self._server: socket.socket | None = None
        self._endpoint: Endpoint | None = None
        # Whether it was begun amid this step.
        self._is_amid = False

    def try_endpoints(self) -> None:
        """Try one after the other until one has to be waited for."""
        self._guard(self._try_endpoints)

    def stop(self) -> None:
        """Give up without telling; the client stays open."""
        self._end()
        endpoint = self._drop_attempt()
        if endpoint is not None:
            self._owner.picker.ended(endpoint)

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor of the socket that is being connected."""
        return -1 if self._server is None else self._server.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "connection to an endpoint"

    def doRead(self) -> None:
        """Do nothing: an attempt is not registered for reading."""

    def doWrite(self) -> None:
        """Find out how the attempt goes."""
        self._guard(self._look)

    def connectionLost(self, reason: Failure) -> None:
        """Find out why the attempt is broken, or be told that the reactor stops."""
        self._guard(self._broken, reason)

    # -- attempts ------------------------------------------------------------------------------

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a step; a defect in it is told, and costs this client alone."""
        try:
            step(*arguments)
        except Exception:
            self._log.failure("Defect: no endpoint could be found for a client")
            if self._is_over:
                # The owner has the client, and what it does with that.
                return
            # What the picker thinks of that is told above, if it is what is broken.
            with suppress(Exception):
                self.stop()
            self._owner.not_dialed(self, "of a defect, which the log has")

    def _try_endpoints(self) -> None:
        owner = self._owner
        while not self._is_over:
            if self._tried and len(self._tried) >= min(owner.endpoint_count(), MOST_REFUSALS):
                self._tried.clear()
                if self._has_refused:
                    self._rest()
                    return
            endpoint = owner.picker.pick(self.peer[0], self._tried)
            if endpoint is None:
                self._give_up("it has no endpoints")
                return
            if self._begin(endpoint):
                return

    def _look(self) -> None:
        server, endpoint = self._server, self._endpoint
        if server is None or endpoint is None:
            return
        number = self._owner.dialer.outcome(server, endpoint)
        if number == 0:
            self._connected(server, endpoint)
        elif number is not None:
            self._refused(os.strerror(number))

    def _broken(self, reason: Failure) -> None:
        server, endpoint = self._server, self._endpoint
        if server is None or endpoint is None:
            return
        number = self._owner.dialer.outcome(server, endpoint)
        if number:
            self._refused(os.strerror(number))
        else:
            self.stop()
            self._owner.not_dialed(self, reason.getErrorMessage())

    def _begin(self, endpoint: Endpoint) -> bool:
        """Try one; return whether nothing else is to be done now."""
        owner = self._owner
        try:
            # To find that out may take a socket, too.
            if owner.is_loop(endpoint):
                return self._note_failure(endpoint, LOOP)
            server = owner.dialer.dial(endpoint)
        except OSError as error:
            why = os.strerror(error.errno or 0)
            if error.errno == NO_SOURCE:
                return self._pass_over(endpoint, why)
            if error.errno not in EXHAUSTED:
                return self._note_failure(endpoint, why)
            return self._is_exhausted(endpoint, error)
        self._server, self._endpoint = server, endpoint
        # To this machine it is connected by now; to others it mostly is not.
        number = owner.dialer.outcome(server, endpoint)
        if number == 0:
            self._connected(server, endpoint)
            return True
        if number:
            self._drop_attempt()
            return self._note_failure(endpoint, os.strerror(number))
        try:
            owner.descriptors.addWriter(self)
        except OSError as error:
            self._drop_attempt()
            return self._is_exhausted(endpoint, error)
        self._is_amid = self._timer is not None
        self._wait_for_end_of_step()
        return True

    def _is_exhausted(self, endpoint: Endpoint, error: OSError) -> bool:
        """Give up for want of something that this machine has no more of."""
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
        self._why = f"{endpoint}: {why}"
        self._tried.append(endpoint)
        self._owner.picker.failed(endpoint, why)
        return False

    def _pass_over(self, endpoint: Endpoint, why: str) -> bool:
        """Have another one tried; this one has not failed."""
        self._has_refused = True
        self._why = f"{endpoint}: {why}"
        self._tried.append(endpoint)
        self._owner.picker.ended(endpoint)
        return False

    def _drop_attempt(self) -> Endpoint | None:
        """Close the socket that is being connected, and return to where it was."""
        server, endpoint = self._server, self._endpoint
        if server is not None:
            self._owner.descriptors.remove(self)
            server.close()
        self._server = self._endpoint = None
        return endpoint

    # -- steps ---------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Have all of them tried again in the next step."""
        if self._step == len(PLAN) - 1:
            self._give_up(f"no endpoint takes a connection, the last was {self._why}")
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
            # It was in time; it is this process that is late.
            self._look()
            return
        endpoint = self._drop_attempt()
        if endpoint is not None and self._is_amid:
            self._pass_over(endpoint, "no answer within the rest of a step")
        elif endpoint is not None:
            self._note_failure(endpoint, f"no answer within {PLAN[self._step]:g} s")
        self._step += 1
        self._has_refused = False
        if self._step == len(PLAN):
            self._give_up(f"no endpoint takes a connection, the last was {self._why}")
        else:
            self._try_endpoints()

    def _is_connected(self) -> bool:
        server, endpoint = self._server, self._endpoint
        if server is None or endpoint is None:
            return False
        return self._owner.dialer.outcome(server, endpoint) == 0

    def _give_up(self, why: str) -> None:
        self._end()
        self._owner.not_dialed(self, why)

    def _end(self) -> None:
        self._is_over = True
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
