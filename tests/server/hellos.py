"""ClientHellos: those of OpenSSL, and others that it would not create."""

from __future__ import annotations

import ssl
import struct

VERSIONS = (
    ssl.TLSVersion.TLSv1,
    ssl.TLSVersion.TLSv1_1,
    ssl.TLSVersion.TLSv1_2,
    ssl.TLSVersion.TLSv1_3,
)

GREASE = b"\x0a\x0a"
"""A value that is reserved to be ignored (RFC 8701)."""


def client_hello(name=None, version=None, alpn=("h2", "http/1.1")):
    """Return the first flight of an OpenSSL client, with the name and the version if given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(alpn)
    if version is not None:
        # Versions before 1.2 are rejected by default.
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        context.minimum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake needs an answer")


def vector(size, content):
    """Return a vector whose length has ``size`` bytes."""
    return len(content).to_bytes(size) + content


def extension(kind, content):
    """Return an extension of a ClientHello."""
    return kind.to_bytes(2) + vector(2, content)


def server_name(*names, kind=0):
    """Return the extension ``server_name``."""
    return extension(0, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def message(*extensions, session_id=bytes(32), ciphers=GREASE + b"\x13\x01"):
    """Return the handshake message ClientHello; without ``extensions`` it has no such field."""
    body = b"\x03\x03" + bytes(range(32)) + vector(1, session_id) + vector(2, ciphers)
    body += vector(1, b"\x00")
    if extensions:
        body += vector(2, b"".join(extensions))
    return b"\x01" + vector(3, body)


def records(handshake, size=1 << 14, version=0x0301):
    """Return records with ``size`` bytes of a handshake message each."""
    pieces = [handshake[begin : begin + size] for begin in range(0, len(handshake), size)]
    return b"".join(struct.pack("!BHH", 22, version, len(piece)) + piece for piece in pieces)


def fragmented(flight, size):
    """Fragment the message of a ``flight`` of records anew."""
    handshake = b""
    while flight:
        length = int.from_bytes(flight[3:5])
        handshake += flight[5 : 5 + length]
        flight = flight[5 + length :]
    return records(handshake, size)
