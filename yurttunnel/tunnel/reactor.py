"""The reactor interface that this project requires; Twisted's POSIX reactors provide it."""

from __future__ import annotations

from typing import cast

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorFDSet,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
    IReactorUNIX,
)


class IReactor(
    IReactorCore,
    IReactorFDSet,
    IReactorPluggableNameResolver,
    IReactorProcess,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
    IReactorUNIX,
):
    """A reactor with sockets, timers, processes, threads and name resolution."""


def installed_reactor() -> IReactor:
    """Return the reactor of this process; the first import installs it."""
    from twisted.internet import reactor

    return cast(IReactor, reactor)
