"""The dictionary with a maximum size."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.bounded_dict import BoundedDict


class BoundedDictTests(SynchronousTestCase):
    """A dictionary of two entries."""

    def test_eviction(self) -> None:
        """The entry that was set least recently is evicted, whatever was looked up."""
        entries = BoundedDict[str, int](2)
        for number, key in enumerate("abac"):
            entries[key] = number
            self.assertEqual(0, entries.get("a", 0) % 2)
        self.assertEqual([("a", 2), ("c", 3)], list(entries.items()))
