"""What the API answers: errors, bodies, and the lines of a watch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, cast

from OpenSSL import SSL
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import ResponseDone
from twisted.web.iweb import IResponse

from yurttunnel.kube.errors import (
    AlreadyExists,
    ApiError,
    ApiUnreachable,
    Conflict,
    Expired,
    NotAllowed,
    NotFound,
)
from yurttunnel.kube.resources import Object

MAX_BODY = 64 * 1024 * 1024
"""Bytes that an answer may have."""

MAX_LINE = 16 * 1024 * 1024
"""Bytes that an event of a watch may have; an object has 1.5 MiB at most (etcd's default)."""

_MAX_TEXT = 300


def api_error(status: int, body: object, retry_after: float | None = None) -> ApiError:
    """Make the error that a ``metav1.Status`` stands for; ``status`` is that of HTTP."""
    said = body if isinstance(body, dict) and body.get("kind") == "Status" else {}
    reason = said.get("reason") or "Unknown"
    message = said.get("message") or "the API gives no reason"
    if retry_after is None and isinstance(said.get("details"), dict):
        retry_after = _seconds(said["details"].get("retryAfterSeconds"))
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


def answered_error(response: IResponse, data: bytes) -> ApiError:
    """Make the error that an answer with an error's status stands for."""
    retry_after = _seconds((response.headers.getRawHeaders("Retry-After") or [None])[0])
    try:
        body = json.loads(data)
    except ValueError:
        # Something between us and the API, such as a proxy.
        text = " ".join(data[:_MAX_TEXT].decode("utf-8", "replace").split())
        body = {"kind": "Status", "message": text or None}
    return api_error(response.code, body, retry_after)


def _seconds(value: object) -> float | None:
    """Read seconds; Retry-After may be a date, too, which the API never sends."""
    try:
        seconds = float(cast("Any", value))
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class _Receiver(Protocol):
    """Takes a body; ``done`` fires at its end, and cancelling that closes the connection."""

    def __init__(self) -> None:
        self.done: Deferred[Any] = Deferred(lambda _: self.close())

    def close(self) -> None:
        """Want no more."""
        if self.transport is not None:
            # On TLS, too, this closes the socket itself: nobody waits for the peer's farewell.
            cast("IPushProducer", self.transport).stopProducing()

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.done.called:
            self.done.errback(error)
            self.close()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End, in good order if the body was complete."""
        self.transport = None
        if self.done.called:
            return
        if reason.check(ResponseDone):
            self.complete()
        else:
            self.done.errback(ApiUnreachable(f"the answer was cut off: {described(reason)}"))

    def complete(self) -> None:
        """Take it that the body is complete."""
        raise NotImplementedError


class Body(_Receiver):
    """Keeps a body of at most ``limit`` bytes, with which ``done`` fires."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        super().__init__()
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._limit:
            self._pieces.clear()
            self.fail(ApiUnreachable(f"the answer has more than {self._limit} bytes"))

    def complete(self) -> None:
        self.done.callback(b"".join(self._pieces))


class Events(_Receiver):
    """Calls ``on_event`` for each event of a watch, which are lines (kubernetes.io, "Watch")."""

    def __init__(self, on_event: Callable[[str, Object], object], max_line: int = MAX_LINE) -> None:
        super().__init__()
        self._on_event = on_event
        self._max_line = max_line
        self._pieces: list[bytes] = []
        self._size = 0

    def dataReceived(self, data: bytes) -> None:
        """Take the events that are complete now."""
        if self.done.called:
            return
        *complete, rest = data.split(b"\n")
        for line in complete:
            self._pieces.append(line)
            self._size += len(line)
            line, self._pieces = b"".join(self._pieces), []
            if self._size > self._max_line:
                break
            self._size = 0
            if line.strip() and not self.done.called:
                self._event(line)
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
        if self._size > self._max_line:
            self._pieces.clear()
            self.fail(ApiUnreachable(f"an event has more than {self._max_line} bytes"))

    def complete(self) -> None:
        """End; the API never ends a watch within a line."""
        if self._pieces:
            self.done.errback(ApiUnreachable("the watch ended within an event"))
        else:
            self.done.callback(None)

    def _event(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, obj = event["type"], event["object"]
            if not isinstance(kind, str) or not isinstance(obj, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            text = line[:_MAX_TEXT].decode("utf-8", "replace")
            self.fail(ApiUnreachable(f"what a watch tells is no event: {text!r}"))
            return
        if kind == "ERROR":
            code = obj.get("code")
            self.fail(api_error(code if isinstance(code, int) else 500, obj))
            return
        try:
            self._on_event(kind, obj)
        except Exception as error:
            # It would be lost in the transport; whoever watches has to learn of it.
            self.fail(error)


def described(reason: Failure | BaseException) -> str:
    """Return on one line what went wrong with a connection."""
    error = reason.value if isinstance(reason, Failure) else reason
    # twisted.web packs the reasons into an error of its own.
    reasons = getattr(error, "reasons", None)
    if reasons:
        return described(reasons[0])
    text = " ".join(str(error).split())
    if isinstance(error, SSL.Error) and error.args and isinstance(error.args[0], list):
        # OpenSSL's queue of errors: library, function and reason.
        text = ", ".join(str(each[-1]) for each in error.args[0])
    return text or type(error).__name__
