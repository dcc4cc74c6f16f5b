"""The middleware ``deputies``: its interface."""

from __future__ import annotations

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.cluster.fakes import FakeInformers
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.pods import Pods
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.server.frontends.kubelet.callers import CertificateUsers
from yurttunnel.server.frontends.kubelet.connections import Aim, Aims
from yurttunnel.server.frontends.kubelet.deputies import Deputies, KnownCluster
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware


class MiddlewareTests(SynchronousTestCase):
    """The interface to other parts."""

    def test_interface(self):
        """It provides ``IMiddleware``."""
        informers = FakeInformers()
        cluster = KnownCluster(
            Nodes(informers),
            Pods(informers),
            ClusterAddresses(informers, "kube-system"),
            ProxyPorts(informers, "kube-system", 10264, lambda *event: None),
            iptables=True,
            dns=False,
            named_upgrades=False,
        )
        verifyObject(IMiddleware, Deputies(None, None, cluster, CertificateUsers(), Aims()))

    def test_aim_without_a_socket(self):
        """A transport without a socket has no original destination, and its peer is not local."""
        self.assertEqual(Aim(None, None), Aims().of(StringTransport()))
