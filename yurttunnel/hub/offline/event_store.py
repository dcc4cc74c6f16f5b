"""Events created during an outage, which are stored so that users can see them afterwards.

The recorders of clients drop an Event that is rejected, with one exception: an Event that cannot be
patched because it does not exist is created (``recordToSink`` and ``recordEvent`` of
k8s.io/client-go tools/record and tools/events). So repeated Events are stored, too.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from typing import Any

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.errors import RequestFailed
from yurttunnel.hub.cache import events as queue
from yurttunnel.hub.cache.interfaces import ICache
from yurttunnel.hub.interfaces import IConnectivity
from yurttunnel.hub.media.codecs import codec_for
from yurttunnel.hub.offline.failures import OfflineFailures
from yurttunnel.hub.offline.owners import NODE
from yurttunnel.hub.offline.placeholder import PlaceholderTokens
from yurttunnel.hub.request.accept import encoding_of
from yurttunnel.hub.request.dry_run import is_dry_run
from yurttunnel.hub.request.requests import ApiRequest, Form, HubCall
from yurttunnel.kube.protobuf_fields import BadBody
from yurttunnel.ops.clocks import time_of_day, timestamp

_GROUPS = frozenset({"", "events.k8s.io"})
_SUFFIX_BYTES = 4
_NAMESPACE = re.compile("[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label (``IsDNS1123Label`` of k8s.io/apimachinery pkg/util/validation)."""


class EventStore:
    """Stores Events that are created; ``stored`` counts them.

    In each outage a service account has a limited share. Its unsent Events of earlier outages make
    room. ``placeholders`` are ``None`` if none are issued.
    """

    def __init__(
        self,
        clock: IReactorTime,
        cache: ICache,
        connectivity: IConnectivity,
        failures: OfflineFailures,
        placeholders: PlaceholderTokens | None,
    ) -> None:
        self._clock = clock
        self._cache = cache
        self._failures = failures
        self._placeholders = placeholders
        self._used: Counter[str] = Counter()
        connectivity.on_change(lambda _: self._used.clear())
        self.stored = 0

    def store(self, call: HubCall, body: bytes, owner: str) -> None:
        """Store an Event of ``owner``, and respond as if it had been created.

        The response is the Event as received, with a name and a time. Raises ``RequestFailed``,
        also for an Event that could not be sent later.
        """
        if is_dry_run(call.exchange.head):
            raise self._failures.not_written(call.request)
        if not _NAMESPACE.fullmatch(call.request.namespace):
            raise RequestFailed(400, "the path of an Event has no namespace that is a DNS label")
        kind = encoding_of(b"".join(call.exchange.head.values(b"content-type")[:1]) or _JSON)
        codec = codec_for(Form(kind))
        if codec is None:
            raise RequestFailed(415, "an Event has to be JSON or Kubernetes protobuf")
        try:
            if kind == "json":
                body = self._named(body)
            if not codec.read_object(body)[1].name:
                raise BadBody("it has no name")
        except BadBody as error:
            raise RequestFailed(400, f"the body is not an Event: {error}") from None
        # The size as stored: re-encoded JSON is longer if it has non-ASCII characters.
        size = max(len(body) + len(call.caller.token), queue.MIN_EVENT_SIZE)
        problem = self._problem(call, owner, size)
        if problem is not None:
            raise self._failures.unavailable(f"an Event cannot be stored until then: {problem}")
        # Without the client's parameters, which do not matter here and may be as long as a head.
        content_type = codec.content_type
        self._cache.store_event(
            call.request.path, content_type.decode("latin-1"), body, call.caller.token, owner
        )
        self._used[owner] += size
        self.stored += 1
        call.exchange.respond(201, [(b"Content-Type", content_type)], body)

    def _problem(self, call: HubCall, owner: str, size: int) -> str | None:
        """Return why an Event of ``size`` bytes cannot be stored."""
        token = call.caller.token
        if self._placeholders is not None and self._placeholders.owner(token) is not None:
            return "its token is a placeholder of this hub, which the API does not know"
        if owner != NODE and self._used[owner] + size > queue.OWNER_SHARE:
            return f"the Events of {owner} use the whole share of one account"
        return self._cache.event_problem(token)

    def _named(self, body: bytes) -> bytes:
        """Return an Event with a name, so that sending it twice does not create two."""
        try:
            event: Any = json.loads(body)
        except (ValueError, RecursionError):
            raise BadBody("it is not JSON") from None
        metadata = event.get("metadata") if isinstance(event, dict) else None
        if not isinstance(metadata, dict):
            raise BadBody("it has no metadata")
        if metadata.get("name") and metadata.get("creationTimestamp"):
            return body
        if not metadata.get("name"):
            # simpleNameGenerator of k8s.io/apiserver pkg/storage/names also appends a suffix.
            suffix = secrets.token_hex(_SUFFIX_BYTES)
            metadata["name"] = f"{metadata.get('generateName') or 'event-'}{suffix}"
        metadata["creationTimestamp"] = timestamp(time_of_day(self._clock))
        return json.dumps(event).encode()


_JSON = b"application/json"


def is_event(request: ApiRequest) -> bool:
    """Return whether a request is for an Event, in either API group."""
    resource = request.resource
    return (
        resource is not None
        and resource.name == "events"
        and resource.group in _GROUPS
        and not request.subresource
    )
