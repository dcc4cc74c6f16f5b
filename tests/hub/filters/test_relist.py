"""What tells a client to list again."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.filters.relist import relist_frame
from yurttunnel.hub.media.forms import media_for
from yurttunnel.hub.request.requests import Form


class RelistTests(SynchronousTestCase):
    """The last frame of a watch."""

    def event(self, *form):
        """Return what a client reads."""
        media = media_for(Form(*form))
        [event] = media.watch_reader(10_000).feed(relist_frame(media))
        self.assertEqual("ERROR", event.type)
        return event

    def test_json(self):
        """It is a Status that says what has expired, also where Tables are asked for."""
        for form in (("json",), ("json", "PartialObjectMetadata", "v1"), ("json", "Table", "v1")):
            status = json.loads(self.event(*form).status)
            self.assertEqual(("Status", "Failure"), (status["kind"], status["status"]))
            self.assertEqual((410, "Expired"), (status["code"], status["reason"]))

    def test_protobuf(self):
        """In protobuf it is the same, by the numbers of the fields."""
        event = self.event("protobuf")
        self.assertEqual(("v1", "Status"), event.meta)
        self.assertIn(b"\x12\x07Failure", event.status)
        self.assertIn(b"\x22\x07Expired", event.status)
        self.assertTrue(event.status.endswith(b"\x30\x9a\x03"), event.status)
