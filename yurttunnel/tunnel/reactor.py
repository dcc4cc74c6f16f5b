"""What this project needs of a reactor: those of Twisted for POSIX have it."""

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
    """A reactor that reads, writes and listens, runs programs and threads, and keeps time."""


def installed_reactor() -> IReactor:
    """Return the reactor of this process, which the first import of it has installed."""
    from twisted.internet import reactor

    return cast(IReactor, reactor)
