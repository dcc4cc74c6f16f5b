"""How many objects to ask for at a time, so that reading a page does not hold up the reactor."""

from __future__ import annotations

from yurttunnel.kube.resources import Object, Resource

PAGE_BYTES = 512 * 1024
"""A page should have no more; to read it takes about 10 ms, and more on small machines."""

FIRST_PAGE = 50
"""Objects of the first page, when it is not known yet how big they are."""


class PageLimits:
    """Remembers how big the objects of each kind are."""

    def __init__(self) -> None:
        self._bytes_per_object: dict[Resource, float] = {}

    def limit(self, resource: Resource, desired: int) -> int:
        """Return how many objects to ask for when ``desired`` are enough for now."""
        size = self._bytes_per_object.get(resource)
        fitting = FIRST_PAGE if size is None else int(PAGE_BYTES / size)
        return max(1, min(desired, fitting))

    def seen(self, resource: Resource, size: int, page: Object) -> None:
        """Learn from a page of ``size`` bytes."""
        items = page.get("items")
        if isinstance(items, list) and items:
            self._bytes_per_object[resource] = size / len(items)
