"""JSON, cut into items and built of them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.media.forms import media_for
from yurttunnel.hub.media.interfaces import ListMeta, TypeMeta
from yurttunnel.hub.request.requests import Form

POD = TypeMeta("v1", "Pod")
MAX_ITEM = 100_000


def json_media(transform=""):
    """Return what reads and writes JSON."""
    media = media_for(Form("json", transform, "v1" if transform else ""))
    assert media is not None
    return media


def read_list(media, body, size=0, max_item=MAX_ITEM):
    """Cut a list that comes in pieces of ``size`` bytes; return its items and what it says."""
    reader = media.list_reader(max_item)
    items = []
    for at in range(0, len(body), size or len(body)):
        items.extend(reader.feed(body[at : at + (size or len(body))]))
    return items, reader.finish()


class ListTests(SynchronousTestCase):
    """Lists of objects."""

    body = (
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":['
        b'{"metadata":{"name":"a","namespace":"n","resourceVersion":"7","labels":{"x":"y"}},'
        b'"spec":{"nodeName":"edge-1"}},'
        b'{"metadata":{"name":"b},{\\"metadata\\"","namespace":"n","resourceVersion":"8"}}]}\n'
    )

    def test_items(self):
        """An item has what it is found by, and its bytes."""
        items, meta = read_list(json_media(), self.body)
        one, two = items
        self.assertEqual(one[:5], ("n", "a", "7", {"x": "y"}, "edge-1"))
        self.assertEqual(two.name, 'b},{"metadata"')
        self.assertIn(b'"items":[' + one.body + b",", self.body)
        self.assertEqual(meta, ListMeta(POD, "9"))

    def test_every_cut(self):
        """However a list is cut, its items are the same."""
        whole = read_list(json_media(), self.body)
        for size in range(1, len(self.body)):
            self.assertEqual(read_list(json_media(), self.body, size), whole)

    def test_written(self):
        """A list is built of its items as it was."""
        media = json_media()
        items, meta = read_list(media, self.body)
        writer = media.list_writer(meta, [len(one.body) for one in items])
        bodies = [one.body for one in items]
        written = writer.head + writer.items(bodies[:1]) + writer.items(bodies[1:]) + writer.tail
        self.assertEqual(written, self.body)
        self.assertEqual(writer.length, len(written))
