"""Writes streams into the audit log, at their ends."""

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
    """Return ``stream`` wrapped so that ``entry`` is written when it ends.

    It costs nothing per piece of data, because the users of a stream look up its methods once.
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
        """Wrap ``protocol.connectionLost``: it is called once, whichever side ends the stream."""
        lost = protocol.connectionLost

        def connection_lost(reason: Failure) -> None:
            self._ended(*code_of(reason.value))
            lost(reason)

        # As protocols do with their dataReceived: one object less between the two ends.
        protocol.connectionLost = connection_lost  # type: ignore[method-assign] # see above
        self._attached = True
        self._stream.attach(protocol)

    def abort(self, code: Code, text: str) -> None:
        """Reset the stream; if no protocol is attached, nothing else reports the end."""
        self._stream.abort(code, text)
        if not self._attached:
            self._ended(code, text)

    def _ended(self, code: Code, text: str) -> None:
        stream = self._stream
        self._entry.write_ended(code, text, stream.bytes_sent, stream.bytes_received)


def code_of(error: BaseException | None) -> tuple[Code, str]:
    """Return the code with which a stream ended, as metrics count it, and a text."""
    if isinstance(error, ConnectionDone):
        return Code.DONE, ""
    if isinstance(error, StreamFailed):
        return error.code, error.text
    return Code.CONNECTION_LOST, str(error)
