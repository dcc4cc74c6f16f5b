"""Input and output of TLS over memory BIOs.

pyOpenSSL's public methods allocate a buffer for each piece, and check the error queue even after
success. :class:`DirectCalls` calls the same functions of OpenSSL with a reused buffer, and leaves
errors to pyOpenSSL; docs/performance.md shows what that saves. It uses private names of pyOpenSSL:
``OpenSSL._util``, and of ``Connection`` ``_ssl``, ``_into_ssl``, ``_from_ssl`` and
``_raise_ssl_error``. If one of them is missing or has another type, :class:`PublicMethods` does the
same by public methods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, Protocol

from OpenSSL import SSL

RECORD = 16 * 1024
"""The maximum plaintext of one record in bytes (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 64
"""An upper bound for the header, tag and padding of a record, in bytes."""

HANDSHAKE_SIZE = 16 * 1024
"""A size in bytes that most flights of a handshake do not exceed."""

BUFFER_SIZE = 160 * 1024
"""The size of the reused buffer in bytes: more than one read of a socket, or one write, needs."""

MAX_WRITE = 2**31 - 1
"""The maximum number of bytes in one call of ``SSL_write``, where it is an ``int``."""

_SIGNATURES = {
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
    """TLS after the handshake; all methods raise ``SSL.Error`` as those of pyOpenSSL do."""

    def feed(self, encrypted: bytes) -> None:
        """Accept one or more encrypted bytes from the peer."""

    def read(self, records: int, pieces: list[bytes]) -> None:
        """Append the data of the next ``records`` records to ``pieces``.

        Data before an error is appended, too. ``SSL.WantReadError`` means that some of the records
        held no data, ``SSL.ZeroReturnError`` that the peer has ended TLS.
        """

    def write(self, data: bytes) -> bytes:
        """Encrypt ``data``, and return all pending output."""

    def produced(self) -> bytes:
        """Return the pending output, such as a flight of the handshake or an alert."""

    def shrink(self) -> None:
        """Free memory that only the handshake needed, as far as possible."""


def state_of(connection: SSL.Connection) -> TLSState:
    """Return the fastest implementation for ``connection``, which was created without a socket."""
    library = private_library()
    return PublicMethods(connection) if library is None else DirectCalls(connection, library)


class PublicMethods:
    """The implementation with public methods of pyOpenSSL."""

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
            pieces.append(receive(RECORD))  # noqa: PERF401 # keeps the data before an error

    def write(self, data: bytes) -> bytes:
        """See :class:`TLSState`."""
        self._tls.sendall(data)
        return self._pending_output(len(data) + RECORD_OVERHEAD * (len(data) // RECORD + 2))

    def produced(self) -> bytes:
        """See :class:`TLSState`."""
        return self._pending_output(HANDSHAKE_SIZE)

    def shrink(self) -> None:
        """Do nothing: no public method frees this memory."""

    def _pending_output(self, expected: int) -> bytes:
        """Return the pending output, usually less than ``expected`` bytes."""
        pieces: list[bytes] = []
        try:
            while not pieces or len(pieces[-1]) == expected:
                pieces.append(self._tls.bio_read(expected))
        except SSL.WantReadError:
            # No more output.
            pass
        return b"".join(pieces)


class Library:
    """OpenSSL, called through ``lib`` and ``ffi`` of cffi, with the reused buffer.

    All connections share one: a single thread serves them, and no other code runs while the buffer
    is in use. The error queue is cleared before each call that may fail, so that an old error of
    another connection, or of other code in the process, is not mistaken for a new one.
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
        self.buffer = ffi.new("char[]", BUFFER_SIZE)
        # Each slice is a copy.
        self.bytes: bytes = ffi.buffer(self.buffer)


@cache
def private_library() -> Library | None:
    """Return OpenSSL for :class:`DirectCalls`, or ``None`` if a name it needs is missing."""
    try:
        from OpenSSL._util import ffi, lib

        probe: Any = SSL.Connection(SSL.Context(SSL.TLS_METHOD))
        fits = callable(probe._raise_ssl_error)
        for name, signature in _SIGNATURES.items():
            fits = fits and ffi.typeof(getattr(lib, name)) is ffi.typeof(signature)
        for name, pointer in _POINTERS.items():
            fits = fits and ffi.typeof(getattr(probe, name)) is ffi.typeof(pointer)
    except (ImportError, AttributeError, TypeError):
        return None
    return Library(lib, ffi) if fits else None


class DirectCalls:
    """The implementation with direct calls of OpenSSL's functions."""

    __slots__ = ("_from_ssl", "_into_ssl", "_library", "_ssl", "_tls")

    def __init__(self, connection: Any, library: Library) -> None:
        self._tls = connection
        # These are freed with the connection, to which the reference above is kept.
        self._ssl = connection._ssl
        self._into_ssl = connection._into_ssl
        self._from_ssl = connection._from_ssl
        self._library = library

    def feed(self, encrypted: bytes) -> None:
        """See :class:`TLSState`."""
        if self._library.bio_write(self._into_ssl, encrypted, len(encrypted)) <= 0:
            # Out of memory; nothing was accepted. This raises the error.
            self._tls.bio_write(encrypted)

    def read(self, records: int, pieces: list[bytes]) -> None:
        """See :class:`TLSState`."""
        library = self._library
        ssl_read, buffer = library.ssl_read, library.buffer
        library.clear_errors()
        size = result = 0
        for _ in range(records):
            if size > BUFFER_SIZE - RECORD:
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
            written = library.ssl_write(self._ssl, data, min(size, MAX_WRITE))
            if written != size:
                self._write_rest(data, written)
        return self.produced()

    def produced(self) -> bytes:
        """See :class:`TLSState`."""
        library = self._library
        size = library.bio_read(self._from_ssl, library.buffer, BUFFER_SIZE)
        if size < BUFFER_SIZE:
            return library.bytes[:size] if size > 0 else b""
        return library.bytes[:size] + self._pending_output(self._from_ssl)

    def shrink(self) -> None:
        """Replace the BIOs, which have grown to the size of a flight and never shrink.

        Data received after the handshake is carried over.
        """
        library, tls = self._library, self._tls
        into_ssl, from_ssl = library.new_bio(), library.new_bio()
        if not into_ssl or not from_ssl:
            # Out of memory; keep the old ones.
            return
        received = self._pending_output(self._into_ssl)
        library.set_bio(self._ssl, into_ssl, from_ssl)
        tls._into_ssl = self._into_ssl = into_ssl
        tls._from_ssl = self._from_ssl = from_ssl
        if received:
            self.feed(received)

    def _pending_output(self, bio: Any) -> bytes:
        """Return the content of a BIO."""
        library = self._library
        pieces = []
        while (size := library.bio_read(bio, library.buffer, BUFFER_SIZE)) > 0:
            pieces.append(library.bytes[:size])
        return b"".join(pieces)

    def _write_rest(self, data: bytes, written: int) -> None:
        """Continue after OpenSSL has written ``written`` bytes, or raise if it has failed.

        It writes one record at a time if the context allows partial writes, as pyOpenSSL's do.
        """
        library = self._library
        with library.pointer_to(data) as pointer:
            total = 0
            while written > 0:
                total += written
                if total == len(data):
                    return
                rest = min(len(data) - total, MAX_WRITE)
                written = library.ssl_write(self._ssl, pointer + total, rest)
        self._raise(written)

    def _raise(self, result: int) -> NoReturn:
        """Raise the exception of pyOpenSSL for the call that has just failed."""
        self._tls._raise_ssl_error(self._ssl, result)
        raise SSL.Error([("", "", f"OpenSSL returned {result} without an error")])
