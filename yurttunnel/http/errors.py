"""Error responses for HTTP callers: the status, and a body in a format that the caller reads."""

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
# chooses it; every other 5xx is InternalError.
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
_MAX_TEXT = 2048
_MAX_UPGRADE_ERROR = 1024
"""The number of bytes that clients read of the response to a rejected upgrade (``NewClient`` of
gorilla/websocket, client.go). They truncate a longer body, and then cannot decode it."""
_JSON_TYPES = frozenset({"application/json", "application/*"})


class RequestFailed(Exception):
    """A request to be answered with an error: the HTTP ``status``, and the reason in one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        """Return the reason."""
        return self.text


class ApiFailure(RequestFailed):
    """An error with the further fields that the Kubernetes API returns.

    ``reason`` is a ``StatusReason``, by default the usual one for the status. ``details`` are the
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
    """Return the HTTP status for a failed dial or session.

    Codes without a status of their own are the fault of the far end: 502.
    """
    return _STATUS_OF_CODE.get(code, 502)


def accepts_json(accept: Iterable[bytes]) -> bool:
    """Return whether ``Accept`` fields name JSON.

    kubectl sends ``application/json, */*``. curl sends ``*/*`` alone; its user is at a terminal and
    gets text.
    """
    return any(one.type in _JSON_TYPES for one in media_ranges(b",".join(accept)))


def reads_status(head: Head | None) -> bool:
    """Return whether the client that sent ``head`` gets an error as a ``metav1.Status``.

    Clients that accept JSON do, and so do all that request an upgrade, whatever they accept:
    Kubernetes clients decode the body of a rejected upgrade as a Status without checking its
    content type (``NewConnection`` of k8s.io/apimachinery pkg/util/httpstream/spdy/roundtripper.go,
    ``RoundTrip`` of k8s.io/client-go transport/websocket/roundtripper.go). Their decoder also
    reads YAML, so a line of text with a colon would become an empty Status. If there is no head,
    because it was rejected or never arrived, the client is unknown, and a Status is readable for
    all.
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
    """Build a complete error response, after which the connection is to be closed.

    ``text`` and ``head`` are as in :func:`error_content`. ``headers`` are further fields; they are
    not checked, since they come from this program. With ``in_status_line`` the text also replaces
    the standard reason phrase, because some callers show only that.
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
    """Return the fields and the body of an error response to the client that sent ``head``.

    ``text`` may come from any source: control characters are replaced by spaces, and it is
    truncated to 2048 characters, or to a body of 1024 bytes for a request with an upgrade. ``head``
    is the request head, ``None`` if there was no valid one.
    """
    line = _one_line(text)
    if reads_status(head):
        content_type = b"application/json"
        body = _metav1_status(status, line)
        if head is not None and requested_upgrade(head) is not None:
            while (too_long := len(body) - _MAX_UPGRADE_ERROR) > 0:
                # A character takes up to 12 bytes in JSON: two escapes for a surrogate pair.
                line = line[: -(too_long // 12) - 1]
                body = _metav1_status(status, f"{line}...")
    else:
        content_type = b"text/plain; charset=utf-8"
        body = f"{line}\n".encode("utf-8", "replace")
    return [(b"Content-Type", content_type), (b"X-Content-Type-Options", b"nosniff")], body


def status_content(failure: RequestFailed) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the fields and the body that report ``failure`` to a client of the Kubernetes API.

    The body is a ``metav1.Status`` in JSON, whatever the client accepts: all Kubernetes clients
    decode a response by its content type. The text is sanitized as in :func:`error_content`.
    """
    fields = [(b"Content-Type", b"application/json")]
    if not isinstance(failure, ApiFailure):
        return fields, _metav1_status(failure.status, _one_line(failure.text))
    if failure.retry_after is not None:
        fields.append((b"Retry-After", b"%d" % failure.retry_after))
    line = _one_line(failure.text)
    return fields, _metav1_status(failure.status, line, failure.reason, failure.details)


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(" ", text).strip()[:_MAX_TEXT]


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
