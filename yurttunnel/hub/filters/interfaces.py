"""The seam of filters, which change what a client sees of objects.

``twist`` imports this for each of its commands, to tell the plugins of filters from its own: so
what only types need is not loaded here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.plugin import IPlugin
from zope.interface import Attribute, Interface

if TYPE_CHECKING:
    from yurttunnel.hub.filters.pools import Pools
    from yurttunnel.hub.filters.reach import Reach
    from yurttunnel.hub.request.requests import ApiRequest, Caller
    from yurttunnel.kube.interfaces import IInformers

Object = dict[str, Any]


class Change(NamedTuple):
    """What a client sees of objects.

    ``make`` returns it of one, which it may change in place; ``None`` hides it. With ``hides`` some
    are hidden: then what cannot be looked into is hidden, too.
    """

    make: Callable[[Object], Object | None]
    hides: bool = False


@dataclass(frozen=True, slots=True)
class FilterSite:
    """What a filter can know of its node.

    ``host`` and ``secure_port`` are where pods reach the hub by TLS, and ``reach`` says whether
    they do at this moment; ``host`` is empty where they never do. ``informers`` follow the API
    through the hub's own port, so that they have what was last seen when a node boots without the
    cloud.
    """

    node: str
    host: str
    secure_port: int
    reach: Reach
    pools: Pools
    informers: IInformers


class IFilter(Interface):
    """One filter at work."""

    hides: bool = Attribute(
        "`bool`: it hides objects, and so one that it fails on; without, such a one passes."
    )

    def applies(request: ApiRequest) -> bool:
        """Return whether it has something to change in the answer to a request.

        For the same request that is always the same. What is no resource is asked about, too.
        """

    def change(obj: Object) -> Object | None:
        """Change one object, or hide it, which is for lists and watches: a get then breaks off.

        An item of a list does not say its kind. Whatever members are missing, or are of other
        types than they should, nothing is to be raised.
        """


class IFilterMaker(IPlugin):
    """Makes a filter when the hub starts; a plugin, so that other packages can have theirs."""

    name: str = Attribute("`str`: as flags and ``yurt-hub-cfg`` have it.")
    components: Collection[str] = Attribute("`Collection[str]`: for whose requests it always is.")

    def make(site: FilterSite, changed: Callable[[], object]) -> IFilter:
        """Make it.

        ``changed()`` is to be called when objects that were answered already would now look
        different: then clients are made to list again.
        """


class IFollowing(Interface):
    """Knows of a watch whether what is done with its answer changes."""

    def follow(
        caller: Caller, request: ApiRequest, end: Callable[[], object]
    ) -> Callable[[], None]:
        """Have ``end()`` called, once, when something else would be done with the answer now.

        :mod:`yurttunnel.hub.filters.relist` does what is to be done then. What is returned is to
        be called when the watch ends otherwise.
        """


class IFilters(IFollowing):
    """Those of a hub, as they are configured at this moment."""

    def change_for(caller: Caller, request: ApiRequest) -> Change | None:
        """Return what the answer goes through, ``None`` when nothing applies.

        Where something does, the API is asked for JSON, whatever else the client accepts
        (:mod:`yurttunnel.hub.request.accept`).
        """
