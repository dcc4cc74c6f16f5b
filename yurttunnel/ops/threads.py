"""Threads for work that would block the reactor, such as waiting for a disk or the kernel.

The process does not wait for these threads when it exits, unlike for the reactor's thread pool.
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
    """Runs jobs one after another."""

    def run(self, job: Callable[[], _Result], /) -> Deferred[_Result]:
        """Run ``job`` after those before it; return its result, or raise its exception."""
        ...

    def end(self) -> None:
        """Accept no more jobs; those accepted are run."""
        ...


class JobThread:
    """Runs jobs one after another in one thread, which is started for the first job.

    Raises ``RuntimeError`` if the system allows no more threads.
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
        """See :class:`Jobs`; a later job starts a new thread."""
        if self._thread is not None:
            self._thread = None
            self._jobs.put(None)

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, ended = given
            self._reactor.callFromThread(ended.callback, _result_of(job))
            # Drop the references to a job and its result before waiting for the next one.
            del given, job, ended


def run_in_new_thread(
    reactor: IReactorFromThreads,
    name: str,
    function: Callable[[_Argument], _Result],
    argument: _Argument,
) -> Deferred[_Result]:
    """Call ``function`` in a new thread; return its result, or raise its exception.

    ``name`` is the thread's. Raises ``RuntimeError`` if the system allows no more threads.
    """
    thread = JobThread(reactor, name)
    ended = thread.run(lambda: function(argument))
    thread.end()
    return ended


def _result_of(job: Callable[[], _Result]) -> _Result | Failure:
    try:
        return job()
    except BaseException:  # passed on to the caller
        return Failure()
