"""The maker of the filters of this package."""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, IFilterMaker


@implementer(IFilterMaker)
class FilterMaker:
    """Creates one filter by calling a class or a function."""

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
        """Create the filter."""
        return self._make(site, changed)
