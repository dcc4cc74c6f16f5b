"""What goes into the TLS of a connection over memory, and what comes out of it.

pyOpenSSL's public methods allocate a buffer for each piece and ask after errors also where nothing
has failed. :class:`DirectCalls` calls the same functions of OpenSSL into a buffer that is kept,
and leaves what has failed to pyOpenSSL; docs/performance.md has what that saves. It stands on
names that pyOpenSSL keeps to itself: ``OpenSSL._util``, and of ``Connection`` ``_ssl``,
``_into_ssl``, ``_from_ssl`` and ``_raise_ssl_error``. Where one of them is missing or is something
else, :class:`PublicMethods` does the same by public means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, Protocol

from OpenSSL import SSL

RECORD = 16 * 1024
"""The longest plaintext of one record, bytes (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 64
"""More than header, tag and padding of a record take, bytes."""

HANDSHAKE_SIZE = 16 * 1024
"""More than one flight of a handshake takes, mostly, bytes."""

KEPT = 160 * 1024
"""Bytes of the buffer that is kept: more than what one read of a socket leads to, or one write."""

MOST_AT_ONCE = 2**31 - 1
"""Bytes that ``SSL_write`` takes in one call, since the number is an ``int``."""

_SHAPES = {
    "SSL_read": "int(*)(SSL *, void *, int)",
    "SSL_write": "int(*)(SSL *, void *, int)",
    "BIO_read": "int(*)(BIO *, void *, int)",
    "BIO_write": "int(*)(BIO *, void *, int)",
    "ERR_clear_error": "void(*)()",
    "BIO_new": "BIO *(*)(BIO_METHOD *)",
    "BIO_s_mem": "BIO_METHOD *(*)()",
    "SSL_set_bio": "void(*)(SSL *, BIO *, BIO *)",
}
_POINTERS = {"_ssl": "SSL *", "_into_ssl": "BIO *", "_from_ssl": "BIO *"}


class TLSState(Protocol):
    """TLS after the handshake; all of it raises ``SSL.Error`` as the methods of pyOpenSSL do."""

    def feed(self, encrypted: bytes) -> None:
        """Take what has come from the peer, one byte or more."""

    def read(self, records: int, pieces: list[bytes]) -> None:
        """Append the data of the next ``records`` records to ``pieces``.

        What came before an error is there, too. ``SSL.WantReadError`` says that some of the records
        held no data, ``SSL.ZeroReturnError`` that the peer has ended TLS.
        """

    def write(self, data: bytes) -> bytes:
        """Encrypt all of ``data`` and return it, together with all else that is to be sent."""

    def produced(self) -> bytes:
        """Return what is to be sent, such as a flight of the handshake or an alert."""

    def shrink(self) -> None:
        """Free what only the handshake needed, as far as that can be done."""


def state_of(connection: SSL.Connection) -> TLSState:
    """Return the quickest that there is for ``connection``, which was made without a socket."""
    library = private_library()
    return PublicMethods(connection) if library is None else DirectCalls(connection, library)


class PublicMethods:
    """By what pyOpenSSL has in public."""

    __slots__ = ("_tls",)

    def __init__(self, connection: SSL.Connection) -> None:
        self._tls = connection

    def feed(self, encrypted: bytes) -> None:
        """See :class:`TLSState`."""
        self._tls.bio_write(encrypted)

    def read(self, records: int, pieces: list[bytes]) -> None:
        """See :class:`TLSState`."""
        receive = self._tls.recv
        for _ in range(records):
            pieces.append(receive(RECORD))  # noqa: PERF401 # keeps what came before an end

    def write(self, data: bytes) -> bytes:
        """See :class:`TLSState`."""
        self._tls.sendall(data)
        return self._taken(len(data) + RECORD_OVERHEAD * (len(data) // RECORD + 2))

    def produced(self) -> bytes:
        """See :class:`TLSState`."""
        return self._taken(HANDSHAKE_SIZE)

    def shrink(self) -> None:
        """Keep all: there is no public way."""

    def _taken(self, expected: int) -> bytes:
        """Return what there is, mostly less than ``expected`` bytes."""
        pieces: list[bytes] = []
        try:
            while not pieces or len(pieces[-1]) == expected:
                pieces.append(self._tls.bio_read(expected))
        except SSL.WantReadError:
            # There is no more.
            pass
        return b"".join(pieces)


class Library:
    """OpenSSL, called through ``lib`` and ``ffi`` of cffi, with the buffer that is kept.

    One for all connections: they are served by one thread, and nothing of ours is called while it
    is in use. Each call that may fail begins with an empty queue of errors, so that none is taken
    for another connection's, or for that of something else in the process.
    """

    def __init__(self, lib: Any, ffi: Any) -> None:
        self.ssl_read = lib.SSL_read
        self.ssl_write = lib.SSL_write
        self.bio_read = lib.BIO_read
        self.bio_write = lib.BIO_write
        self.clear_errors = lib.ERR_clear_error
        self.set_bio = lib.SSL_set_bio
        self.new_bio: Callable[[], Any] = lambda: lib.BIO_new(lib.BIO_s_mem())
        self.pointer_to = ffi.from_buffer
        self.buffer = ffi.new("char[]", KEPT)
        # Each slice of it is a copy.
        self.bytes: bytes = ffi.buffer(self.buffer)


@cache
def private_library() -> Library | None:
    """Return OpenSSL with all that :class:`DirectCalls` needs, or nothing if some is missing."""
    try:
        from OpenSSL._util import ffi, lib

        probe: Any = SSL.Connection(SSL.Context(SSL.TLS_METHOD))
        fits = callable(probe._raise_ssl_error)
        for name, shape in _SHAPES.items():
            fits = fits and ffi.typeof(getattr(lib, name)) is ffi.typeof(shape)
        for name, pointer in _POINTERS.items():
            fits = fits and ffi.typeof(getattr(probe, name)) is ffi.typeof(pointer)
    except (ImportError, AttributeError, TypeError):
        return None
    return Library(lib, ffi) if fits else None


class DirectCalls:
    """By calls of OpenSSL's own functions."""

    __slots__ = ("_from_ssl", "_into_ssl", "_library", "_ssl", "_tls")

    def __init__(self, connection: Any, library: Library) -> None:
        self._tls = connection
        # Freed with the first, which is kept by its reference.
        self._ssl = connection._ssl
        self._into_ssl = connection._into_ssl
        self._from_ssl = connection._from_ssl
        self._library = library

    def feed(self, encrypted: bytes) -> None:
        """See :class:`TLSState`."""
        if self._library.bio_write(self._into_ssl, encrypted, len(encrypted)) <= 0:
            # Memory has run out; nothing has been taken.
            self._tls.bio_write(encrypted)

    def read(self, records: int, pieces: list[bytes]) -> None:
        """See :class:`TLSState`."""
        library = self._library
        ssl_read, buffer = library.ssl_read, library.buffer
        library.clear_errors()
        size = result = 0
        for _ in range(records):
            if size > KEPT - RECORD:
                pieces.append(library.bytes[:size])
                size = 0
            result = ssl_read(self._ssl, buffer + size, RECORD)
            if result <= 0:
                break
            size += result
        if size:
            pieces.append(library.bytes[:size])
        if result <= 0 and records:
            self._raise(result)

    def write(self, data: bytes) -> bytes:
        """See :class:`TLSState`."""
        size = len(data)
        if size:
            library = self._library
            library.clear_errors()
            written = library.ssl_write(self._ssl, data, min(size, MOST_AT_ONCE))
            if written != size:
                self._write_rest(data, written)
        return self.produced()

    def produced(self) -> bytes:
        """See :class:`TLSState`."""
        library = self._library
        size = library.bio_read(self._from_ssl, library.buffer, KEPT)
        if size < KEPT:
            return library.bytes[:size] if size > 0 else b""
        return library.bytes[:size] + self._taken(self._from_ssl)

    def shrink(self) -> None:
        """Replace the buffers, which have grown to the size of a flight and never become smaller.

        What has come after the handshake is carried over.
        """
        library, tls = self._library, self._tls
        into_ssl, from_ssl = library.new_bio(), library.new_bio()
        if not into_ssl or not from_ssl:
            # Memory has run out; the former ones do.
            return
        come = self._taken(self._into_ssl)
        library.set_bio(self._ssl, into_ssl, from_ssl)
        tls._into_ssl = self._into_ssl = into_ssl
        tls._from_ssl = self._from_ssl = from_ssl
        if come:
            self.feed(come)

    def _taken(self, bio: Any) -> bytes:
        """Return all that is in a buffer."""
        library = self._library
        pieces = []
        while (size := library.bio_read(bio, library.buffer, KEPT)) > 0:
            pieces.append(library.bytes[:size])
        return b"".join(pieces)

    def _write_rest(self, data: bytes, written: int) -> None:
        """Go on where OpenSSL has taken ``written`` bytes, or has failed.

        It takes a record at a time where a context allows partial writes, as pyOpenSSL's do.
        """
        library = self._library
        with library.pointer_to(data) as pointer:
            total = 0
            while written > 0:
                total += written
                if total == len(data):
                    return
                rest = min(len(data) - total, MOST_AT_ONCE)
                written = library.ssl_write(self._ssl, pointer + total, rest)
        self._raise(written)

    def _raise(self, result: int) -> NoReturn:
        """Raise what pyOpenSSL makes of a call that has failed just now."""
        self._tls._raise_ssl_error(self._ssl, result)
        raise SSL.Error([("", "", f"OpenSSL gives {result} and no reason")])
