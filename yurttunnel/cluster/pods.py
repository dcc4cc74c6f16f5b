"""The nodes of pods."""

from __future__ import annotations

from sys import intern

from yurttunnel.cluster.fields import mapping, text
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import PODS, Object


def node_of(pod: Object) -> str:
    """Return the name of a ``Pod``'s node, as one string shared by all pods of the node."""
    return intern(text(mapping(pod.get("spec")).get("nodeName")))


PODS_SPEC: InformerSpec[str] = InformerSpec(PODS, node_of, field_selector="spec.nodeName!=")
"""All pods that are assigned to a node, which happens once."""


class Pods:
    """The nodes of all pods, kept up to date by ``informers``."""

    def __init__(self, informers: IInformers) -> None:
        self._informer = informers.informer(PODS_SPEC)

    def node_of(self, namespace: str, name: str) -> str | None:
        """Return the name of the node, ``None`` if the pod is unknown or has no node."""
        node: str | None = self._informer.get(name, namespace)
        return node or None
