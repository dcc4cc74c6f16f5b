"""``inclusterconfig``: kube-proxy asks the hub, without another configuration for edge nodes.

kubeadm gives kube-proxy a kubeconfig with the address of the API. Without that line it takes what a
pod has, ``KUBERNETES_SERVICE_HOST``, which ``masterservice`` makes the hub's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from zope.interface import implementer

from yurttunnel.hub.filters.interfaces import FilterSite, IFilter, Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import READING, Name, asks_for, member, name_of
from yurttunnel.hub.request.requests import ApiRequest

CONFIG_MAP = Name("kube-system", "kube-proxy")

_KEY = "config.conf"
_LINE = re.compile(r"^([ \t]*)(kubeconfig[ \t]*:)", re.MULTILINE)


@implementer(IFilter)
class InClusterConfig:
    """The filter; it does nothing while pods do not reach the hub."""

    hides = False

    def __init__(self, site: FilterSite, changed: Callable[[], object]) -> None:
        self._site = site
        site.reach.on_changed.append(changed)

    def applies(self, request: ApiRequest) -> bool:
        """Return whether it is about that ConfigMap; kubelet asks for each by its name."""
        return bool(self._site.host) and asks_for(request, "", {"configmaps"}, READING, CONFIG_MAP)

    def change(self, obj: Object) -> Object:
        """Make the line a comment."""
        if name_of(obj) != CONFIG_MAP or not self._site.reach.reached:
            return obj
        data = member(obj, "data")
        if isinstance(data.get(_KEY), str):
            data[_KEY] = _LINE.sub(r"\1#\2", data[_KEY])
        return obj


maker = FilterMaker("inclusterconfig", ("kubelet",), InClusterConfig)
