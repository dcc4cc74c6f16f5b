"""``serviceenvupdater``: redirects containers that set the API's address themselves to the hub.

``masterservice`` handles containers that leave it to the kubelet. This filter changes
``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT`` if a container sets them, and adds
nothing, so other containers look unchanged to the kubelet. It includes init containers, which
upstream omits: they get the same variables, and an init container that cannot reach the API would
block its pod.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.hub.filters.interfaces import FilterSite, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import READ_VERBS, matches, member, members
from yurttunnel.hub.filters.redirect import RedirectFilter
from yurttunnel.hub.request.requests import ApiRequest


class ServiceEnvUpdater(RedirectFilter):
    """The filter, which changes the variables that are set."""

    resource = "pods"

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        super().__init__(site, changed)
        self._values = {
            "KUBERNETES_SERVICE_HOST": site.host,
            "KUBERNETES_SERVICE_PORT": str(site.secure_port),
        }

    def _matches(self, request: ApiRequest) -> bool:
        # A patch of the status of a pod returns the pod, too.
        verbs, subresources = READ_VERBS | {"patch"}, ("", "status")
        return matches(request, "", {self.resource}, verbs, subresources=subresources)

    def _redirect(self, obj: Object) -> None:
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
