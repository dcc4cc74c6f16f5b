"""The count and the last time of an Event, in JSON and in protobuf.

A recorder changes nothing else of an existing Event (``recordToSink`` of k8s.io/client-go
tools/record and tools/events). For Events of ``events.k8s.io`` this is the series; nothing else of
them may be changed (``ValidateEventUpdate`` of k8s.io/kubernetes pkg/apis/core/validation). The
field numbers are those of generated.proto of k8s.io/api, core/v1 and events/v1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from yurttunnel.cluster.fields import mapping
from yurttunnel.hub.media.json_text import checked
from yurttunnel.hub.media.protobuf_objects import open_envelope, time_text
from yurttunnel.kube.durations import seconds_of
from yurttunnel.kube.protobuf_fields import VARINT, fields, tag, text, varint
from yurttunnel.ops.clocks import micro_time, timestamp

_MESSAGE, _LAST_TIMESTAMP, _COUNT = tag(4), tag(7), 8 << 3 | VARINT
_SERIES: Final = {"v1": tag(11), "events.k8s.io/v1": tag(3)}
_SERIES_COUNT, _SERIES_LAST = 1 << 3 | VARINT, tag(2)


def occurrences(form: str, body: bytes) -> Mapping[str, Any]:
    """Return the fields with the occurrences of an Event, by their names in JSON.

    For JSON the result may have other fields, too. ``form`` is ``json`` or ``protobuf``. Raises
    :class:`BadBody`.
    """
    if form == "json":
        return mapping(checked(msgspec.json.decode, body))
    type, message = open_envelope(body)
    found: dict[str, Any] = {}
    for field, begin, end in fields(message, 0, len(message)):
        if field == _SERIES.get(type.api_version):
            found["series"] = _series(message[begin:end])
        elif type.api_version != "v1":
            continue
        elif field == _MESSAGE:
            found["message"] = text(message, begin, end)
        elif field == _LAST_TIMESTAMP:
            found["lastTimestamp"] = time_text(message[begin:end], timestamp)
        elif field == _COUNT:
            found["count"] = varint(message, begin)[0]
    return found


def update_patch(stored: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that updates ``current`` with the newer occurrences in ``stored``; it
    never decreases the count or the time.
    """
    found = _more(stored, current, "lastTimestamp")
    if "count" in found and stored.get("message"):
        found["message"] = stored["message"]
    series = _more(
        mapping(stored.get("series")), mapping(current.get("series")), last="lastObservedTime"
    )
    return {**found, "series": series} if series else found


def _more(stored: Mapping[str, Any], current: Mapping[str, Any], last: str) -> dict[str, Any]:
    ranks = (("count", _number), (last, _moment))
    return {
        name: stored[name]
        for name, rank in ranks
        if rank(stored.get(name)) > rank(current.get(name))
    }


def _number(value: object) -> float:
    return value if isinstance(value, int) else 0


def _moment(value: object) -> float:
    seconds = seconds_of(value)
    return -math.inf if seconds is None else seconds


def _series(message: bytes) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for field, begin, end in fields(message, 0, len(message)):
        if field == _SERIES_COUNT:
            found["count"] = varint(message, begin)[0]
        elif field == _SERIES_LAST:
            found["lastObservedTime"] = time_text(message[begin:end], micro_time)
    return found
