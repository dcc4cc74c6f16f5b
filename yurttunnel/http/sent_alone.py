"""An answer that no read of the client may give together with what follows: the 200 to a CONNECT.

kube-apiserver gives up a connection on which a byte of the target comes in the same read as the
200 (``tunnelHTTPConnect`` in k8s.io/apiserver pkg/server/egressselector). The connection is
therefore handed over, and so begins to deliver, only when that cannot happen:

- on a Unix socket after the client has read the answer, which the kernel knows of such sockets. It
  is looked at when the client sends something, as clients do that speak first, and now and then;
- over TLS after the answer is in a record of its own, since a read gives no more than one record;
- over plain TCP after the answer has been handed to the kernel. Nobody learns when a client reads
  from a TCP socket, so a client that is slow may find the target's first bytes behind the answer.

A pull producer is how a Twisted transport tells that something is with the kernel: it asks for more
each time all that was written has gone out. That costs no turn of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import UNIXAddress
from twisted.internet.interfaces import IDelayedCall, IPullProducer, IReactorTime
from zope.interface import implementer

from yurttunnel.http.connection import socket_all_taken

_FIRST_LOOK, _LAST_LOOK = 0.001, 2.048
"""Seconds until it is looked again whether a client has read its answer; each time twice as many. A
client that has not read it after the last, 4 s in all, is one that will not notice."""


@implementer(IPullProducer)
class SentAlone:
    """Sends ``answer`` on ``transport``, which has no producer, and then calls ``sent``, once.

    ``secure`` tells that the transport is TLS. :meth:`cancel` ends the wait.
    """

    def __init__(
        self,
        clock: IReactorTime,
        transport: Any,
        secure: bool,
        answer: bytes,
        sent: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._transport = transport
        self._answer: bytes | None = answer
        self._sent = sent
        self._call: IDelayedCall | None = None
        self._on_unix_socket = False
        if secure:
            # TLS transports collect what is written in one turn into one record.
            transport.write(answer)
            self._call = clock.callLater(0, self._done)
        else:
            transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write the answer when asked first; when asked again it has gone to the kernel."""
        answer, self._answer = self._answer, None
        if answer is not None:
            self._transport.write(answer)
            return
        self._transport.unregisterProducer()
        if isinstance(self._transport.getPeer(), UNIXAddress):
            self._on_unix_socket = True
            self._look_again(_FIRST_LOOK)
        else:
            self._done()

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost, which :meth:`cancel` follows."""

    def client_spoke(self) -> None:
        """Look whether the client, which has sent something, has read the answer before."""
        if self._on_unix_socket and self._call is not None and socket_all_taken(self._transport):
            self._stop_looking()
            self._done()

    def cancel(self) -> None:
        """Wait no longer: the connection is lost, or about to be."""
        self._stop_looking()
        # A transport that is aborted may end in a later turn only, and be written to until then.
        self._sent = _nothing

    def _stop_looking(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _look_again(self, delay: float) -> None:
        """Go on if the client has read the answer, else look again in ``delay`` seconds."""
        if delay > _LAST_LOOK or socket_all_taken(self._transport):
            self._done()
        else:
            self._call = self._clock.callLater(delay, self._look_again, 2 * delay)

    def _done(self) -> None:
        self._call = None
        self._sent()


def _nothing() -> None:
    """Hand nothing over."""
