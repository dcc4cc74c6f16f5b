"""Responses of the API: errors, bodies, pages of lists, and the events of a watch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, cast

from OpenSSL import SSL

from yurttunnel.http.head import ResponseHead
from yurttunnel.kube.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    Conflict,
    Expired,
    NotAllowed,
    NotFound,
)
from yurttunnel.kube.resources import Object, Resource

MAX_BODY = 64 * 1024 * 1024
"""The maximum size of a response in bytes."""

MAX_LINE = 16 * 1024 * 1024
"""The maximum size of a watch event in bytes; an object has 1.5 MiB at most (etcd's default)."""

_MAX_TEXT = 300


def api_error(status: int, body: object, retry_after: float | None = None) -> ApiError:
    """Return the error for a ``metav1.Status``; ``status`` is the HTTP status."""
    kube_status = body if isinstance(body, dict) and body.get("kind") == "Status" else {}
    reason = kube_status.get("reason") or "Unknown"
    message = kube_status.get("message") or "the API gives no reason"
    if retry_after is None and isinstance(kube_status.get("details"), dict):
        retry_after = _seconds(kube_status["details"].get("retryAfterSeconds"))
    kind: type[ApiError] = ApiError
    match status:
        case 401 | 403:
            kind = NotAllowed
        case 404:
            kind = NotFound
        case 409:
            kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        case 410:
            kind = Expired
    return kind(status, str(reason), " ".join(str(message).split()), retry_after)


def error_response(head: ResponseHead, data: bytes) -> ApiError:
    """Return the error for a response with an error status."""
    retry_after = _seconds(next(iter(head.values(b"retry-after")), None))
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        # The response is not from the API but from an intermediary, such as a proxy.
        text = " ".join(data[:_MAX_TEXT].decode("utf-8", "replace").split())
        body = {"kind": "Status", "message": text or None}
    return api_error(head.status, body, retry_after)


def _seconds(value: object) -> float | None:
    """Parse seconds; Retry-After may also be a date, which the API never sends."""
    try:
        seconds = float(cast("Any", value))
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class Body:
    """Collects a body of at most ``limit`` bytes; see :meth:`Response.read`."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> None:
        """Add a piece; raises :class:`ApiUnreachable` if the body is too long."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._limit:
            raise ApiUnreachable(f"the answer has more than {self._limit} bytes")

    def whole(self) -> bytes:
        """Return the complete body."""
        return b"".join(self._pieces)


class Events:
    """Calls ``on_event`` for each event of a watch, one a line (kubernetes.io, "Watch").

    It stops once ``ended()`` returns true.
    """

    def __init__(
        self,
        on_event: Callable[[str, Object], object],
        ended: Callable[[], bool],
        max_line: int = MAX_LINE,
    ) -> None:
        self._on_event = on_event
        self._ended = ended
        self._max_line = max_line
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> None:
        """Handle the events that are complete now.

        Raises the error in an ERROR event, exceptions of ``on_event``, and :class:`ApiUnreachable`
        for a line that is not an event.
        """
        *complete, rest = data.split(b"\n")
        for line in complete:
            self._add(line)
            line, self._pieces, self._size = b"".join(self._pieces), [], 0
            if line.strip() and not self._ended():
                self._event(line)
        if rest:
            self._add(rest)

    def end(self) -> None:
        """Raise :class:`ApiUnreachable` within a line, where the API never ends a watch."""
        if self._pieces:
            raise ApiUnreachable("the watch ended within an event")

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._max_line:
            raise ApiUnreachable(f"an event has more than {self._max_line} bytes")

    def _event(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
            if not isinstance(kind, str) or not isinstance(obj, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            text = line[:_MAX_TEXT].decode("utf-8", "replace")
            raise ApiUnreachable(f"a watch has an invalid event: {text!r}") from None
        if kind == "ERROR":
            code = obj.get("code")
            raise api_error(code if isinstance(code, int) else 500, obj)
        self._on_event(kind, obj)


_TLS_PROBLEMS = {"wrong version number": "it does not speak TLS: check the port"}
"""Descriptions of OpenSSL's reasons that name the cause."""


def described(error: BaseException) -> str:
    """Return a connection error in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, SSL.Error) and error.args and isinstance(error.args[0], list):
        # OpenSSL's error queue: library, function and reason.
        text = ", ".join(_TLS_PROBLEMS.get(each[-1], str(each[-1])) for each in error.args[0])
    return text or type(error).__name__


PAGE_BYTES = 512 * 1024
"""The intended size of a page; parsing it takes about 10 ms, and more on small machines."""

FIRST_PAGE = 50
"""The number of objects of the first page, while their size is unknown."""


class PageLimits:
    """Remembers the size of the objects of each kind."""

    def __init__(self) -> None:
        self._bytes_per_object: dict[Resource, float] = {}

    def limit(self, resource: Resource, desired: int) -> int:
        """Return how many objects to request if ``desired`` are enough."""
        size = self._bytes_per_object.get(resource)
        fitting = FIRST_PAGE if size is None else int(PAGE_BYTES / size)
        return max(1, min(desired, fitting))

    def seen(self, resource: Resource, size: int, page: Object) -> None:
        """Update the size of objects from a page of ``size`` bytes."""
        items = page.get("items")
        if isinstance(items, list) and items:
            self._bytes_per_object[resource] = size / len(items)
