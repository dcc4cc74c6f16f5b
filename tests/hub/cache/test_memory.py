"""The cache in memory, which replaces the real one in tests."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.hub.cache.contract import CacheContract
from tests.hub.cache.memory import MemoryCache


class MemoryCacheTests(CacheContract, TestCase):
    """It follows the contract of all caches."""

    def make_cache(self):
        """Create one."""
        clock = Clock()
        clock.advance(1000)
        return MemoryCache(clock)
