"""Who serves clients within the cluster by portals from outside."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.services import key, service
from yurttunnel.proxy.interfaces import Placed
from yurttunnel.proxy.rules.within_cluster import WithinCluster
from yurttunnel.proxy.state.virtual_services import Protocol, Scope


def placed(scope, keeps_source=False, name="web", protocol=Protocol.TCP):
    """Make what is carried of a Service."""
    the_key = key(name, protocol, 4, scope)
    return Placed(service(key=the_key, keeps_source=keeps_source), None)


class WithinClusterTests(SynchronousTestCase):
    """What of a Service has all of its endpoints."""

    external = placed(Scope.EXTERNAL, keeps_source=True)

    def found(self, *others, of=None):
        """Return who serves instead of the external part, or another one."""
        of = of or self.external
        return WithinCluster([of, *others]).instead_of(of)

    def test_external_is_local(self):
        """It is what serves cluster IPs, as long as that is not for this node alone."""
        internal, cluster = placed(Scope.INTERNAL), placed(Scope.CLUSTER)
        self.assertIs(internal, self.found(internal))
        self.assertIs(cluster, self.found(cluster, internal))
        self.assertIs(cluster, self.found(internal, cluster))

    def test_external_is_not_local(self):
        """It has all endpoints itself; what serves cluster IPs has those of this node alone."""
        of = placed(Scope.EXTERNAL)
        self.assertIsNone(self.found(placed(Scope.INTERNAL), of=of))

    def test_others(self):
        """Nothing is instead of what is not from outside, nor anything of another Service."""
        internal = placed(Scope.INTERNAL)
        for of in (placed(Scope.ALL), placed(Scope.INTERNAL)):
            self.assertIsNone(self.found(internal, of=of))
        others = placed(Scope.INTERNAL, name="api"), placed(Scope.INTERNAL, protocol=Protocol.UDP)
        self.assertIsNone(self.found(*others))
