"""The cache in normal use: with a reactor and its threads, on a real disk."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from tests.hub.cache.contract import CacheContract
from yurttunnel.hub.cache.store import Cache
from yurttunnel.ops.threads import JobThread


class ClockOf:
    """The time of a reactor, whose time of day is 1,000 seconds."""

    def __init__(self, reactor) -> None:
        self.callLater = reactor.callLater
        self.seconds = reactor.seconds

    def time_of_day(self) -> float:
        """Return the time of day."""
        return 1000.0


class CacheTests(CacheContract, TestCase):
    """It follows the contract of all caches."""

    def make_cache(self) -> Cache:
        """Create a cache that is stopped at the end of the test, and whose threads end then."""
        before = set(threading.enumerate())
        path = Path(self.mktemp()) / "cache.db"
        cache = Cache(
            ClockOf(reactor), path, partial(JobThread, reactor), is_guest=lambda client: False
        )
        cache.startService()
        self.addCleanup(self.stop, cache, before)
        return cache

    async def stop(self, cache: Cache, before: set[threading.Thread]) -> None:
        """Stop it."""
        await cache.stopService()
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
            self.assertFalse(thread.is_alive())
