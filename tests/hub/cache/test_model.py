"""Any interleaving of lists, pages, watch events, restarts and reads matches a model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.cache.caches import POD, PODS, HeldJobs, item, make_cache, read_all
from tests.hub.cache.memory import MemoryCache, is_within
from yurttunnel.hub.cache.interfaces import Scope
from yurttunnel.hub.cache.selectors import changing_part, selector
from yurttunnel.hub.media.interfaces import ListMeta

KEYS = [("m", "a"), ("n", "a"), ("n", "b")]
SCOPES = [
    Scope(PODS),
    Scope(PODS, "m"),
    Scope(PODS, "", "app=x"),
    Scope(PODS, "n", "app=x"),
    Scope(PODS, "", "", "metadata.name=b"),
]
NAMES = [("n", "", f"metadata.name={name}") for name in ("a", "b")]


class Cluster:
    """An API server with the history of all versions."""

    def __init__(self) -> None:
        self.states: list[dict[tuple[str, str], object]] = [{}]
        self.events: list[tuple[tuple[str, str], object]] = [((), None)]

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.states) - 1

    def change(self, key, labels) -> None:
        """Create a new version of an object, or delete it if there are no labels."""
        now = dict(self.states[-1])
        namespace, name = key
        changed = None
        if labels is not None:
            changed = item(name, self.version + 1, namespace, labels=labels)
            now[key] = changed
        elif now.pop(key, None) is None:
            return
        self.states.append(now)
        self.events.append((key, changed))

    def tell(self, cache, scope, version) -> None:
        """Write the event that a watch of a scope reports for a change."""
        key, changed = self.events[version]
        before = self.states[version - 1].get(key)
        selects = selector(scope)
        if changed is not None and selects(changed):
            cache.upsert(PODS, POD, changed)
        elif before is not None and selects(before):
            cache.remove(scope, before._replace(version=str(version)))


class Model(MemoryCache):
    """The cache in memory with known deletions, as in the real one."""

    def __init__(self, clock) -> None:
        super().__init__(clock)
        # The version of the deletion, and the scope.
        self.gone: dict[tuple[str, str], tuple[int, Scope]] = {}
        # The version below which a list with outstanding pages is incomplete.
        self.lacking: dict[tuple[Scope, str], int] = {}

    def upsert(self, collection, meta, item) -> None:
        """Store an object, unless it is known to have been deleted later."""
        if int(item.version) >= self.gone_at(item):
            super().upsert(collection, meta, item)

    def gone_at(self, item) -> int:
        """Return the version at which an object was deleted, 0 if it was not."""
        return self.gone.get(item[:2], (0, None))[0]

    def remove(self, scope, item) -> None:
        """Record a deletion."""
        if int(item.version) >= self.gone_at(item):
            self.gone[item[:2]] = int(item.version), changing_part(scope)
        super().remove(scope, item)

    def complete(self, scope, items, before, meta) -> None:
        """Add a page without objects that have left later, and may still exist."""
        known = [self.lacking[key] for key, keys in self._pages.items() if keys is before]
        lacks = max(known, default=0)
        there = [each for each in items if int(each.version) >= self.gone_at(each)]
        for each in items:
            gone, part = self.gone.get(each[:2], (0, scope))
            if int(each.version) < gone and not is_within(scope, part):
                lacks = max(lacks, gone)
        self.lacking[scope, meta.continue_token] = lacks
        super().complete(scope, there, before, meta)
        if before is not None and not meta.continue_token:
            self._collections[scope.collection].mark_incomplete(scope, lacks)


class CacheWorld(RuleBasedStateMachine):
    """A cluster that changes, and a cache on disk."""

    def __init__(self) -> None:
        super().__init__()
        # In memory: the duration of fsync(2) on a busy disk is not tested here.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(dir=memory))
        self.clock = Clock()
        self.cluster = Cluster()
        for key in KEYS:
            self.cluster.change(key, {"app": "x"})
        self.start()

    def start(self) -> None:
        """Start the cache, with a writer that can be held."""
        self.writer = HeldJobs()
        self.cache = make_cache(self.directory, self.clock, writer=self.writer)
        self.cache.startService()

    def stop(self) -> None:
        """Stop it."""
        self.writer.release()
        stopped = self.cache.stopService()
        self.clock.advance(0)
        assert stopped.called

    def teardown(self) -> None:
        """Stop it, and remove its files."""
        self.stop()
        assert self.clock.getDelayedCalls() == []
        shutil.rmtree(self.directory)

    @rule()
    def hold(self) -> None:
        """The disk becomes slow."""
        self.clock.advance(1)
        self.writer.holds = True

    @rule()
    def go_on(self) -> None:
        """The disk continues."""
        self.writer.release()
        self.clock.advance(1)


class CacheMachine(CacheWorld):
    """A cluster that changes, with clients that list and watch late."""

    pages = Bundle("pages")
    listings = Bundle("listings")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.clock)
        self.tokens = 0
        self.restarts = 0
        self.cutting: list[Callable[[], None]] = []

    def teardown(self) -> None:
        """Read everything once more before."""
        for scope in SCOPES:
            self.read(scope)
        super().teardown()

    @rule(
        key=st.sampled_from(KEYS),
        labels=st.sampled_from([None, {}, {"app": "x"}, {"app": "y"}]),
        times=st.integers(1, 3),
    )
    def change(self, key, labels, times) -> None:
        """Change the cluster."""
        for _ in range(times):
            self.cluster.change(key, labels)

    @rule(late=st.lists(st.integers(0, 9), min_size=1, max_size=4), scope=st.sampled_from(SCOPES))
    def watch_events(self, late, scope=SCOPES[0]) -> None:
        """Watches report changes, early or late."""
        for each in late:
            if each < self.cluster.version:
                self.watch_event(self.cluster.version - each, scope)

    def watch_event(self, version: int, scope=SCOPES[0]) -> None:
        """A watch reports a change."""
        for cache in (self.cache, self.model):
            cache.defer(PODS.client, partial(self.cluster.tell, cache, scope, version), 0)

    @rule(scope=st.sampled_from(SCOPES), late=st.integers(0, 5), earlier=st.integers(0, 5))
    def bookmark(self, scope, late, earlier=0) -> None:
        """A watch that began earlier reports its progress, perhaps late."""
        version = max(0, self.cluster.version - late)
        for cache in (self.cache, self.model):
            cache.advance(scope, str(max(0, version - earlier)), str(version))

    @rule(
        target=pages, scope=st.sampled_from(SCOPES), limit=st.integers(1, 3), late=st.integers(0, 5)
    )
    def begin_list(self, scope, limit, late):
        """A client lists the objects of a version, perhaps in pages."""
        version = max(0, self.cluster.version - late)
        selects = selector(scope)
        items = [each for _, each in sorted(self.cluster.states[version].items()) if selects(each)]
        return scope, version, "", items, limit, self.restarts

    @rule(
        scope=st.sampled_from(SCOPES),
        late=st.integers(0, 5),
        limit=st.integers(1, 3),
        cut_late=st.booleans(),
    )
    def list(self, scope, late, limit, cut_late=False) -> None:
        """A list without anything in between."""
        page = self.begin_list(scope, limit, late)
        while True:
            page = self.end_page(self.begin_page(page, 1), cut_late)
            if not page[2]:
                break

    @rule(key=st.sampled_from(KEYS), scope=st.sampled_from(SCOPES), gone=st.booleans())
    def change_around_a_list(self, key, scope, gone) -> None:
        """A list arrives between two changes of an object, before any is written."""
        self.change(key, {"app": "x"}, 1)
        self.watch_event(self.cluster.version)
        self.list(scope, 0, 3)
        self.change(key, None if gone else {"app": "y"}, 1)
        self.watch_event(self.cluster.version)

    @rule(target=listings, page=pages, cut=st.integers(0, 3))
    def begin_page(self, page, cut):
        """The first part of a page arrives."""
        scope, _, token, items, limit, restarts = page
        if token and restarts != self.restarts:
            # Earlier pages are lost; the model is not restarted, so it gets another token.
            token = f"before restart {token}"
        both = [cache.begin_list(scope, token) for cache in (self.cache, self.model)]
        for listing in both:
            listing.add(items[:limit][:cut])
        return both, page, cut, self.restarts

    @rule(target=pages, listing=consumes(listings), late=st.booleans())
    def end_page(self, listing, late=False):
        """The rest of a page arrives; it may be parsed late, with the same result."""
        both, (scope, version, token, items, limit, restarts), cut, began = listing
        more = items[limit:]
        self.tokens += bool(more)
        next_token = f"token {self.tokens}" if more else ""
        if began != self.restarts:
            # The process ended before it was complete.
            return scope, version, token, items, limit, restarts
        for each in both:
            reported = partial(
                self.cut_page, each, items[:limit][cut:], ListMeta(POD, str(version), next_token)
            )
            if late and each is both[0]:
                each.lag(1, True)
                self.cutting.append(reported)
            else:
                reported()
        return scope, version, next_token, more, limit, self.restarts

    @staticmethod
    def cut_page(listing, items, meta) -> None:
        """The rest of a page is parsed."""
        listing.add(items)
        listing.complete(meta)

    @rule(which=st.integers(0, 3))
    def cut_late(self, which) -> None:
        """One of the late pages is parsed; a short one comes before a long one."""
        if self.cutting:
            self.cutting.pop(which % len(self.cutting))()

    def cut_all(self) -> None:
        """All late pages are parsed."""
        while self.cutting:
            self.cutting.pop()()

    @rule(listing=consumes(listings))
    def abandon(self, listing) -> None:
        """A page is aborted."""
        both, _, _, began = listing
        if began == self.restarts:
            for each in both:
                each.abandon()

    @rule()
    def restart(self) -> None:
        """The process restarts, and forgets deletions."""
        self.cut_all()
        self.stop()
        self.restarts += 1
        self.model.gone.clear()
        self.start()

    @rule(scope=st.sampled_from(SCOPES))
    def read(self, scope) -> None:
        """Reads match the model, and wait for late pages."""
        self.writer.release()
        reading = [
            Deferred.fromCoroutine(read_all(cache, scope)) for cache in (self.cache, self.model)
        ]
        self.cut_all()
        self.clock.advance(0)
        results: list[object] = []
        for each in reading:
            each.addBoth(results.append)
        assert self.read_alike(*results), results

    def read_alike(self, real, said) -> bool:
        """Return whether a result matches the model.

        An incomplete list may have the version of a bookmark from before its first object: that
        version counts if both are written together, which ``ICache.advance`` leaves undefined.
        """
        if real is None or said is None or said[1]:
            return real == said
        (meta, *others), (least, *those) = real, said
        within = int(least.version) <= int(meta.version) <= self.cluster.version
        return within and [meta._replace(version=least.version), *others] == [least, *those]

    @invariant()
    def no_memory_is_lost(self) -> None:
        """All queued memory is counted."""
        assert self.cache.stats.queued >= 0
        assert self.writer.holds or self.cache.problem() is None


class ClientMachine(CacheWorld):
    """Clients that list and then watch a scope each, at any speed."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = 0
        # The reports to each client, from the start of its watch; and the lists in progress.
        self.reported: dict[Scope, int] = {}
        self.since: dict[Scope, int] = {}
        self.coming: dict[Scope, tuple[object, int]] = {}
        # Objects that late watches have reported; they also report their deletion.
        self.late: set[tuple[tuple[str, str], str]] = set()

    @rule(key=st.sampled_from(KEYS), labels=st.sampled_from([None, {}, {"app": "x"}, {"app": "y"}]))
    def change(self, key, labels) -> None:
        """Change the cluster."""
        self.cluster.change(key, labels)

    @rule(scope=st.sampled_from(SCOPES), late=st.integers(0, 3), in_pages=st.booleans())
    def begin_list(self, scope, late, in_pages) -> None:
        """A client lists, and gets the current or, from an API server that lags, an earlier state.

        It gets the first page at once, with all objects except the last one.
        """
        if scope in self.coming:
            return
        version = max(0, self.cluster.version - late)
        selects = selector(scope)
        items = [each for _, each in sorted(self.cluster.states[version].items()) if selects(each)]
        listing = self.cache.begin_list(scope, "")
        if in_pages and items:
            self.tokens += 1
            listing.add(items[:-1])
            listing.complete(ListMeta(POD, str(version), f"token {self.tokens}"))
            listing = self.cache.begin_list(scope, f"token {self.tokens}")
            items = items[-1:]
        listing.add(items)
        self.coming[scope] = listing, version

    @rule(scope=st.sampled_from(SCOPES))
    def end_list(self, scope) -> None:
        """It gets the rest, and watches from there."""
        if scope in self.coming:
            listing, version = self.coming.pop(scope)
            listing.complete(ListMeta(POD, str(version)))
            self.reported[scope] = self.since[scope] = version

    @rule(scope=st.sampled_from(SCOPES), most=st.integers(1, 4))
    def watch(self, scope, most) -> None:
        """It gets the next events, perhaps as a bookmark."""
        if scope in self.reported and scope not in self.coming:
            first, last = (
                self.reported[scope],
                min(self.reported[scope] + most, self.cluster.version),
            )
            newest = max(self.reported.values())
            events = partial(self.report, scope, first, last, self.since[scope])
            self.cache.defer(PODS.client, events, 0)
            for version in range(first + 1, min(last + 1, newest)):
                self.late.add((self.cluster.events[version][0], str(version)))
            self.reported[scope] = last

    def report(self, scope, first, last, since) -> None:
        """A watch that began at version ``since`` reports all changes of a range."""
        for version in range(first + 1, last + 1):
            self.cluster.tell(self.cache, scope, version)
        self.cache.advance(scope, str(since), str(last))

    @rule(scope=st.sampled_from(SCOPES))
    def list(self, scope) -> None:
        """A list without anything in between."""
        self.begin_list(scope, 0, False)
        self.end_list(scope)

    @rule()
    def read(self) -> None:
        """A complete list has all objects that existed since its version, and no deleted ones."""
        self.writer.release()
        for scope in (*SCOPES, *(Scope(PODS, *name) for name in NAMES)):
            found = self.result(read_all(self.cache, scope))
            if found is None or not found[1]:
                continue
            selects = selector(scope)
            states = self.cluster.states[int(found[0].version) :]
            items = {each[:2]: each for each in found[2]}
            for key in KEYS:
                there = [key in state and selects(state[key]) for state in states]
                assert key in items or not all(there), (scope, key, found)
                is_ghost = key in items and not any(there)
                assert not is_ghost or (key, items[key].version) in self.late, (scope, key, found)

    @rule(scope=st.sampled_from(SCOPES))
    def heal(self, scope) -> None:
        """A scope whose client has received all events is complete, whatever others received."""
        self.watch(scope, self.cluster.version)
        self.writer.release()
        if self.reported.get(scope) == self.cluster.version:
            meta, complete, _ = self.result(read_all(self.cache, scope))
            assert (int(meta.version), complete) == (self.cluster.version, True)

    def result(self, reading):
        """Return the result of a read."""
        results: list[object] = []
        Deferred.fromCoroutine(reading).addBoth(results.append)
        self.clock.advance(0)
        [result] = results
        return result

    def teardown(self) -> None:
        """Read everything once more before."""
        self.read()
        super().teardown()


class ModelTests(SynchronousTestCase):
    """Random sequences."""

    def test_a_bookmark_before_the_first_object(self) -> None:
        """It may be written with the object or before it; the version is one of the two."""
        for apart in (False, True):
            machine = CacheMachine()
            machine.bookmark(SCOPES[0], 0)
            machine.clock.advance(apart)
            machine.watch_events([1])
            machine.teardown()

    def test_model(self) -> None:
        """The cache matches the model."""
        self.run_machine(CacheMachine)

    def test_clients(self) -> None:
        """Reads match the client's view, whatever other clients' watches report."""
        self.run_machine(ClientMachine)

    def run_machine(self, machine) -> None:
        """Run a state machine."""
        # Finding a minimal example takes longer than a test may.
        phases = set(Phase) - {Phase.shrink}
        tried = settings(max_examples=80, stateful_step_count=40, phases=phases)
        try:
            run_state_machine_as_test(machine, settings=tried)
        except Exception as error:
            # Hypothesis adds the steps as notes, which trial does not print.
            self.fail("\n".join([repr(error), *getattr(error, "__notes__", ())]))
