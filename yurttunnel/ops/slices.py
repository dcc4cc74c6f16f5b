"""Long work is done in slices, so that the reactor can run between its pieces.

Data may change meanwhile, so a generator of pieces must iterate over copies of collections.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, TaskStopped, deferLater
from twisted.python.failure import Failure

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_SECONDS = 0.004
"""The time for all pages together in one turn of the reactor. One more piece may be made, which
should not take longer than this."""


WORK_SECONDS = 0.002
"""The time for other work in one turn of the reactor; what is done before or after it in the same
turn may take as long."""

ITEMS_PER_PIECE = 20
"""The number of items to process between two pauses."""


class Slices:
    """Makes pages, several of them in turns; ``elapsed()`` is a clock in seconds."""

    def __init__(
        self, clock: IReactorTime, elapsed: Callable[[], float] = time.perf_counter
    ) -> None:
        self._elapsed = elapsed
        self._cooperator = Cooperator(
            terminationPredicateFactory=self._begin_slice,
            scheduler=lambda call: clock.callLater(0, call),
        )

    def join(self, pieces: Iterable[str]) -> Deferred[bytes]:
        """Return all ``pieces`` as UTF-8, from a later turn on; cancelling stops the work."""
        made: list[bytes] = []
        task = self._cooperator.cooperate(_encoded(pieces, made))
        joined: Deferred[bytes] = Deferred(lambda _: task.stop())

        def failed(failure: Failure) -> None:
            # A caller that cancels is notified by its Deferred.
            if not failure.check(TaskStopped):
                joined.errback(failure)

        _ = task.whenDone().addCallbacks(lambda _: joined.callback(b"".join(made)), failed)
        return joined

    def _begin_slice(self) -> Callable[[], bool]:
        end = self._elapsed() + SLICE_SECONDS
        return lambda: self._elapsed() >= end


async def in_slices(
    clock: IReactorTime,
    work: Generator[object, None, Result],
    elapsed: Callable[[], float] = time.thread_time,
) -> Result:
    """Return the result of ``work``; let the reactor run after each :data:`WORK_SECONDS`.

    Short work is done at once. ``elapsed()`` is a clock in seconds, by default the time for which
    this thread has had a processor.
    """
    while True:
        begun = elapsed()
        try:
            next(work)
            while elapsed() - begun < WORK_SECONDS:
                next(work)
        except StopIteration as ended:
            if elapsed() - begun >= WORK_SECONDS / 2:
                # More work may follow.
                await deferLater(clock, 0)
            result: Result = ended.value
            return result
        await deferLater(clock, 0)


def at_once(work: Generator[object, None, Result]) -> Result:
    """Return the result of ``work``, without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: Result = ended.value
            return result


def visit(items: Iterable[Item], look: Callable[[Item], object]) -> Generator[str, None, None]:
    """Call ``look`` with each of ``items``; pause by yielding empty pieces."""
    for number, item in enumerate(items):
        look(item)
        if number % ITEMS_PER_PIECE == 0:
            yield ""


def gather(
    items: Iterable[Item], wanted: Callable[[Item], bool] = lambda item: True
) -> Generator[str, None, list[Item]]:
    """Return the ``items`` that are ``wanted``; pause as :func:`visit` does."""
    gathered: list[Item] = []
    yield from visit(items, lambda item: gathered.append(item) if wanted(item) else None)
    return gathered


def json_pieces(value: object) -> Iterator[str]:
    """Encode ``value`` as JSON; iterators in mappings are written as arrays, item by item.

    ``None`` from an iterator is a pause, not an item.
    """
    if isinstance(value, Iterator):
        separator = ""
        yield "["
        for item in value:
            if item is None:
                yield ""
                continue
            yield separator + json.dumps(item)
            separator = ", "
        yield "]"
    elif isinstance(value, Mapping):
        separator = ""
        yield "{"
        for name, each in value.items():
            yield f"{separator}{json.dumps(name)}: "
            yield from json_pieces(each)
            separator = ", "
        yield "}"
    else:
        yield json.dumps(value)


def _encoded(pieces: Iterable[str], made: list[bytes]) -> Iterator[None]:
    for piece in pieces:
        # Names need not be valid Unicode.
        made.append(piece.encode("utf-8", "replace"))
        yield None
