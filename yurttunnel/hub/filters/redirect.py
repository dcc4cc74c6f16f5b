"""Whether pods can reach the hub, and the base class of filters that redirect them to it.

A pod that is redirected to a closed port loses its connection to the API, because the addresses
from Kubernetes work wherever the API is reachable.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import READ_VERBS, Name, matches, name_of
from yurttunnel.hub.request.requests import ApiRequest


class Reach:
    """The state of the listeners for pods.

    Until the first report it is as ``expected``: a hub that restarts must not redirect its pods to
    the API and back, because the kubelet may restart their containers.
    """

    def __init__(self, expected: bool) -> None:
        self.reached = expected
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for a change."""

    def update(self, reached: bool) -> None:
        """Record whether pods can reach the hub now."""
        if reached != self.reached:
            self.reached = reached
            for callback in self.on_changed:
                callback()


@implementer(IFilter)
class RedirectFilter:
    """A filter that redirects pods to the hub; it changes nothing while they cannot reach it.

    It applies to objects of a ``resource`` in ``group``, or to the one with the name ``only``.
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
        return bool(self._site.host) and self._matches(request)

    def _matches(self, request: ApiRequest) -> bool:
        return matches(request, self.group, {self.resource}, READ_VERBS, self.only)

    def change(self, obj: Object) -> Object:
        """See :class:`IFilter`."""
        if self._site.reach.reached and self.only in (None, name_of(obj)):
            self._redirect(obj)
        return obj

    def _redirect(self, obj: Object) -> None:
        """Change an object so that it redirects to the hub."""
        raise NotImplementedError
