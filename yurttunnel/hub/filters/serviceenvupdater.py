"""``serviceenvupdater``: containers that say themselves where the API is find the hub.

``masterservice`` is for those that leave it to kubelet. Here what a container sets of
``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT`` is changed, and nothing is added, so no
container is another one to kubelet that was not. Init containers, too: they get the same variables,
and one that could not reach the API would keep its pod from starting; upstream leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import READING, asks_for, member, members
from yurttunnel.hub.request.requests import ApiRequest


@implementer(IFilter)
class ServiceEnvUpdater:
    """The filter; it does nothing while pods do not reach the hub."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._site = site
        site.reach.on_changed.append(changed)
        self._values = {
            "KUBERNETES_SERVICE_HOST": site.host,
            "KUBERNETES_SERVICE_PORT": str(site.secure_port),
        }

    def applies(self, request: ApiRequest) -> bool:
        """Return whether it is about pods; patches of their status are answered with them, too."""
        return bool(self._site.host) and asks_for(
            request, "", {"pods"}, READING | {"patch"}, subresources=("", "status")
        )

    def change(self, obj: Object) -> Object:
        """Change the variables that are set."""
        if not self._site.reach.reached:
            return obj
        spec = member(obj, "spec")
        for kind in ("initContainers", "containers"):
            for container in members(spec, kind):
                for variable in members(container, "env"):
                    self._change(variable)
        return obj

    def _change(self, variable: Object) -> None:
        name = variable.get("name")
        if isinstance(name, str) and (value := self._values.get(name)):
            variable["value"] = value
            variable.pop("valueFrom", None)


maker = FilterMaker("serviceenvupdater", ("kubelet",), ServiceEnvUpdater)
