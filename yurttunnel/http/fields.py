"""Header fields: the common base of message heads, hop-by-hop fields, and bearer tokens.

A field is a pair of bytes, name and value, without the white space around the value.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence

Fields = Sequence[tuple[bytes, bytes]]
"""Header fields in the order sent."""

# RFC 9110 section 5.6.2, and section 5.5 with obs-text: no control character but the tab.
_TOKEN_CHARACTERS = (string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode()
_VALUE_CHARACTERS = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_PER_CONNECTION = _HOP_BY_HOP | {b"connection"}
# These frame, route or authenticate the message. A Connection field that names one of them is an
# attempt to make a proxy drop it.
_NEVER_NAMED = frozenset({b"authorization", b"content-length", b"host"})
_NO_TRAILERS = _HOP_BY_HOP | {b"content-length", b"host"}
SENT_IN_TRAILERS = frozenset({b"content-digest", b"etag", b"repr-digest", b"server-timing"})
"""The trailer fields that are forwarded; all others are dropped.

RFC 9110 section 6.5 forbids to send a field as a trailer unless its definition permits that, since
recipients may merge trailers into the head, and allows intermediaries to discard trailers. These
permit it: ``ETag`` (RFC 9110 section 8.8.3), the digests (RFC 9530 sections 2 and 3) and
``Server-Timing`` (W3C).
"""


class Head:
    """The common base of request and response heads.

    ``version`` is ``"1.0"`` or ``"1.1"``. ``fields`` are in the order sent, with the case of the
    names kept, and must not be modified. ``by_name`` maps the lower-case name of each field to its
    values in the order sent; looking into it takes no function call.
    """

    __slots__ = ("by_name", "fields", "version")

    def __init__(self, version: str, fields: list[tuple[bytes, bytes]]) -> None:
        self.version = version
        self.fields = fields
        self.by_name: dict[bytes, list[bytes]] = {}
        by_name = self.by_name
        for name, value in fields:
            name = name.lower()
            if name in by_name:
                by_name[name].append(value)
            else:
                by_name[name] = [value]

    def values(self, name: bytes) -> list[bytes]:
        """Return all values of the field ``name`` (in lower case), in the order sent."""
        return self.by_name.get(name, [])

    def end_to_end(self) -> list[tuple[bytes, bytes]]:
        """Return the fields that a proxy forwards, as :func:`end_to_end` does."""
        if _PER_CONNECTION.isdisjoint(self.by_name):
            return [*self.fields]
        return end_to_end(self.fields)


def end_to_end(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the fields that a proxy forwards (RFC 9110 section 7.6.1).

    Hop-by-hop fields and those that ``Connection`` names are removed. ``Authorization``, ``Host``
    and ``Content-Length`` are kept even when named.
    """
    passed_on, options = [], []
    for field in fields:
        name = field[0].lower()
        if name == b"connection":
            options.append(field[1])
        elif name not in _HOP_BY_HOP:
            passed_on.append(field)
    if not options:
        return passed_on
    dropped = frozenset(_list_of(options)) - _NEVER_NAMED
    return [field for field in passed_on if field[0].lower() not in dropped]


def connection_options(head: Head) -> set[bytes]:
    """Return the options in the ``Connection`` fields, in lower case."""
    return set(_list_of(head.values(b"connection")))


def keeps_alive(head: Head) -> bool:
    """Return whether another message may follow on the connection (RFC 9112 section 9.3)."""
    if b"connection" not in head.by_name:
        return head.version == "1.1"
    options = connection_options(head)
    if b"close" in options:
        return False
    return head.version == "1.1" or b"keep-alive" in options


def requested_upgrade(head: Head) -> bytes | None:
    """Return the value of ``Upgrade`` if the request asks for an upgrade, else ``None``.

    HTTP/1.0 has no upgrades. ``h2c`` is ignored, as RFC 9110 section 7.8 allows and RFC 9113
    section 3.1 advises: the requests after such an upgrade would pass unchecked.
    """
    values = head.by_name.get(b"upgrade")
    if not values or head.version != "1.1" or b"upgrade" not in connection_options(head):
        return None
    protocols = list(_list_of(values))
    if not protocols or b"h2c" in protocols:
        return None
    return b", ".join(values)


def check_field(name: bytes, value: bytes) -> None:
    """Raise ``ValueError`` unless ``name`` and ``value`` can be sent as one field.

    The message does not contain the value, which may be a secret.
    """
    if not name or name.translate(None, _TOKEN_CHARACTERS):
        raise ValueError(f"{name!r} is not the name of a header field")
    if value.translate(None, _VALUE_CHARACTERS):
        raise ValueError(f"the value of {name.decode()} has control characters")


def format_fields(fields: Fields) -> bytes:
    """Serialize ``fields``. Raises ``ValueError`` for what :func:`check_field` rejects."""
    if not fields:
        return b""
    names, values = zip(*fields, strict=True)
    # Checked all at once, since this is done for each message; one by one only to find a bad one.
    if (
        b"".join(names).translate(None, _TOKEN_CHARACTERS)
        or b"".join(values).translate(None, _VALUE_CHARACTERS)
        or b"" in names
    ):
        for name, value in fields:
            check_field(name, value)
    return b"\r\n".join(map(b": ".join, fields)) + b"\r\n"


def allowed_in_trailers(name: bytes) -> bool:
    """Return whether a field may be a trailer: not if it frames or routes the message."""
    return name.lower() not in _NO_TRAILERS


def _list_of(values: Iterable[bytes]) -> Iterable[bytes]:
    """Return the members of a comma-separated list (RFC 9110 section 5.6.1), in lower case."""
    for value in values:
        for member in value.lower().split(b","):
            member = member.strip(b" \t")
            if member:
                yield member


MAX_TOKEN = 16 * 1024
"""The maximum length in characters. Tokens of service accounts have about 1,000, those of identity
providers a few thousand."""

# With more than one space kube-apiserver finds no token, and treats the request as anonymous
# (``AuthenticateRequest`` of k8s.io/apiserver pkg/authentication/request/bearertoken).
_BEARER = re.compile(rb"bearer ([\x21-\x7e]+) *", re.IGNORECASE)


class BadToken(Exception):
    """An ``Authorization`` field without a valid token; the message says why in one line."""


def bearer_token(head: Head) -> str | None:
    """Return the bearer token of a request, or ``None`` if there is no ``Authorization`` field.

    Raises :class:`BadToken`. The field is that of RFC 6750, section 2.1.
    """
    values = head.values(b"authorization")
    if not values:
        return None
    if len(values) > 1:
        raise BadToken("Authorization is present more than once")
    match = _BEARER.fullmatch(values[0])
    if match is None:
        raise BadToken("Authorization has no bearer token")
    if len(match[1]) > MAX_TOKEN:
        raise BadToken(f"the token has more than {MAX_TOKEN} characters")
    return match[1].decode("ascii")
