"""Page sizes of lists, limited so that parsing a page does not block the reactor."""

from __future__ import annotations

from yurttunnel.kube.resources import Object, Resource

PAGE_BYTES = 512 * 1024
"""The intended size of a page; parsing it takes about 10 ms, and more on small machines."""

FIRST_PAGE = 50
"""The number of objects of the first page, while their size is unknown."""


class PageLimits:
    """Remembers the size of the objects of each kind."""

    def __init__(self) -> None:
        self._bytes_per_object: dict[Resource, float] = {}

    def limit(self, resource: Resource, desired: int) -> int:
        """Return how many objects to request if ``desired`` are enough."""
        size = self._bytes_per_object.get(resource)
        fitting = FIRST_PAGE if size is None else int(PAGE_BYTES / size)
        return max(1, min(desired, fitting))

    def seen(self, resource: Resource, size: int, page: Object) -> None:
        """Update the size of objects from a page of ``size`` bytes."""
        items = page.get("items")
        if isinstance(items, list) and items:
            self._bytes_per_object[resource] = size / len(items)
