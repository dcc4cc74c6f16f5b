"""Pages that are rendered in slices."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from functools import partial

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.slices import SLICE_SECONDS, WORK_SECONDS, Slices, in_slices, json_pieces


class SteppedReactor:
    """A reactor whose turns are driven by the test."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def callLater(
        self, seconds: float, call: Callable[..., object], *arguments: object
    ) -> SteppedReactor:
        """Schedule ``call`` for the next turn."""
        self._calls.append(partial(call, *arguments))
        return self

    def cancel(self) -> None:
        """Cancel all calls."""
        self._calls.clear()

    def turn(self) -> None:
        """Run one turn."""
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class SlicesTests(SynchronousTestCase):
    """Rendering with pieces that take a millisecond each."""

    def setUp(self) -> None:
        """Make slices without work."""
        self.reactor = SteppedReactor()
        self.now = 0.0
        self.slices = Slices(self.reactor, lambda: self.now)
        self.made: list[str] = []

    def pieces(self, name: str, count: int) -> Iterator[str]:
        """Yield pieces, and record each."""
        for _ in range(count):
            self.now += 0.001
            self.made.append(name)
            yield name

    def turn(self) -> float:
        """Run one turn of the reactor; return how long it took."""
        before = self.now
        self.reactor.turn()
        return self.now - before

    def test_a_page(self) -> None:
        """A page is joined from its pieces, of which none is rendered in the caller's turn."""
        page = self.slices.join(["a", "b\xe9", "\udcff"])
        self.assertNoResult(page)
        self.reactor.turn()
        self.assertEqual("ab\xe9?".encode(), self.successResultOf(page))

    def test_turns(self) -> None:
        """Each turn renders at most one slice, so that a page needs several turns."""
        page = self.slices.join(self.pieces("x", 20))
        durations = []
        while not page.called:
            durations.append(self.turn())
        self.assertEqual(b"x" * 20, self.successResultOf(page))
        self.assertLessEqual(max(durations), SLICE_SECONDS + 0.001)
        self.assertGreaterEqual(len(durations), 0.020 / (SLICE_SECONDS + 0.001))

    def test_several_pages(self) -> None:
        """Several pages share the slices, so that a long one does not delay a short one."""
        long, short = (self.slices.join(self.pieces(n, c)) for n, c in (("l", 90), ("s", 3)))
        while not short.called:
            self.assertLessEqual(self.turn(), SLICE_SECONDS + 0.001)
        self.assertEqual(b"sss", self.successResultOf(short))
        self.assertNoResult(long)
        self.assertLess(self.made.count("l"), 10)
        long.cancel()
        self.failureResultOf(long, CancelledError)

    def test_a_cancelled_page(self) -> None:
        """A cancelled page is rendered no further."""
        page = self.slices.join(self.pieces("x", 20))
        self.turn()
        made = len(self.made)
        page.cancel()
        self.failureResultOf(page, CancelledError)
        self.reactor.turn()
        self.assertEqual(made, len(self.made))

    def test_a_defect(self) -> None:
        """An exception fails its own page and no other."""

        def broken() -> Iterator[str]:
            yield "x"
            raise ArithmeticError

        page, other = self.slices.join(broken()), self.slices.join(["y"])
        self.reactor.turn()
        self.failureResultOf(page, ArithmeticError)
        self.assertEqual(b"y", self.successResultOf(other))


class JsonTests(SynchronousTestCase):
    """JSON in pieces."""

    def test_values(self) -> None:
        """The output is what json writes, with iterators as arrays."""
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


class WorkTests(SynchronousTestCase):
    """Work whose pieces take half a slice each."""

    def work(self, pieces: int) -> Deferred[str]:
        """Start the work."""
        self.reactor = SteppedReactor()
        now = 0.0

        def works() -> Generator[None, None, str]:
            nonlocal now
            for _ in range(pieces):
                now += WORK_SECONDS / 2
                yield
            return "done"

        return Deferred.fromCoroutine(in_slices(self.reactor, works(), lambda: now))

    def test_turns(self) -> None:
        """Each turn has one slice, and the end of long work leaves the turn to others."""
        work = self.work(5)
        for _ in range(3):
            self.assertNoResult(work)
            self.reactor.turn()
        self.assertEqual("done", self.successResultOf(work))

    def test_short_work(self) -> None:
        """It is done at once."""
        self.assertEqual("done", self.successResultOf(self.work(0)))

    def test_cancelled(self) -> None:
        """Cancelling stops it."""
        work = self.work(5)
        work.cancel()
        self.failureResultOf(work, CancelledError)
