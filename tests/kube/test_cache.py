"""The order of notifications."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube.cache import Cache


class OrderTests(SynchronousTestCase):
    """Two handlers, of which the first makes changes itself."""

    def test_change_made_by_a_handler(self) -> None:
        """All handlers are notified of one change, and see no later state, before the next."""
        cache = Cache("pods")
        seen: list[tuple[object, object, object]] = []

        def move(old: object, new: object) -> None:
            if new == "n1":
                cache.put(("", "a"), "n2")

        cache.add_handler(move)
        cache.add_handler(lambda old, new: seen.append((old, new, cache.get(("", "a")))))
        cache.put(("", "a"), "n1")
        self.assertEqual([(None, "n1", "n1"), ("n1", "n2", "n2")], seen)
