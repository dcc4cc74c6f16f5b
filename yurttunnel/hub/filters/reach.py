"""Whether pods reach the hub, and what the filters have in common that lead them to it.

Pods that are led where nobody listens have lost the way that they had: what Kubernetes gives them
leads to the API wherever that is reached.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import READING, Name, asks_for, name_of
from yurttunnel.hub.request.requests import ApiRequest


class Reach:
    """What is told by who listens for pods.

    Until then it is as ``expected``: a hub that is started anew is not to lead its pods away from
    it and back, since a kubelet may start containers anew for that.
    """

    def __init__(self, expected: bool) -> None:
        self.reached = expected
        self.on_changed: list[Callable[[], object]] = []
        """Who is told when it is otherwise than before."""

    def tell(self, reached: bool) -> None:
        """Take it that pods reach the hub now, or that they do not."""
        if reached != self.reached:
            self.reached = reached
            for callback in self.on_changed:
                callback()


@implementer(IFilter)
class LeadingFilter:
    """A filter that leads pods to the hub; it does nothing while they do not reach it.

    It is for objects of a ``resource`` that is in ``group``, or for the one of the name ``only``.
    """

    hides = False
    group = ""
    resource: str
    only: Name | None = None

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._site = site
        site.reach.on_changed.append(changed)

    def applies(self, request: ApiRequest) -> bool:
        """See :class:`IFilter`."""
        return bool(self._site.host) and self._asks(request)

    def _asks(self, request: ApiRequest) -> bool:
        return asks_for(request, self.group, {self.resource}, READING, self.only)

    def change(self, obj: Object) -> Object:
        """See :class:`IFilter`."""
        if self._site.reach.reached and self.only in (None, name_of(obj)):
            self._lead(obj)
        return obj

    def _lead(self, obj: Object) -> None:
        """Have an object lead to the hub."""
        raise NotImplementedError
