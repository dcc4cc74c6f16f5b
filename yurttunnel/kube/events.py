"""Events about objects, which ``kubectl describe`` and ``kubectl get events`` show.

They are aggregated and rate-limited as in ``k8s.io/client-go/tools/record`` (``events_cache.go``).
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from twisted.application.service import Service
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.kube.errors import AlreadyExists, ApiError, ApiUnreachable, NotFound
from yurttunnel.kube.interfaces import IKubeClient
from yurttunnel.kube.resources import EVENTS, Object
from yurttunnel.ops.bounded_dict import BoundedDict
from yurttunnel.ops.clocks import time_of_day, timestamp
from yurttunnel.ops.log import RateLimitedLog

MAX_REMEMBERED = 4096
"""The maximum number of remembered events, and of objects (``maxLruCacheEntries``)."""

MAX_WAITING = 1000
"""The maximum number of queued events; further ones are dropped (``maxQueuedEvents``)."""

BURST = 25
REFILL_SECONDS = 300.0
"""The burst of events about one object, and the seconds until one more is allowed.

``defaultSpamBurst`` and ``defaultSpamQPS``.
"""

MAX_MESSAGE = 1024
MAX_REASON = 128
"""Bytes (``k8s.io/kubernetes/pkg/apis/core/validation/events.go``)."""

_MAX_NAME = 253
"""Characters of a name (RFC 1123 subdomain)."""

_Key = tuple[str, ...]


@dataclass(slots=True)
class _SentEvent:
    """An event with its count, and whether it was created in the API."""

    body: Object
    created: bool = False


class EventRecorder(Service):
    """Writes events as ``component``, which runs as ``instance``; best effort, one at a time.

    A repeated event increments the count of the first. Events that cannot be written are logged and
    lost. The recorder works without being started; once stopped, it writes nothing until it is
    started.
    """

    _log = Logger()

    def __init__(
        self, clock: IReactorTime, client: IKubeClient, component: str, instance: str
    ) -> None:
        self._clock = clock
        self._client = client
        self._component = component
        self._instance = instance
        self._sent = BoundedDict[_Key, _SentEvent](MAX_REMEMBERED)
        # The time at which an object's bucket is full again.
        self._full_again = BoundedDict[_Key, float](MAX_REMEMBERED)
        self._waiting: OrderedDict[_Key, _SentEvent] = OrderedDict()
        self._writing: Deferred[None] | None = None
        self._stopped = False
        self._last_stamp = 0
        self._limited = RateLimitedLog(clock, self._log)

    def record(self, involved: Object, type: str, reason: str, message: str) -> None:
        """Record an event about ``involved``; never raises.

        ``involved`` needs ``apiVersion`` and ``kind``, which objects of a list lack. ``type`` is
        ``Normal`` or ``Warning``, ``reason`` a few words in UpperCamelCase of at most 128 bytes,
        ``message`` a sentence, which is truncated to 1024 bytes.
        """
        about = _reference(involved)
        if about is None:
            self._limited.warn(
                "the event {reason} is not recorded: it does not refer to an object: {text}",
                reason=reason,
                text=repr(involved)[:200],
            )
            return
        if self._stopped:
            return
        message, reason = _truncated(message, MAX_MESSAGE), _truncated(reason, MAX_REASON)
        identity = tuple(
            str(about.get(each, "")) for each in ("apiVersion", "kind", "namespace", "name", "uid")
        )
        key = (*identity, type, reason, message)
        sent = self._sent.get(key)
        if sent is None:
            sent = _SentEvent(self._body(about, type, reason, message))
        else:
            sent.body["count"] += 1
            sent.body["lastTimestamp"] = self._timestamp()
            sent.body["involvedObject"] = about
        self._sent[key] = sent
        # A queued event already includes this repetition.
        if key not in self._waiting and self._is_allowed(identity):
            self._enqueue(key, sent)

    def startService(self) -> None:
        super().startService()
        self._stopped = False

    def stopService(self) -> Deferred[None] | None:
        """Stop writing; fires when the write in progress is cancelled."""
        super().stopService()
        self._stopped = True
        self._waiting.clear()
        writing = self._writing
        if writing is not None:
            writing.cancel()
        return writing

    def _is_allowed(self, identity: _Key) -> bool:
        """Take a token of the object's bucket, and return whether there was one."""
        now = self._clock.seconds()
        before = max(self._full_again.get(identity, 0.0), now)
        after = before + REFILL_SECONDS
        allowed = after - now <= BURST * REFILL_SECONDS
        self._full_again[identity] = after if allowed else before
        return allowed

    def _enqueue(self, key: _Key, sent: _SentEvent) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._limited.warn(
                "the event {reason} about {about} is lost: {count} others wait to be written",
                reason=sent.body["reason"],
                about=_described(sent.body),
                count=MAX_WAITING,
            )
            return
        self._waiting[key] = sent
        if self._writing is None:
            writing = self._writing = Deferred.fromCoroutine(self._write_all())
            _ = writing.addBoth(self._written)

    def _written(self, _: object) -> None:
        self._writing = None

    async def _write_all(self) -> None:
        while self._waiting:
            _, sent = self._waiting.popitem(last=False)
            try:
                await self._write(sent)
            except CancelledError:
                # The service was stopped.
                return
            except (ApiError, ApiUnreachable) as error:
                self._limited.warn(
                    "the event {reason} about {about} is lost: {error}",
                    reason=sent.body["reason"],
                    about=_described(sent.body),
                    error=error,
                )
            except Exception:
                # The events queued behind this one are still written.
                self._log.failure("Defect: an event cannot be written")

    async def _write(self, sent: _SentEvent) -> None:
        if sent.created:
            # The API deletes events, by default after an hour.
            with suppress(NotFound):
                await self._client.update(EVENTS, sent.body)
                return
        try:
            await self._client.create(EVENTS, sent.body, sent.body["metadata"]["namespace"])
        except AlreadyExists:
            # Created by an attempt whose response was lost.
            await self._client.update(EVENTS, sent.body)
        sent.created = True

    def _body(self, about: Object, type: str, reason: str, message: str) -> Object:
        """Build an event (``k8s.io/api/core/v1``); those of cluster objects are in ``default``."""
        now = self._timestamp()
        return {
            "metadata": {
                "name": self._name(about["name"]),
                "namespace": about.get("namespace") or "default",
            },
            "involvedObject": about,
            "type": type,
            "reason": reason,
            "message": message,
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

    def _name(self, involved: str) -> str:
        """Return a unique name, from the nanoseconds since 1970."""
        self._last_stamp = max(self._last_stamp + 1, int(time_of_day(self._clock) * 1e9))
        end = f".{self._last_stamp:x}"
        # A truncated label must not end with either.
        return involved[: _MAX_NAME - len(end)].rstrip("-.") + end

    def _timestamp(self) -> str:
        return timestamp(time_of_day(self._clock))


def _reference(involved: Any) -> Object | None:
    """Build an ``ObjectReference``; ``None`` if the object does not identify itself."""
    metadata = involved.get("metadata") if isinstance(involved, dict) else None
    if not isinstance(metadata, dict):
        return None
    found = {
        "apiVersion": involved.get("apiVersion"),
        "kind": involved.get("kind"),
        **{key: metadata.get(key) for key in ("namespace", "name", "uid", "resourceVersion")},
    }
    reference = {key: value for key, value in found.items() if isinstance(value, str) and value}
    return reference if {"apiVersion", "kind", "name"} <= reference.keys() else None


def _described(body: Object) -> str:
    about = body["involvedObject"]
    namespace = about.get("namespace")
    name = f"{namespace}/{about['name']}" if namespace else about["name"]
    return f"{about['kind']} {name}"


def _truncated(text: str, limit: int) -> str:
    """Truncate text to ``limit`` bytes of UTF-8, with an ellipsis."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    return data[: limit - 3].decode("utf-8", "ignore") + "..."
