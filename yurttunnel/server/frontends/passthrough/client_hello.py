"""A parser for the server name in a TLS ClientHello.

Records are defined in RFC 8446 section 5.1, the ClientHello in section 4.1.2, and the server_name
extension in RFC 6066 section 3. All have the same form since TLS 1.0. Under Encrypted ClientHello
the outer name is used, the only one that is readable.
"""

from __future__ import annotations

from dataclasses import dataclass

from yurttunnel.http.authority import BadAuthority, canonical_host

MAX_HELLO = 16 * 1024
"""The maximum size of a ClientHello in bytes; those of today's clients have 200 to 2,000."""

MAX_FLIGHT = 2 * MAX_HELLO
"""The maximum size in bytes of the records of a ClientHello, which a client may fragment finely."""

_RECORD_HEADER = 5
_MAX_FRAGMENT = 1 << 14
_HANDSHAKE_RECORD = 22
_MAJOR_VERSION = 3
_HANDSHAKE_HEADER = 4
_CLIENT_HELLO = 1
_VERSION_AND_RANDOM = 2 + 32
_SERVER_NAME = 0
_HOST_NAME = 0


class BadClientHello(Exception):
    """The data is not the beginning of TLS; the text is a one-line reason."""


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The contents of a ClientHello.

    ``server_name`` is in lower case and without a final dot, or ``None`` if the client sends no
    name, or an address instead.
    """

    server_name: str | None


class ClientHelloReader:
    """Reads the bytes of a connection until its ClientHello is complete.

    It buffers at most :data:`MAX_FLIGHT` bytes and the last bytes that were fed.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        # The offset of the next record.
        self._position = 0
        self._message = bytearray()

    @property
    def received(self) -> bytes:
        """All bytes that were fed, including those after the ClientHello."""
        return bytes(self._received)

    def feed(self, data: bytes) -> ClientHello | None:
        """Add received bytes; return ``None`` while more are needed.

        Raises :class:`BadClientHello`. After that, or after a result, it must not be called again.
        """
        self._received += data
        # Each check depends on the bytes up to an offset in the stream, and checks are made in the
        # order of these offsets, so the result does not depend on the fragmentation.
        while (fragment := self._next_fragment()) is not None:
            self._message += fragment
            hello = self._complete_hello()
            if hello is not None:
                return ClientHello(_server_name(_extensions(hello)))
        return None

    def _next_fragment(self) -> bytearray | None:
        """Return the content of the next record, ``None`` if it is incomplete."""
        header = self._received[self._position : self._position + _RECORD_HEADER]
        if header and header[0] != _HANDSHAKE_RECORD:
            raise BadClientHello("it does not begin with a TLS handshake")
        if len(header) > 1 and header[1] != _MAJOR_VERSION:
            raise BadClientHello(f"it begins with a record of the unknown version {header[1]}")
        if len(header) < _RECORD_HEADER:
            return None
        length = int.from_bytes(header[3:])
        if not 0 < length <= _MAX_FRAGMENT:
            raise BadClientHello(f"it begins with a TLS record of {length} bytes")
        begin = self._position + _RECORD_HEADER
        if begin + length > MAX_FLIGHT:
            raise BadClientHello(f"its ClientHello is not complete after {MAX_FLIGHT} bytes")
        if len(self._received) < begin + length:
            return None
        self._position = begin + length
        return self._received[begin : self._position]

    def _complete_hello(self) -> bytearray | None:
        """Return the ClientHello without its header, ``None`` if it is incomplete."""
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise BadClientHello(f"it begins with a handshake message of type {message[0]}")
        if len(message) < _HANDSHAKE_HEADER:
            return None
        length = int.from_bytes(message[1:_HANDSHAKE_HEADER])
        if length > MAX_HELLO:
            raise BadClientHello(f"its ClientHello has {length} bytes, over {MAX_HELLO}")
        end = _HANDSHAKE_HEADER + length
        return message[_HANDSHAKE_HEADER:end] if len(message) >= end else None


class _Fields:
    """Reads numbers and vectors from a TLS structure (RFC 8446 section 3)."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise BadClientHello("its ClientHello ends within a field")
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """Read a vector that is prefixed by its length, a number of ``size`` bytes."""
        return self.take(self.number(size))


def _extensions(hello: bytearray) -> list[tuple[int, bytes]]:
    fields = _Fields(hello)
    fields.take(_VERSION_AND_RANDOM)
    fields.vector(1)  # legacy_session_id
    fields.vector(2)  # cipher_suites
    fields.vector(1)  # legacy_compression_methods
    if fields.at_end:
        # Before TLS 1.3, extensions are optional.
        return []
    extensions = _Fields(fields.vector(2))
    found = []
    while not extensions.at_end:
        found.append((extensions.number(2), extensions.vector(2)))
    return found


def _server_name(extensions: list[tuple[int, bytes]]) -> str | None:
    found = [content for kind, content in extensions if kind == _SERVER_NAME]
    if len(found) > 1:
        raise BadClientHello("its ClientHello has more than one server_name extension")
    return _host_name(found[0]) if found else None


def _host_name(extension: bytes) -> str | None:
    """Parse the ``ServerNameList``; it has one name, because no other name type was ever defined.

    An address is not allowed there (RFC 6066 section 3), so it is treated as no name.
    """
    names = _Fields(_Fields(extension).vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or not names.at_end:
        raise BadClientHello("its ClientHello has another server_name than one host name")
    try:
        host = canonical_host(name.decode("ascii"))
    except (UnicodeDecodeError, BadAuthority):
        # Truncated, because it may be long.
        raise BadClientHello(f"its ClientHello names no host name: {name[:64]!r}") from None
    return host if isinstance(host, str) else None
