"""``inclusterconfig``: makes kube-proxy use the hub without a configuration for edge nodes.

kubeadm gives kube-proxy a kubeconfig with the address of the API. Without that line kube-proxy uses
the pod's ``KUBERNETES_SERVICE_HOST``, which ``masterservice`` sets to the hub's address.
"""

from __future__ import annotations

import re

from yurttunnel.hub.filters.interfaces import Object
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.members import Name, member
from yurttunnel.hub.filters.redirect import RedirectFilter

CONFIG_MAP = Name("kube-system", "kube-proxy")

_KEY = "config.conf"
_LINE = re.compile(r"^([ \t]*)(kubeconfig[ \t]*:)", re.MULTILINE)


class InClusterConfig(RedirectFilter):
    """The filter, which comments out the line; the kubelet gets each ConfigMap by name."""

    resource = "configmaps"
    only = CONFIG_MAP

    def _redirect(self, obj: Object) -> None:
        data = member(obj, "data")
        if isinstance(data.get(_KEY), str):
            data[_KEY] = _LINE.sub(r"\1#\2", data[_KEY])


maker = FilterMaker("inclusterconfig", ("kubelet",), InClusterConfig)
