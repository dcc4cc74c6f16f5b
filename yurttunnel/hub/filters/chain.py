"""The filters of a hub, their order, and their selection for each request.

Filters are plugins of Twisted (the Twisted documentation, "The Twisted Plugin System"), identified
by name. Those of this package come first, in the order of :data:`ORDER`: filters that hide objects
before those that change them. All others follow by name. Each filter decides to which requests it
applies; its maker, and its key in ``yurt-hub-cfg``, define to which clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from twisted.logger import Logger
from twisted.plugin import getPlugins
from zope.interface import implementer

from yurttunnel.hub.configuration import ALL, HubConfiguration
from yurttunnel.hub.filters.interfaces import (
    Change,
    FilterSite,
    IFilter,
    IFilterMaker,
    IFilters,
    Object,
)
from yurttunnel.hub.filters.members import READ_VERBS
from yurttunnel.hub.filters.watches import State, TrackedWatches
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller
from yurttunnel.metrics import Metric, counter

ORDER = (
    "discardcloudservice",
    "nodeportisolation",
    "masterservice",
    "servicetopology",
    # It adds an endpoint that is on no node.
    "forwardkubesvctraffic",
    "inclusterconfig",
    "serviceenvupdater",
)


_UNFILTERED_CLIENTS = frozenset({"", "yurthub", PAGES})
"""Clients without a User-Agent, and the hub itself, which needs the API's unfiltered objects."""


_REMEMBERED = 256
"""The number of requests whose filters are remembered, because most requests are repeated."""

_MAX_REMEMBERED = 1024
"""Maximum length of the path and query of a remembered request; some are as long as a head."""


class BadFilter(Exception):
    """The requested filters are not available; the message is one line."""


def installed_makers() -> list[IFilterMaker]:
    """Return the installed filters, of this package and of others."""
    return list(getPlugins(IFilterMaker))


def chosen_makers(makers: Iterable[IFilterMaker], disabled: Iterable[str]) -> list[IFilterMaker]:
    """Return the filters that are not disabled, in their order; ``*`` disables all.

    Raises :class:`BadFilter` for a name that no filter has, or more than one.
    """
    makers = sorted(makers, key=lambda maker: (_order_of(maker.name), maker.name))
    names = Counter(maker.name for maker in makers)
    disabled = set(disabled)
    if unknown := disabled - set(names) - {ALL}:
        raise BadFilter(
            f"no filter is called {min(unknown)!r}; installed are: {', '.join(names) or 'none'}"
        )
    if twice := [name for name, number in names.items() if number > 1]:
        raise BadFilter(f"several filters are called {twice[0]!r}: remove all but one")
    return [maker for maker in makers if disabled.isdisjoint((maker.name, ALL))]


def _order_of(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


@implementer(IFilters)
class Filters:
    """The filters created by ``makers``, for the clients that ``configuration`` defines.

    ``failures`` counts the exceptions of each filter. The object is then hidden if the filter hides
    objects, else passed on as the filter left it: without the object the client would be worse off.
    A filter that fails on a request applies to it if it hides objects and the request is a read.
    """

    def __init__(
        self,
        makers: Sequence[IFilterMaker],
        site: FilterSite,
        configuration: HubConfiguration,
        watches: TrackedWatches,
    ) -> None:
        self.failures = Counter({maker.name: 0 for maker in makers})
        self._configuration = configuration
        self._watches = watches
        self._members = [_Member(maker, site, watches.review, self.failures) for maker in makers]
        self._remembered = lru_cache(_REMEMBERED)(self._find_applying)
        configuration.on_changed.append(watches.review)

    def _find_applying(self, request: ApiRequest) -> list[_Member]:
        return [each for each in self._members if each.applies(request)]

    def _applying(self, request: ApiRequest) -> list[_Member]:
        find = self._remembered if request.size <= _MAX_REMEMBERED else self._find_applying
        return find(request)

    def change_for(self, caller: Caller, request: ApiRequest) -> Change | None:
        applying = self._applying(request)
        if not applying:
            return None
        active = [each for each in applying if self._is_for(each, caller.component)]
        if request.verb == "list":
            self._watches.record_list(caller, request, _state(active))
        if not active:
            return None
        make = active[0].change if len(active) == 1 else _all_of(active)
        return Change(make, any(each.hides for each in active))

    def track(
        self, caller: Caller, request: ApiRequest, end: Callable[[], object]
    ) -> Callable[[], None]:
        """Call ``end()`` when the response to a watch would be filtered differently."""
        applying = self._applying(request)
        if not applying:
            return _nothing

        def now() -> State:
            return _state(each for each in applying if self._is_for(each, caller.component))

        return self._watches.track(caller, request, now, end)

    def _is_for(self, member: _Member, component: str) -> bool:
        if component in _UNFILTERED_CLIENTS:
            return False
        configured = self._configuration.components(member.name)
        return component in member.components or not configured.isdisjoint((component, ALL))


class _Member:
    """A filter in the chain; ``version`` counts how often its results have changed."""

    _log = Logger()

    def __init__(
        self,
        maker: IFilterMaker,
        site: FilterSite,
        review: Callable[[], object],
        failures: Counter[str],
    ) -> None:
        self.name = maker.name
        self.components = frozenset(maker.components)
        self.version = 0
        self._review = review
        self._failures = failures
        self._filter: IFilter = maker.make(site, self._changed)
        self.hides: bool = self._filter.hides

    def applies(self, request: ApiRequest) -> bool:
        """Return whether the filter applies to a request."""
        try:
            return self._filter.applies(request)
        except Exception:
            # As below; and failing the request would be worse for all clients.
            applies = self.hides and request.resource is not None and request.verb in READ_VERBS
            becomes = "is filtered" if applies else "is not filtered"
            self._failed("decide whether it applies to a request", becomes)
            return applies

    def change(self, obj: Object) -> Object | None:
        """Change an object, or hide it."""
        try:
            return self._filter.change(obj)
        except Exception:
            # Filters are third-party code. A missing object is worse for the client, unless it must
            # not see the object.
            self._failed("change an object", "is hidden" if self.hides else "passes unchanged")
            return None if self.hides else obj

    def _failed(self, what: str, becomes: str) -> None:
        if not self._failures[self.name]:
            self._log.failure(
                "Defect: the filter {name} could not {what}, which {becomes}. Later"
                " failures are only counted",
                name=self.name,
                what=what,
                becomes=becomes,
            )
        self._failures[self.name] += 1

    def _changed(self) -> None:
        self.version += 1
        self._review()


def _nothing() -> None:
    """Do nothing: no filter applies to such a request."""


def _state(members: Iterable[_Member]) -> State:
    return tuple((each.name, each.version) for each in members)


def _all_of(members: Sequence[_Member]) -> Callable[[Object], Object | None]:
    def change(obj: Object) -> Object | None:
        for each in members:
            changed = each.change(obj)
            if changed is None:
                return None
            obj = changed
        return obj

    return change


METRICS: tuple[Metric[Filters], ...] = (
    counter(
        "yurthub_filter_failures",
        "Failures of filters because of a defect: objects that a filter could not modify, which"
        " are passed unmodified, or hidden by a filter that hides objects; and requests for which"
        " it could not decide whether it applies.",
        lambda filters: filters.failures.items(),
        "filter",
    ),
)
