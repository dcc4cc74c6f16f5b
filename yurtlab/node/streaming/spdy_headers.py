"""Header blocks of SPDY/3: names and values, compressed by zlib with a dictionary of the protocol.

Each direction of a connection has one compression context, so every block must pass through it,
in order. Draft 3.1 section 2.6.10.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final

_WORDS: Final = (
    b"options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,"
    b"accept-ranges,age,allow,authorization,cache-control,connection,content-base,"
    b"content-encoding,content-language,content-length,content-location,content-md5,"
    b"content-range,content-type,date,etag,expect,expires,from,host,if-match,if-modified-since,"
    b"if-none-match,if-range,if-unmodified-since,last-modified,location,max-forwards,pragma,"
    b"proxy-authenticate,proxy-authorization,range,referer,retry-after,server,te,trailer,"
    b"transfer-encoding,upgrade,user-agent,vary,via,warning,www-authenticate,method,get,status,"
    b"200 OK,version,HTTP/1.1,url,public,set-cookie,keep-alive,origin"
).split(b",")

_REST: Final = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 "
    b"Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 "
    b"Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, "
    b"Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    b"application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age="
    b"gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)

DICTIONARY: Final = b"".join(struct.pack("!I", len(word)) + word for word in _WORDS) + _REST
"""The dictionary of section 2.6.10.1: 1423 bytes, Adler-32 0xE3C6A7C2."""

MAX_BLOCK: Final = 16 * 1024
"""The longest decompressed block that is taken in, in bytes. kubectl needs about 100; draft 3.1
asks for at least 8192."""

MAX_HEADERS: Final = 64
"""The most names in a block."""

_LENGTH: Final = struct.Struct("!I")

Headers = Mapping[bytes, bytes]


class BadHeaders(Exception):
    """A header block that is refused, after which its context is of no use."""


class HeaderCompressor:
    """The sending direction."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def compress(self, headers: Headers) -> bytes:
        """Encode a block; names must be in lower case."""
        parts = [_LENGTH.pack(len(headers))]
        for name, value in headers.items():
            parts += (_LENGTH.pack(len(name)), name, _LENGTH.pack(len(value)), value)
        # Flushed so that the peer can read the block without the next one.
        return self._zlib.compress(b"".join(parts)) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class HeaderDecompressor:
    """The receiving direction."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, block: bytes) -> dict[bytes, bytes]:
        """Decode a block; several values of one name stay joined by NUL.

        Raises :class:`BadHeaders`.
        """
        try:
            plain = self._zlib.decompress(block, MAX_BLOCK + 1)
        except zlib.error as error:
            raise BadHeaders(f"a header block cannot be decompressed: {error}") from None
        if len(plain) > MAX_BLOCK:
            raise BadHeaders(f"a header block is longer than {MAX_BLOCK} bytes")
        if self._zlib.eof:
            raise BadHeaders("the compression of headers was ended")
        return _parse(plain)


def _parse(plain: bytes) -> dict[bytes, bytes]:
    if len(plain) < _LENGTH.size:
        raise BadHeaders("a header block breaks off")
    (count,) = _LENGTH.unpack_from(plain)
    if count > MAX_HEADERS:
        raise BadHeaders(f"a header block has more than {MAX_HEADERS} names")
    headers: dict[bytes, bytes] = {}
    offset = _LENGTH.size
    for _ in range(count):
        name, offset = _parse_text(plain, offset)
        value, offset = _parse_text(plain, offset)
        if not name or name != name.lower():
            raise BadHeaders("a header has no name in lower case")
        if name in headers:
            raise BadHeaders("a header block names a header twice")
        headers[name] = value
    if offset != len(plain):
        raise BadHeaders("a header block goes on behind its headers")
    return headers


def _parse_text(plain: bytes, offset: int) -> tuple[bytes, int]:
    start = offset + _LENGTH.size
    if start > len(plain):
        raise BadHeaders("a header block breaks off")
    (length,) = _LENGTH.unpack_from(plain, offset)
    end = start + length
    if end > len(plain):
        raise BadHeaders("a header block breaks off")
    return plain[start:end], end
