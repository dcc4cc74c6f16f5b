"""Pages that are made in slices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.slices import SLICE_SECONDS, Slices, json_pieces


class Turns:
    """A reactor whose turns are counted by hand."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def callLater(self, seconds: float, call: Callable[[], object]) -> Turns:
        """Call in the next turn."""
        self._calls.append(call)
        return self

    def cancel(self) -> None:
        """Call no more."""
        self._calls.clear()

    def turn(self) -> None:
        """Turn once."""
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class SlicesTests(SynchronousTestCase):
    """Pieces that take a millisecond each."""

    def setUp(self) -> None:
        """Begin with nothing to do."""
        self.reactor = Turns()
        self.now = 0.0
        self.slices = Slices(self.reactor, lambda: self.now)
        self.made: list[str] = []

    def pieces(self, name: str, count: int) -> Iterator[str]:
        """Make pieces, and note each."""
        for _ in range(count):
            self.now += 0.001
            self.made.append(name)
            yield name

    def turn(self) -> float:
        """Let the reactor turn once; give for how long it was held up."""
        before = self.now
        self.reactor.turn()
        return self.now - before

    def test_a_page(self) -> None:
        """It is joined from all its pieces, none of which is made at once."""
        page = self.slices.join(["a", "b\xe9", "\udcff"])
        self.assertNoResult(page)
        self.reactor.turn()
        self.assertEqual("ab\xe9?".encode(), self.successResultOf(page))

    def test_turns(self) -> None:
        """No turn of the reactor makes more than a slice of it, and all are needed for it."""
        page = self.slices.join(self.pieces("x", 20))
        held = []
        while not page.called:
            held.append(self.turn())
        self.assertEqual(b"x" * 20, self.successResultOf(page))
        self.assertLessEqual(max(held), SLICE_SECONDS + 0.001)
        self.assertGreaterEqual(len(held), 0.020 / (SLICE_SECONDS + 0.001))

    def test_several_pages(self) -> None:
        """They share the slices, by turns: a long one does not keep a short one waiting."""
        long, short = (self.slices.join(self.pieces(n, c)) for n, c in (("l", 90), ("s", 3)))
        while not short.called:
            self.assertLessEqual(self.turn(), SLICE_SECONDS + 0.001)
        self.assertEqual(b"sss", self.successResultOf(short))
        self.assertNoResult(long)
        self.assertLess(self.made.count("l"), 10)
        long.cancel()
        self.failureResultOf(long, CancelledError)

    def test_a_page_that_nobody_waits_for(self) -> None:
        """Nothing more of it is made."""
        page = self.slices.join(self.pieces("x", 20))
        self.turn()
        made = len(self.made)
        page.cancel()
        self.failureResultOf(page, CancelledError)
        self.reactor.turn()
        self.assertEqual(made, len(self.made))

    def test_a_defect(self) -> None:
        """It is the page's, and others are made."""

        def broken() -> Iterator[str]:
            yield "x"
            raise ArithmeticError

        page, other = self.slices.join(broken()), self.slices.join(["y"])
        self.reactor.turn()
        self.failureResultOf(page, ArithmeticError)
        self.assertEqual(b"y", self.successResultOf(other))


class JsonTests(SynchronousTestCase):
    """JSON piece by piece."""

    def test_values(self) -> None:
        """It is what json makes of it, with iterators as arrays."""
        for value in (
            None,
            [1, "\udcff", {}],
            {},
            {"a": {"b": [1, 2]}, "c": "\u2028"},
        ):
            self.assertEqual(value, json.loads("".join(json_pieces(value))))
        pieces = list(json_pieces({"a": iter([None, 1, None, {"b": None}]), "c": iter([])}))
        self.assertEqual({"a": [1, {"b": None}], "c": []}, json.loads("".join(pieces)))
        self.assertGreater(len(pieces), 4)
