"""The middleware ``delegated-callers``: its interface."""

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
from yurttunnel.server.frontends.kubelet.connections import ConnectionTarget, ConnectionTargets
from yurttunnel.server.frontends.kubelet.delegated_callers import ClusterState, DelegatedCallers
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware


class MiddlewareTests(SynchronousTestCase):
    """The interface to other parts."""

    def test_interface(self):
        """``delegated-callers`` provides ``IMiddleware``."""
        informers = FakeInformers()
        cluster = ClusterState(
            Nodes(informers),
            Pods(informers),
            ClusterAddresses(informers, "kube-system"),
            ProxyPorts(informers, "kube-system", 10264, lambda *event: None),
            iptables=True,
            dns=False,
            refuse_unnamed_upgrades=False,
        )
        verifyObject(
            IMiddleware,
            DelegatedCallers(None, None, cluster, CertificateUsers(), ConnectionTargets()),
        )

    def test_aim_without_a_socket(self):
        """A transport without a socket has no original destination, and its peer is not local."""
        self.assertEqual(ConnectionTarget(None, None), ConnectionTargets().of(StringTransport()))
