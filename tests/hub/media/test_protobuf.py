"""Kubernetes protobuf, cut into items and built of them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.api.test_protobuf import body, entry, field
from yurttunnel.hub.media.forms import media_for
from yurttunnel.hub.media.interfaces import ListMeta, TypeMeta
from yurttunnel.hub.request.requests import Form

POD = TypeMeta("v1", "Pod")
MAX_ITEM = 100_000


def pod(name, version):
    """Write a pod."""
    labels = field(11, entry("x", "y")) + field(11, entry("z", ""))
    metadata = field(1, name) + field(3, "n") + field(6, version) + labels
    return field(1, metadata) + field(2, field(10, "edge-1")) + field(99, "unknown")


class ListTests(SynchronousTestCase):
    """Lists of objects."""

    meta = field(1, field(1, "") + field(2, "9") + field(3, ""))
    body = body("PodList", meta + field(2, pod("a", "7")) + field(2, pod("b" * 300, "8")))

    def read(self, pieces):
        """Cut the list; return its items and what it says."""
        media = media_for(Form("protobuf"))
        reader = media.list_reader(MAX_ITEM)
        items = [item for piece in pieces for item in reader.feed(piece)]
        return items, reader.finish()

    def test_items(self):
        """An item has what it is found by, and its bytes."""
        items, meta = self.read([self.body])
        self.assertEqual(items[0], ("n", "a", "7", {"x": "y", "z": ""}, "edge-1", pod("a", "7")))
        self.assertEqual(items[1].body, pod("b" * 300, "8"))
        self.assertEqual(meta, ListMeta(POD, "9"))

    def test_every_cut(self):
        """However a list is cut, its items are the same."""
        whole = self.read([self.body])
        for at in range(len(self.body)):
            self.assertEqual(self.read([self.body[:at], self.body[at:]]), whole)

    def test_written(self):
        """A list is built of its items as it was."""
        items, meta = self.read([self.body])
        media = media_for(Form("protobuf"))
        writer = media.list_writer(meta, [len(one.body) for one in items])
        bodies = [one.body for one in items]
        written = writer.head + writer.items(bodies[:1]) + writer.items(bodies[1:]) + writer.tail
        self.assertEqual(written, self.body)
        self.assertEqual(writer.length, len(written))
