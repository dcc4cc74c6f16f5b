"""What the filters of this package are made by."""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, IFilterMaker


@implementer(IFilterMaker)
class FilterMaker:
    """Makes one filter by calling a class or a function."""

    def __init__(
        self,
        name: str,
        components: tuple[str, ...],
        make: Callable[[FilterSite, Callable[[], object]], IFilter],
    ) -> None:
        self.name = name
        self.components = frozenset(components)
        self._make = make

    def make(self, site: FilterSite, changed: Callable[[], object]) -> IFilter:
        """Make it."""
        return self._make(site, changed)
