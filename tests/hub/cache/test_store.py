"""The cache: writes and reads of objects."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hub.cache.caches import ALL, POD, PODS, item, make_cache, read_all, report_list
from yurttunnel.hub.cache.interfaces import ICache, Scope, Stored
from yurttunnel.hub.cache.queue import CHANGES_SECONDS


class CacheTestCase(SynchronousTestCase):
    """A cache in a directory of its own, without threads."""

    def setUp(self) -> None:
        """Create it."""
        self.directory = Path(self.mktemp())
        self.clock = Clock()
        self.start()
        self.addCleanup(self.stop)

    def start(self, **options) -> None:
        """Start one."""
        self.cache = make_cache(self.directory, self.clock, **options)
        self.cache.startService()

    def stop(self) -> None:
        """Stop it; no timer may be left."""
        if self.cache.running:
            self.result(self.cache.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def result(self, deferred: Deferred):
        """Return the result after the next reactor iteration."""
        self.clock.advance(0)
        return self.successResultOf(deferred)

    def restart(self, **options) -> None:
        """Start another cache with the same file."""
        self.stop()
        self.start(**options)

    def read(self, scope: Scope = ALL):
        """Return all items of a scope."""
        return self.result(Deferred.fromCoroutine(read_all(self.cache, scope)))

    def names(self, scope: Scope = ALL) -> dict[str, str]:
        """Return the names and versions of a scope's objects."""
        return {each.name: each.version for each in self.read(scope)[2]}

    def get(self, name: str, namespace: str = "default") -> Stored | None:
        """Return an object."""
        return self.result(self.cache.get(PODS, namespace, name))


class ObjectTests(CacheTestCase):
    """Single objects from watches and gets."""

    def test_interface(self) -> None:
        """It provides ICache."""
        verifyObject(ICache, self.cache)

    def test_versions(self) -> None:
        """The newest version is stored, regardless of order: versions are compared as numbers."""
        for version in ("9", "10", "8"):
            self.cache.upsert(PODS, POD, item("a", version))
        self.assertEqual("10", self.get("a").item.version)
        self.cache.upsert(PODS, POD, item("a", 9))
        self.assertEqual("10", self.get("a").item.version)

    def test_list(self) -> None:
        """A list is read as it was written, in the order of an API server."""
        items = [item(name, namespace=each) for each in "ab" for name in ("x", "y")]
        report_list(self.cache, items[::-1], 7)
        meta, complete, read = self.read()
        self.assertEqual((POD, "7", True, items), (meta.type, meta.version, complete, read))

    def test_deferred(self) -> None:
        """A deferred change is written although nothing else happens."""
        self.clock.advance(1)
        self.cache.defer(PODS.client, lambda: self.cache.upsert(PODS, POD, item("a")), 100)
        self.clock.advance(CHANGES_SECONDS)
        self.assertEqual(1, self.cache.stats.written)

    def test_restart(self) -> None:
        """Everything survives a restart."""
        report_list(self.cache, [item("a"), item("b")], 5)
        self.restart()
        self.assertEqual({"a": "1", "b": "1"}, self.names())
