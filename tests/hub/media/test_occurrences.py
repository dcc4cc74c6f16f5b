"""The occurrences of Events in both media."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.media.interfaces import TypeMeta
from yurttunnel.hub.media.occurrences import occurrences, update_patch
from yurttunnel.hub.media.protobuf_objects import envelope
from yurttunnel.kube.protobuf_fields import BadBody, encode_bytes, encode_varint

SECONDS = 1_750_000_000
TIME = "2025-06-15T15:06:40Z"


def number_form(number, value):
    """Encode a field with a number."""
    return encode_varint(number << 3) + encode_varint(value)


def time_form(number, *more):
    """Encode a field with a time."""
    return encode_bytes(number, number_form(1, SECONDS) + b"".join(more))


SERIES = number_form(1, 4) + time_form(2, number_form(2, 123_456_000))
READ_SERIES = {"count": 4, "lastObservedTime": "2025-06-15T15:06:40.123456Z"}


class ReadingTests(SynchronousTestCase):
    """Parsing of Events."""

    def test_core(self):
        """Events of the core group have a count and a time, and may have a series."""
        message = b"".join(
            (
                encode_bytes(1, encode_bytes(1, b"web.1")),
                encode_bytes(3, b"BackOff"),
                encode_bytes(4, b"it restarts"),
                time_form(6),
                time_form(7),
                number_form(8, 3),
                encode_bytes(11, SERIES),
            )
        )
        self.assertEqual(
            {"message": "it restarts", "lastTimestamp": TIME, "count": 3, "series": READ_SERIES},
            occurrences("protobuf", envelope(TypeMeta("v1", "Event"), message)),
        )

    def test_their_own_group(self):
        """Events of events.k8s.io have only a series, whose fields have other numbers."""
        message = encode_bytes(3, SERIES) + encode_bytes(4, b"kubelet") + number_form(15, 9)
        found = occurrences("protobuf", envelope(TypeMeta("events.k8s.io/v1", "Event"), message))
        self.assertEqual({"series": READ_SERIES}, found)

    def test_unknown(self):
        """Events of another version have no known fields."""
        message = encode_bytes(3, SERIES) + encode_bytes(4, b"m") + encode_bytes(11, SERIES)
        self.assertEqual({}, occurrences("protobuf", envelope(TypeMeta("v2", "Event"), message)))

    def test_json(self):
        """In JSON the fields are returned unchanged."""
        event = {"count": 3, "series": READ_SERIES}
        self.assertEqual(event, occurrences("json", json.dumps(event).encode()))
        self.assertEqual({}, occurrences("json", b"[]"))
        self.assertRaises(BadBody, occurrences, "json", b"[" * 100_000)


class ComparingTests(SynchronousTestCase):
    """The difference between two Events."""

    def test_more(self):
        """The result has the higher count with its message, and the later time."""
        for kept, there, patch in (
            ({"count": 3, "message": "m"}, {"count": 1}, {"count": 3, "message": "m"}),
            ({"count": 3, "message": ""}, {}, {"count": 3}),
            ({"count": 3, "lastTimestamp": TIME}, {"count": 9}, {"lastTimestamp": TIME}),
            (
                {"lastTimestamp": "2025-06-15T17:06:40+02:00"},
                {"lastTimestamp": "2025-06-15T16:00:00Z"},
                {},
            ),
            ({"series": READ_SERIES}, {"series": None}, {"series": READ_SERIES}),
            (
                {"series": READ_SERIES},
                {"series": {**READ_SERIES, "count": 2}},
                {"series": {"count": 4}},
            ),
            ({"series": READ_SERIES}, {"series": READ_SERIES}, {}),
        ):
            self.assertEqual(patch, update_patch(kept, there), kept)

    def test_invalid(self):
        """Values of other types are lower than any."""
        for value in (None, "x", [], {}, "9"):
            kept = {"count": value, "lastTimestamp": value, "series": value}
            self.assertEqual({}, update_patch(kept, {"count": 0}), value)
            there = {"count": 1, "lastTimestamp": TIME}
            self.assertEqual(there, update_patch(there, kept), value)
