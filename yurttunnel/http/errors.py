"""How a failure is told to an HTTP caller: status, and a body that the caller can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from yurttunnel.http.accept import media_ranges
from yurttunnel.http.fields import Head, requested_upgrade
from yurttunnel.wire.codes import Code

_STATUS_OF_CODE = {
    Code.REFUSED: 502,
    Code.UNREACHABLE: 502,
    Code.TIMEOUT: 504,
    Code.NAME_NOT_RESOLVED: 502,
    Code.DENIED: 403,
    Code.OVERLOADED: 503,
    Code.BAD_DESTINATION: 400,
    Code.GOING_AWAY: 503,
    Code.SESSION_LOST: 503,
    Code.REPLACED: 503,
    Code.REVOKED: 503,
    Code.NOT_AUTHORIZED: 503,
}

# StatusReason of k8s.io/apimachinery pkg/apis/meta/v1 types.go, as its NewGenericServerResponse
# chooses it; InternalError is what it says of every other 5xx.
_REASON_OF_STATUS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    408: "Timeout",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_LONGEST_TEXT = 2048
_LONGEST_REFUSAL = 1024
"""Bytes that clients read of the answer to an upgrade that is refused (``NewClient`` of
gorilla/websocket, client.go): what is longer they cut, and then cannot decode."""
_JSON_TYPES = frozenset({"application/json", "application/*"})


class RequestFailed(Exception):
    """A request that is to be answered with a failure: the HTTP ``status``, and why in one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        """Return the line."""
        return self.text


class ApiFailure(RequestFailed):
    """A failure of which the Kubernetes API tells more than a status and a line.

    ``reason`` is a ``StatusReason``, by default the usual one of the status. ``details`` are the
    fields of ``StatusDetails``. ``retry_after`` is in seconds.
    """

    def __init__(
        self,
        status: int,
        text: str,
        reason: str = "",
        details: Mapping[str, object] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(status, text)
        self.reason = reason
        self.details = dict(details or {})
        self.retry_after = retry_after
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after


def status_of(code: Code) -> int:
    """Return the HTTP status that answers a failed dial or session.

    Anything that is not foreseen is the fault of the far end: 502.
    """
    return _STATUS_OF_CODE.get(code, 502)


def accepts_json(accept: Iterable[bytes]) -> bool:
    """Return whether Accept fields ask for JSON by name.

    kubectl sends ``application/json, */*``; ``*/*`` alone, as curl sends it, is somebody at a
    terminal and gets text.
    """
    return any(one.type in _JSON_TYPES for one in media_ranges(b",".join(accept)))


def reads_status(head: Head | None) -> bool:
    """Return whether the sender of ``head`` is to be told of a failure by a ``metav1.Status``.

    Those who ask for JSON are, and those who ask for an upgrade, whatever else they accept: the
    clients of Kubernetes decode the body of a refused upgrade as a Status without looking at its
    type (``NewConnection`` of k8s.io/apimachinery pkg/util/httpstream/spdy/roundtripper.go,
    ``RoundTrip`` of k8s.io/client-go transport/websocket/roundtripper.go). Their decoder reads
    YAML, too, so a sentence with a colon would become a Status that says nothing. Without a head,
    which was refused or never came, nobody knows who asked: then it is what all can read.
    """
    if head is None:
        return True
    return requested_upgrade(head) is not None or accepts_json(head.values(b"accept"))


def error_response(
    status: int,
    text: str,
    head: Head | None,
    *,
    headers: Iterable[tuple[str, str]] = (),
    in_status_line: bool = False,
) -> bytes:
    """Build a whole answer, after which the connection is to be closed.

    ``text`` and ``head`` are as in :func:`error_content`, ``headers`` more fields of the
    answer, which are the program's own and not checked. With ``in_status_line`` the text is there,
    too, in place of the phrase that belongs to the status: some callers show only that.
    """
    fields, body = error_content(status, text, head)
    phrase = _one_line(text) if in_status_line else HTTPStatus(status).phrase
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        *(f"{name}: {value}" for name, value in headers),
        *(f"{name.decode()}: {value.decode()}" for name, value in fields),
        f"Content-Length: {len(body)}",
        "Connection: close",
        "\r\n",
    ]
    return "\r\n".join(lines).encode("ascii", "replace") + body


def error_content(
    status: int, text: str, head: Head | None
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the fields and the body that tell a failure to the sender of ``head``.

    ``text`` may come from anywhere: control characters become spaces, and it is cut at 2048
    characters; for who asks for an upgrade at 1024 bytes of the body. ``head`` is that of the
    request, ``None`` when there was none that could be read.
    """
    line = _one_line(text)
    if reads_status(head):
        content_type = b"application/json"
        body = _metav1_status(status, line)
        if head is not None and requested_upgrade(head) is not None:
            while (too_long := len(body) - _LONGEST_REFUSAL) > 0:
                # A character takes up to 12 bytes in JSON.
                line = line[: -(too_long // 12) - 1]
                body = _metav1_status(status, f"{line}...")
    else:
        content_type = b"text/plain; charset=utf-8"
        body = f"{line}\n".encode("utf-8", "replace")
    return [(b"Content-Type", content_type), (b"X-Content-Type-Options", b"nosniff")], body


def status_content(failure: RequestFailed) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the fields and the body that tell ``failure`` to a client of the Kubernetes API.

    That is a ``metav1.Status`` in JSON, whatever the client accepts: all clients of Kubernetes
    decode an answer by its type. The text is treated as :func:`error_content` treats it.
    """
    fields = [(b"Content-Type", b"application/json")]
    if not isinstance(failure, ApiFailure):
        return fields, _metav1_status(failure.status, _one_line(failure.text))
    if failure.retry_after is not None:
        fields.append((b"Retry-After", b"%d" % failure.retry_after))
    line = _one_line(failure.text)
    return fields, _metav1_status(failure.status, line, failure.reason, failure.details)


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()[:_LONGEST_TEXT]


def _metav1_status(
    status: int, message: str, reason: str = "", details: Mapping[str, object] | None = None
) -> bytes:
    default = "InternalError" if status >= 500 else "BadRequest"
    fields: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason or _REASON_OF_STATUS.get(status, default),
        "code": status,
    }
    if details:
        fields["details"] = details
    return json.dumps(fields).encode("ascii") + b"\n"
