"""Send a response that no read of the client may return together with later data: 200 to CONNECT.

kube-apiserver drops a connection if it receives a byte of the target in the same read as the 200
(``tunnelHTTPConnect`` in k8s.io/apiserver pkg/server/egressselector). Therefore the connection is
handed over, and data can flow, only when that cannot happen:

- on a Unix socket, after the client has read the response, which the kernel reports for such
  sockets. This is checked when the client sends something (in protocols where the client speaks
  first), and on a timer;
- over TLS, after the response is in a record of its own, since a read returns at most one record;
- over plain TCP, after the response was written to the kernel. When a client reads from a TCP
  socket is unknown, so a slow client may receive the target's first bytes with the response.

A pull producer detects when the data is in the kernel: a Twisted transport calls it each time its
buffer is empty. That costs no iteration of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IDelayedCall, IPullProducer, IReactorTime
from zope.interface import implementer

from yurttunnel.http.connection import socket_all_acknowledged

_FIRST_CHECK, _LAST_CHECK = 0.001, 2.048
"""The first and the last delay, in seconds, between checks whether a client has read its response;
each is twice the one before. A client that has not read it after the last, 4 s in total, is handed
over regardless."""


@implementer(IPullProducer)
class IsolatedResponse:
    """Sends ``response`` on ``transport``, which has no producer, and then calls ``sent`` once.

    ``secure`` is true if the transport is TLS. :meth:`cancel` ends the wait.
    """

    def __init__(
        self,
        clock: IReactorTime,
        transport: Any,
        secure: bool,
        response: bytes,
        sent: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._transport = transport
        self._response: bytes | None = response
        self._sent = sent
        self._call: IDelayedCall | None = None
        self._on_unix_socket = False
        if secure:
            # TLS transports join the writes of one reactor iteration into one record.
            transport.write(response)
            self._call = clock.callLater(0, self._done)
        else:
            transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the response on the first call; on the second it is in the kernel."""
        response, self._response = self._response, None
        if response is not None:
            self._transport.write(response)
            return
        self._transport.unregisterProducer()
        if isinstance(self._transport.getPeer(), UNIXAddress):
            self._on_unix_socket = True
            # At once: a timer would take further iterations of the reactor (100 calls in a dial).
            self._check(_FIRST_CHECK)
        else:
            self._done()

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost, and :meth:`cancel` follows."""

    def data_received(self) -> None:
        """Check whether the client had read the response before it sent something."""
        if (
            self._on_unix_socket
            and self._call is not None
            and socket_all_acknowledged(self._transport)
        ):
            self._stop_checking()
            self._done()

    def cancel(self) -> None:
        """Stop waiting: the connection is lost, or about to be."""
        self._stop_checking()
        # An aborted transport may end in a later reactor iteration, and call this again before.
        self._sent = _nothing

    def _stop_checking(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _check(self, delay: float) -> None:
        """Finish if the client has read the response, else check again in ``delay`` seconds."""
        if delay > _LAST_CHECK or socket_all_acknowledged(self._transport):
            self._done()
        else:
            self._call = self._clock.callLater(delay, self._check, 2 * delay)

    def _done(self) -> None:
        self._call = None
        self._sent()


def _nothing() -> None:
    """Do nothing after :meth:`IsolatedResponse.cancel`."""
