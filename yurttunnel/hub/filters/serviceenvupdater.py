"""``serviceenvupdater``: containers that say themselves where the API is find the hub.

``masterservice`` is for those that leave it to kubelet. Here what a container sets of
``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT`` is changed, and nothing is added, so no
container is another one to kubelet that was not. Init containers, too: they get the same variables,
and one that could not reach the API would keep its pod from starting; upstream leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.hub.filters.interfaces import FilterSite, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import READING, asks_for, member, members
from yurttunnel.hub.filters.reach import LeadingFilter
from yurttunnel.hub.request.requests import ApiRequest


class ServiceEnvUpdater(LeadingFilter):
    """The filter, which changes the variables that are set."""

    resource = "pods"

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        super().__init__(site, changed)
        self._values = {
            "KUBERNETES_SERVICE_HOST": site.host,
            "KUBERNETES_SERVICE_PORT": str(site.secure_port),
        }

    def _asks(self, request: ApiRequest) -> bool:
        # Patches of the status of pods are answered with them, too.
        verbs, subresources = READING | {"patch"}, ("", "status")
        return asks_for(request, "", {self.resource}, verbs, subresources=subresources)

    def _lead(self, obj: Object) -> None:
        spec = member(obj, "spec")
        for kind in ("initContainers", "containers"):
            for container in members(spec, kind):
                for variable in members(container, "env"):
                    self._change(variable)

    def _change(self, variable: Object) -> None:
        name = variable.get("name")
        if isinstance(name, str) and (value := self._values.get(name)):
            variable["value"] = value
            variable.pop("valueFrom", None)


maker = FilterMaker("serviceenvupdater", ("kubelet",), ServiceEnvUpdater)
