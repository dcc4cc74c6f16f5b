"""Tests of the choice of mode and back end, by the command line and the machine."""

from __future__ import annotations

from ipaddress import ip_network

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.proxy.fakes import FakeSource
from tests.proxy.services import key, service
from tests.proxy.test_options import parse
from yurttunnel.proxy import data_path
from yurttunnel.proxy.data_path import NodePorts, select_data_path
from yurttunnel.proxy.interfaces import KernelStats
from yurttunnel.proxy.kernel.forwarding import Forwarding
from yurttunnel.proxy.kernel.mode import KernelMode
from yurttunnel.proxy.rules.choice import ChosenRules
from yurttunnel.proxy.rules.kube_proxy import KubeProxyCheck
from yurttunnel.proxy.rules.none import NoRules
from yurttunnel.proxy.settings import Mode
from yurttunnel.proxy.socket_manager import IKernelMode
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.tcp import TcpProxySockets
from yurttunnel.proxy.state.virtual_services import HealthCheckNodePort, Portal, PortalKind
from yurttunnel.steering.netlink.connection_tracking import ConnectionTracking


class DataPathTests(SynchronousTestCase):
    """The mode, and the back end."""

    def setUp(self):
        """Make a kernel that supports kernel mode."""
        self.unable = None
        self.versions = (4, 6)
        self.patch(
            data_path,
            "kernel_mode_available",
            lambda clock, programs, version: succeed(
                self.unable if version in self.versions else None
            ),
        )
        self.patch(data_path, "has_family", lambda version: True)
        self.patch(data_path, "forwards", lambda versions: True)
        # It would open descriptors that no test uses, and raise this process's limit of them.
        self.shared = Service()
        self.patch(
            data_path,
            "proxy_sockets",
            lambda reactor, settings, is_claimed: (None, None, self.shared),
        )

    def found(self, *flags):
        """Return what is chosen for a command line."""
        coroutine = select_data_path(
            MemoryReactorClock(), parse(*flags), lambda job: None, None, FakeSource()
        )
        return self.successResultOf(Deferred.fromCoroutine(coroutine))

    def test_without_rules(self):
        """The kernel is not changed, and nothing is claimed."""
        found = self.found("--proxy-backend=none")
        self.assertIs(Mode.USER, found.mode)
        self.assertIsInstance(found.rules, NoRules)
        self.assertIs(found.claims, found.rules)
        self.assertIs(found.conntrack, found.rules)
        self.assertEqual((self.shared,), found.services)

    def test_where_proxy_sockets_listen(self):
        """At the loopback address that is given, and at the default one of the other family."""

        def kept(reactor, settings, ports):
            self.ports = ports
            return None, None, self.shared

        self.patch(data_path, "proxy_sockets", kept)
        for flags, expected in (
            ((), ["0.0.0.0", "::"]),
            (("--bind-address=127.0.0.5",), ["127.0.0.5", "::1"]),
            (("--bind-address=::1",), ["127.0.0.1", "::1"]),
        ):
            self.found("--proxy-backend=none", *flags)
            hosts = []
            for version in (4, 6):
                opened = self.ports.open(key(version=version))
                hosts.append(opened.getsockname()[0])
                self.ports.close(opened)
            self.assertEqual(expected, hosts)

    def test_the_kernel_where_it_can(self):
        """It has its own service, and reports its problems."""
        found = self.found()
        self.assertIs(Mode.KERNEL, found.mode)
        verifyObject(IKernelMode, found.kernel)
        self.assertEqual(
            [Service, ConnectionTracking, KernelMode, Forwarding, KubeProxyCheck],
            [type(each) for each in found.services],
        )
        self.assertEqual(
            dict.fromkeys(("retry", "forwarding", "kube-proxy")),
            {name: problem() for name, problem in found.warnings.items()},
        )
        self.assertTrue(found.kernel.supports(service([1])))
        self.assertFalse(found.kernel.supports(service([1], proxy_protocol=1)))
        self.assertEqual(1, len(found.kernel.endpoints(service([1]))))
        self.assertEqual(KernelStats(None, None), found.kernel.stats(service([1])))
        self.assertEqual({}, found.kernel.totals())
        (problem,) = found.kernel.problems(service([1], least_connections=True))
        self.assertIn("--mode user", problem.text)

    def test_else_this_process(self):
        """With the available rules; connections stay tracked without them while they drain."""
        self.unable = "nft is not installed"
        found = self.found()
        self.assertIs(Mode.USER, found.mode)
        self.assertIsNone(found.kernel)
        self.assertIsInstance(found.rules, ChosenRules)
        self.assertEqual(
            [Service, ConnectionTracking, KubeProxyCheck], [type(each) for each in found.services]
        )

    def test_a_kernel_that_cannot_by_one_family(self):
        """User mode is used: the kernel would accept the rules of neither."""
        self.unable = "no nft_fib_ipv6"
        self.versions = (6,)
        self.assertIs(Mode.USER, self.found().mode)

    def test_machine_without_forwarding(self):
        """User mode is used, unless the command line requests kernel mode."""
        self.patch(data_path, "forwards", lambda versions: False)
        self.assertIs(Mode.USER, self.found().mode)
        self.assertIs(Mode.KERNEL, self.found("--mode=kernel").mode)

    def test_mode_on_the_command_line(self):
        """The kernel's support is not checked."""
        self.assertIs(Mode.USER, self.found("--mode=user").mode)
        self.assertIs(Mode.USER, self.found("--proxy-backend=iptables").mode)
        self.unable = "nft is not installed"
        self.assertIs(Mode.KERNEL, self.found("--mode=kernel").mode)

    def test_where_node_ports_are_held(self):
        """They are claimed where rules redirect them."""
        self.patch(data_path, "PortClaims", lambda own, is_proxy_port, node_ports: node_ports)
        found = self.found("--nodeport-addresses=10.0.0.0/8")
        self.assertEqual((ip_network("10.0.0.0/8"),), found.claims)


class ProxySocketsTests(SynchronousTestCase):
    """What proxy sockets share."""

    def test_it_ends_with_its_service(self):
        """Idle pipes are closed, and connections are no longer checked."""
        closed = []
        self.patch(data_path, "max_connections", lambda: 100)
        self.patch(TcpProxySockets, "close", lambda context: closed.append(context))
        _, _, shared = data_path.proxy_sockets(MemoryReactorClock(), parse(), PortAllocator())
        shared.startService()
        self.assertEqual([], closed)
        shared.stopService()
        self.assertEqual(1, len(closed))


class NodePortTests(SynchronousTestCase):
    """Which ports a proxy socket may not use."""

    def test_they_follow_the_state(self):
        """Cluster IPs have their own ports."""
        source = FakeSource()
        is_claimed = NodePorts(source)
        self.assertFalse(is_claimed(30080))
        source.set(service([1], portals=(Portal(PortalKind.NODE_PORT, None, 30080),)))
        self.assertTrue(is_claimed(30080))
        source.set(service([1], portals=(Portal(PortalKind.NODE_PORT, None, 30081),)))
        self.assertEqual((False, True), (is_claimed(30080), is_claimed(30081)))

    def test_a_port_for_load_balancers(self):
        """A proxy socket there would occupy it, and health checks would fail."""
        source = FakeSource()
        is_claimed = NodePorts(source)
        source.set(service([1]), checks=[HealthCheckNodePort(30082, "default", "shop", 1)])
        self.assertEqual((True, False), (is_claimed(30082), is_claimed(30083)))
