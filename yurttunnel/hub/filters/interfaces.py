"""The interfaces of filters, which change objects in responses.

``twist`` imports this module for each of its commands, to distinguish filter plugins from its own,
so imports for type annotations are not executed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.plugin import IPlugin
from zope.interface import Attribute, Interface, implementer

if TYPE_CHECKING:
    from yurttunnel.hub.filters.pools import Pools
    from yurttunnel.hub.filters.redirect import Reach
    from yurttunnel.hub.request.requests import ApiRequest, Caller
    from yurttunnel.kube.interfaces import IInformers

Object = dict[str, Any]


class Change(NamedTuple):
    """A change of objects for a client.

    ``make`` returns a changed object, and may modify its argument; ``None`` hides the object. With
    ``hides`` some are hidden, and objects that cannot be parsed are, too.
    """

    make: Callable[[Object], Object | None]
    hides: bool = False


class FilterSite(NamedTuple):
    """The information about a node that filters can use.

    ``host`` and ``secure_port`` are the address at which pods reach the hub with TLS, and ``reach``
    says whether they can now; ``host`` is empty if they never can. ``informers`` read the API
    through the hub's own port, so they have the cached objects when a node boots offline.
    """

    node: str
    host: str
    secure_port: int
    reach: Reach
    pools: Pools
    informers: IInformers


class IFilter(Interface):
    """A running filter."""

    hides: bool = Attribute(
        "`bool`: it hides objects, and any object that it fails on is hidden; else that passes."
    )

    def applies(request: ApiRequest) -> bool:
        """Return whether the filter may change the response to a request.

        The result must always be the same for a request. Some requests are not for a resource.
        """

    def change(obj: Object) -> Object | None:
        """Change one object, or hide it; the response to a get of a hidden object is aborted.

        An item of a list does not have its kind. The method must not raise an exception, even if
        members are missing or have unexpected types.
        """


class IFilterMaker(IPlugin):
    """Creates a filter when the hub starts; a plugin, so that other packages can have filters."""

    name: str = Attribute("`str`: its name in flags and ``yurt-hub-cfg``.")
    components: Collection[str] = Attribute(
        "`Collection[str]`: the clients that it always applies to."
    )

    def make(site: FilterSite, changed: Callable[[], object]) -> IFilter:
        """Create the filter.

        ``changed()`` must be called when the result for objects that were already served would be
        different; clients are then made to list again.
        """


@implementer(IFilterMaker)
@dataclass(frozen=True, eq=False)
class FilterMaker:
    """Creates one filter by calling a class or a function."""

    name: str
    components: Collection[str]
    make: Callable[[FilterSite, Callable[[], object]], IFilter]


class IWatchTracker(Interface):
    """Detects changes of the processing of a watch's response."""

    def track(caller: Caller, request: ApiRequest, end: Callable[[], object]) -> Callable[[], None]:
        """Call ``end()``, once, when the response would be processed differently now.

        :mod:`yurttunnel.hub.filters.relist` implements ``end``. The returned function must be
        called when the watch ends for another reason.
        """


class IFilters(IWatchTracker):
    """The filters of a hub in their current configuration."""

    def change_for(caller: Caller, request: ApiRequest) -> Change | None:
        """Return the change that the response needs, ``None`` if no filter applies.

        If one applies, JSON is requested from the API, whatever else the client accepts
        (:mod:`yurttunnel.hub.request.accept`).
        """
