"""Whether pods can reach the hub, and the filters that redirect them to it.

A pod that is redirected to a closed port loses its connection to the API, because the addresses
from Kubernetes work wherever the API is reachable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterMaker, FilterSite, IFilter, Object
from yurttunnel.hub.filters.members import (
    KUBERNETES,
    READ_VERBS,
    Name,
    matches,
    member,
    members,
    name_of,
)
from yurttunnel.hub.request.requests import ApiRequest

CONFIG_MAP = Name("kube-system", "kube-proxy")

_KEY = "config.conf"
_LINE = re.compile(r"^([ \t]*)(kubeconfig[ \t]*:)", re.MULTILINE)


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
        return bool(self._site.host) and self._matches(request)

    def _matches(self, request: ApiRequest) -> bool:
        return matches(request, self.group, {self.resource}, READ_VERBS, self.only)

    def change(self, obj: Object) -> Object:
        if self._site.reach.reached and self.only in (None, name_of(obj)):
            self._redirect(obj)
        return obj

    def _redirect(self, obj: Object) -> None:
        """Change an object so that it redirects to the hub."""
        raise NotImplementedError

    def _redirect_ports(self, ports: Iterator[Object]) -> None:
        for port in ports:
            if port.get("name") == "https":
                port["port"] = self._site.secure_port


class MasterService(RedirectFilter):
    """Makes pods use the hub as their API server.

    The kubelet sets ``KUBERNETES_SERVICE_HOST`` and ``..._PORT`` of each container from the Service
    ``default/kubernetes``, so the filter sets the address and port of that Service to the hub's.
    """

    resource = "services"
    only = KUBERNETES

    def _redirect(self, obj: Object) -> None:
        spec = member(obj, "spec")
        spec["clusterIP"] = self._site.host
        if "clusterIPs" in spec:
            spec["clusterIPs"] = [self._site.host]
        self._redirect_ports(members(spec, "ports"))


class ForwardKubeSvcTraffic(RedirectFilter):
    """Routes traffic for the Service ``default/kubernetes`` to the hub.

    kube-proxy sends traffic for the Service's cluster IP, and so for its DNS name, to the endpoints
    of the EndpointSlice that the API servers maintain; the filter replaces these with the hub's
    address and TLS port. A slice of the other address family stays unchanged.
    """

    group, resource = "discovery.k8s.io", "endpointslices"
    only = KUBERNETES

    def _redirect(self, obj: Object) -> None:
        if obj.get("addressType") == ("IPv6" if ":" in self._site.host else "IPv4"):
            obj["endpoints"] = [{"addresses": [self._site.host], "conditions": {"ready": True}}]
            self._redirect_ports(members(obj, "ports"))


class InClusterConfig(RedirectFilter):
    """Makes kube-proxy use the hub without a configuration for edge nodes.

    kubeadm gives kube-proxy a kubeconfig with the address of the API. Without that line, which the
    filter comments out, kube-proxy uses the pod's ``KUBERNETES_SERVICE_HOST``, which
    ``masterservice`` sets to the hub's address. The kubelet gets each ConfigMap by name.
    """

    resource = "configmaps"
    only = CONFIG_MAP

    def _redirect(self, obj: Object) -> None:
        data = member(obj, "data")
        if isinstance(data.get(_KEY), str):
            data[_KEY] = _LINE.sub(r"\1#\2", data[_KEY])


class ServiceEnvUpdater(RedirectFilter):
    """Redirects containers that set the API's address themselves to the hub.

    ``masterservice`` handles containers that leave it to the kubelet. This filter changes
    ``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT`` if a container sets them, and adds
    nothing, so other containers look unchanged to the kubelet. It includes init containers, which
    upstream omits: they get the same variables, and an init container that cannot reach the API
    would block its pod.
    """

    resource = "pods"

    def _matches(self, request: ApiRequest) -> bool:
        # A patch of the status of a pod returns the pod, too.
        verbs, subresources = READ_VERBS | {"patch"}, ("", "status")
        return matches(request, "", {self.resource}, verbs, subresources=subresources)

    def _redirect(self, obj: Object) -> None:
        values: dict[object, str] = {
            "KUBERNETES_SERVICE_HOST": self._site.host,
            "KUBERNETES_SERVICE_PORT": str(self._site.secure_port),
        }
        spec = member(obj, "spec")
        for kind in ("initContainers", "containers"):
            for container in members(spec, kind):
                for variable in members(container, "env"):
                    name = variable.get("name")
                    if isinstance(name, str) and (value := values.get(name)):
                        variable["value"] = value
                        variable.pop("valueFrom", None)


masterservice = FilterMaker("masterservice", {"kubelet"}, MasterService)
forwardkubesvctraffic = FilterMaker(
    "forwardkubesvctraffic", {"kube-proxy", "yurtproxy"}, ForwardKubeSvcTraffic
)
inclusterconfig = FilterMaker("inclusterconfig", {"kubelet"}, InClusterConfig)
serviceenvupdater = FilterMaker("serviceenvupdater", {"kubelet"}, ServiceEnvUpdater)
