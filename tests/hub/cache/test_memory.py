"""The cache in memory, which stands in for the real one in tests."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.hub.cache.contract import CacheContract
from tests.hub.cache.memory import MemoryCache


class MemoryCacheTests(CacheContract, TestCase):
    """It does what every cache does."""

    def make_cache(self):
        """Make one."""
        clock = Clock()
        clock.advance(1000)
        return MemoryCache(clock)
