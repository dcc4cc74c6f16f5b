"""The endpoints for clients within the cluster that use an external portal.

With ``externalTrafficPolicy: Local`` a load balancer sends clients to nodes with endpoints. Packets
from within the cluster never reach it, because rules here redirect them first. So these clients get
all endpoints, as if their packets had gone out to the load balancer and come back. Neither that
policy nor ``internalTrafficPolicy`` applies to them (``writeServiceToEndpointRules`` and the
external chains of k8s.io/kubernetes pkg/proxy/iptables and nftables).
"""

from __future__ import annotations

from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.state.virtual_services import Key, Protocol, Scope, ServicePortName

_Identity = tuple[ServicePortName, int, Protocol]


class InClusterServices:
    """Finds these services among all, which are added first."""

    def __init__(self) -> None:
        self._siblings: dict[_Identity, ProxiedService] = {}

    def add(self, proxied: ProxiedService) -> None:
        """Add a service."""
        key = proxied.service.key
        if key.scope is Scope.CLUSTER:
            # If it exists, the one for cluster IPs has local endpoints only.
            self._siblings[_identity(key)] = proxied
        elif key.scope is Scope.INTERNAL:
            self._siblings.setdefault(_identity(key), proxied)

    def replacement_for(self, proxied: ProxiedService) -> ProxiedService | None:
        """Return the service for clients within the cluster that use the portals of ``proxied``;
        ``None`` if it is the same.
        """
        service = proxied.service
        if service.key.scope is not Scope.EXTERNAL or not service.keeps_source:
            return None
        return self._siblings.get(_identity(service.key))


def _identity(key: Key) -> _Identity:
    return key.name, key.version, key.protocol
