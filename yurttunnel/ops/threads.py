"""Threads for what would hold up the reactor: waiting for a disk, or for the kernel.

Unlike those of the reactor's pool, which are waited for when the process ends, they end with the
process at the latest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class Jobs(Protocol):
    """Runs jobs one after the other."""

    def run(self, job: Callable[[], _Result], /) -> Deferred[_Result]:
        """Run ``job`` behind those before it; return what it returns or raises."""
        ...

    def end(self) -> None:
        """Take no more jobs; those that were given are run."""
        ...


class JobThread:
    """Runs jobs one after the other in one thread, which begins with the first of them.

    Raises ``RuntimeError`` when there can be no more threads.
    """

    def __init__(self, reactor: IReactorFromThreads, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, job: Callable[[], _Result]) -> Deferred[_Result]:
        """See :class:`Jobs`."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        ended: Deferred[_Result] = Deferred()
        self._jobs.put((job, ended))
        return ended

    def end(self) -> None:
        """See :class:`Jobs`; the next job has a new thread."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, ended = given
            self._reactor.callFromThread(ended.callback, _result_of(job))
            # What the job has and gives is not held until the next one comes.
            del given, job, ended


def in_own_thread(
    reactor: IReactorFromThreads,
    name: str,
    function: Callable[[_Argument], _Result],
    argument: _Argument,
) -> Deferred[_Result]:
    """Call ``function`` in a thread of its own; return what it returns or raises.

    ``name`` is the thread's. Raises ``RuntimeError`` when there can be no more threads.
    """
    thread = JobThread(reactor, name)
    ended = thread.run(lambda: function(argument))
    thread.end()
    return ended


def _result_of(job: Callable[[], _Result]) -> _Result | Failure:
    try:
        return job()
    except BaseException:  # whatever it is, it belongs to the one who asks
        return Failure()
