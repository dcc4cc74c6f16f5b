"""Tests of the endpoints for clients within the cluster that use external portals."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import key, service
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.in_cluster import InClusterServices
from yurttunnel.proxy.state.virtual_services import Protocol, Scope


def proxied(scope, keeps_source=False, name="web", protocol=Protocol.TCP):
    """Place a virtual service of a Service."""
    the_key = key(name, protocol, 4, scope)
    return ProxiedService(service(key=the_key, keeps_source=keeps_source), None)


class InClusterServicesTests(SynchronousTestCase):
    """Which virtual service of a Service has all of its endpoints."""

    external = proxied(Scope.EXTERNAL, keeps_source=True)

    def found(self, *others, of=None):
        """Return the service used instead of the external one, or of another one."""
        of = of or self.external
        services = InClusterServices()
        for each in (of, *others):
            services.add(each)
        return services.replacement_for(of)

    def test_external_is_local(self):
        """It is the one for cluster IPs, unless that has local endpoints only."""
        internal, cluster = proxied(Scope.INTERNAL), proxied(Scope.CLUSTER)
        self.assertIs(internal, self.found(internal))
        self.assertIs(cluster, self.found(cluster, internal))
        self.assertIs(cluster, self.found(internal, cluster))

    def test_external_is_not_local(self):
        """It has all endpoints itself; the one for cluster IPs has local ones only."""
        of = proxied(Scope.EXTERNAL)
        self.assertIsNone(self.found(proxied(Scope.INTERNAL), of=of))

    def test_others(self):
        """Services that are not external, or another Service's, have no substitute."""
        internal = proxied(Scope.INTERNAL)
        for of in (proxied(Scope.ALL), proxied(Scope.INTERNAL)):
            self.assertIsNone(self.found(internal, of=of))
        others = proxied(Scope.INTERNAL, name="api"), proxied(Scope.INTERNAL, protocol=Protocol.UDP)
        self.assertIsNone(self.found(*others))
