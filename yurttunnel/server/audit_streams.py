"""Streams whose ends are written into the audit log."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IProtocol
from twisted.python.failure import Failure

from yurttunnel.server.audit import AuditEntry
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.wire.codes import Code


def audited(stream: IStream, entry: AuditEntry) -> IStream:
    """Return ``stream`` as one that has ``entry`` written when it ends.

    It costs nothing for each piece of data: whoever uses the stream looks its methods up once.
    """
    return cast(IStream, _AuditedStream(stream, entry))


class _AuditedStream:
    def __init__(self, stream: IStream, entry: AuditEntry) -> None:
        self._stream = stream
        self._entry = entry
        self._attached = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def attach(self, protocol: IProtocol) -> None:
        """See how ``protocol`` is told of the end: that is once, whichever end it comes from."""
        lost = protocol.connectionLost

        def connection_lost(reason: Failure) -> None:
            self._ended(*code_of(reason.value))
            lost(reason)

        # As protocols do it with their dataReceived: one object less between the two ends.
        protocol.connectionLost = connection_lost  # type: ignore[method-assign] # see above
        self._attached = True
        self._stream.attach(protocol)

    def abort(self, code: Code, text: str) -> None:
        """Reset the stream; one that nobody uses yet tells nobody else."""
        self._stream.abort(code, text)
        if not self._attached:
            self._ended(code, text)

    def _ended(self, code: Code, text: str) -> None:
        stream = self._stream
        self._entry.ended(code, text, stream.bytes_sent, stream.bytes_received)


def code_of(error: BaseException | None) -> tuple[Code, str]:
    """Return why a stream ended, as the metrics count it, with a sentence."""
    if isinstance(error, ConnectionDone):
        return Code.DONE, ""
    if isinstance(error, StreamFailed):
        return error.code, error.text
    return Code.CONNECTION_LOST, str(error)
