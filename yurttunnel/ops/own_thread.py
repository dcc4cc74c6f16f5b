"""Calls that may never end, in threads that hold up nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.python.failure import Failure

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def in_own_thread(
    reactor: IReactorFromThreads,
    name: str,
    function: Callable[[_Argument], _Result],
    argument: _Argument,
) -> Deferred[_Result]:
    """Call ``function`` in a thread of its own; give what it returns or raises.

    Unlike those of the reactor's pool, which are waited for when the process ends, the thread
    ends with the process at the latest. ``name`` is the thread's. Raises ``RuntimeError`` when
    there can be no more threads.
    """
    ended: Deferred[_Result] = Deferred()

    def work() -> None:
        result: _Result | Failure
        try:
            result = function(argument)
        except BaseException:  # whatever it is, it belongs to the one who asks
            result = Failure()
        reactor.callFromThread(ended.callback, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return ended
