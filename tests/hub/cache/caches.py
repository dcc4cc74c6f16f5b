"""Caches for tests: real files, with threads or without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock

from yurttunnel.hub.cache.interfaces import Collection, Scope
from yurttunnel.hub.cache.store import Cache
from yurttunnel.hub.media.interfaces import Item, ListMeta, TypeMeta

POD = TypeMeta("v1", "Pod")
PODS = Collection("kubelet", "pods.v1.core", "json")
NODES = Collection("kubelet", "nodes.v1.core", "json")
ALL = Scope(PODS)


class HeldJobs:
    """Runs jobs synchronously in the thread of the test; see ``tests.ops.contract_jobs``.

    While it ``holds`` they wait, as for a disk that hangs.
    """

    def __init__(self):
        self.holds = False
        self._waiting = []

    def run(self, job):
        """Run a job, or hold it."""
        if not self.holds:
            return maybeDeferred(job)
        self._waiting.append((job, Deferred()))
        return self._waiting[-1][1]

    def end(self):
        """Do nothing: there is no thread."""

    def release(self):
        """Run the held jobs."""
        self.holds = False
        waiting, self._waiting = self._waiting, []
        for job, ended in waiting:
            maybeDeferred(job).chainDeferred(ended)


def make_cache(directory: Path, clock=None, **options) -> Cache:
    """Return a synchronous cache, except that changes are collected for a moment.

    Its ``writer`` and ``reader`` can be held. Clients with tokens are guests.
    """
    jobs = {f"cache {name}": options.pop(name, HeldJobs()) for name in ("writer", "reader")}
    options.setdefault("is_guest", lambda client: " " in client)
    return Cache(clock or Clock(), directory / "cache.db", jobs.__getitem__, **options)


def item(name: str, version: str | int = 1, namespace="default", body=b"", labels=None, node=""):
    """Return an object."""
    body = body or f"{namespace}/{name}@{version}".encode()
    return Item(namespace, name, str(version), labels or {}, node, body)


def report_list(
    cache: Cache,
    items: Sequence[Item],
    version: str | int = 1,
    scope: Scope = ALL,
    token: str = "",
    next_token: str = "",
    columns: bytes = b"",
) -> None:
    """Add a list, or a page of one."""
    listing = cache.begin_list(scope, token)
    half = len(items) // 2
    listing.add(items[:half])
    listing.add(items[half:])
    listing.complete(ListMeta(POD, str(version), next_token, None, columns))


async def read_all(cache: Cache, scope: Scope = ALL):
    """Return the metadata, the completeness and the items of a scope, or ``None``."""
    listed = await cache.list(scope)
    if listed is None:
        return None
    items: list[Item] = []
    try:
        while some := await listed.read():
            items += some
    finally:
        listed.close()
    assert list(listed.sizes) == [len(each.body) for each in items]
    return listed.meta, listed.complete, items
