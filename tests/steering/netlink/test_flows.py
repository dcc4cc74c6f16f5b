"""Tests of cutting connections, in memory and in the kernel."""

from __future__ import annotations

import errno
import socket
import sys
from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.e2e.network.namespaces import run
from tests.steering.fakes import FakeFlows
from tests.steering.netlink.contract_flows import (
    CLOUD,
    EDGE,
    EDGE_6,
    KUBELET,
    OTHER,
    OWN,
    OWN_6,
    SERVER,
    FlowsContract,
    flow,
)
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Target
from yurttunnel.steering.interfaces import IFlows
from yurttunnel.steering.marks import SocketMarker
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.conntrack_table import ConntrackTable
from yurttunnel.steering.netlink.flows import Flows
from yurttunnel.steering.netlink.netlink_socket import NetlinkError

ELSEWHERE = ip_address("10.30.0.1")
"""An address in another network namespace, which is not one of this machine."""
SECONDS = 60.0
"""The timeout of a connection on a loaded machine."""


def family(address):
    """Return the family of an address."""
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


class FakeFlowsTests(FlowsContract, SynchronousTestCase):
    """The fake behaves as the kernel does."""

    def setUp(self):
        """Make it."""
        self.flows = FakeFlows()

    def connect(self, flow):
        """Add a connection."""
        self.flows.flows.append(flow)

    def test_interface(self):
        """The fake provides its interface."""
        verifyObject(IFlows, self.flows)

    def test_failing_on_demand(self):
        """Every call fails while the test requests it."""
        self.flows.failure = SteeringFailed("it is broken")
        self.failureResultOf(self.flows.cut(4, {KUBELET}, bool), SteeringFailed)
        self.assertEqual([(4, frozenset({KUBELET}))], self.flows.calls)


class KernelFlowsTests(FlowsContract, KernelTestCase):
    """The kernel's table: real connections, and real rules that redirect them."""

    addresses = tuple(str(address) for address in (EDGE, CLOUD, OWN, EDGE_6, OWN_6))

    def setUp(self):
        """Add rules, without which the kernel tracks nothing."""
        super().setUp()
        for program in ("iptables", "ip6tables"):
            run(program, "-w", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "INVALID")
        self.flows = Flows(run_at_once)
        self.listeners = {}

    def connect(self, flow):
        """Connect; a temporary rule redirects the connection to the answering end."""
        target, desired = flow.responder, Target(flow.destination, flow.port)
        self.listen(target)
        if target != desired:
            self.lead("-A", desired, target)
        client = self.make(socket.socket(family(flow.destination)))
        client.connect((str(flow.destination), flow.port))
        if target != desired:
            self.lead("-D", desired, target)
        server, _ = self.listeners[target].accept()
        return client, self.make(server)

    def listen(self, target):
        """Listen there, if nothing does yet."""
        if target in self.listeners:
            return
        listener = self.make(socket.socket(family(target.address)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(target.address), target.port))
        listener.listen()
        self.listeners[target] = listener

    def make(self, made):
        """Make a socket that is closed in the end."""
        self.addCleanup(made.close)
        made.settimeout(SECONDS)
        return made

    def lead(self, change, desired, target):
        """Create a rule that redirects connections, or remove it."""
        program = "iptables" if target.address.version == 4 else "ip6tables"
        there = f"{target.address}" if target.address.version == 4 else f"[{target.address}]"
        run(
            *(program, "-w", "-t", "nat", change, "OUTPUT", "-p", "tcp"),
            *("-d", str(desired.address), "--dport", str(desired.port)),
            *("-j", "DNAT", "--to-destination", f"{there}:{target.port}"),
        )

    def sends(self, client, server):
        """Send data; return whether it arrives."""
        client.send(b"?")
        self.assertEqual(b"?", server.recv(10))

    def test_interface(self):
        """The fake provides its interface."""
        verifyObject(IFlows, self.flows)

    def test_a_node_moves_behind_the_tunnel(self):
        """A connection that should be redirected now is ended at once, even if it is idle."""
        client, server = self.connect(flow(EDGE))
        self.sends(client, server)
        self.listen(Target(OWN, SERVER))
        self.lead("-A", Target(EDGE, KUBELET), Target(OWN, SERVER))
        self.sends(client, server)
        self.assertEqual(1, self.cut(lambda each: each.responder.address == EDGE))
        self.assertRaises(ConnectionAbortedError, client.recv, 10)
        again, answering = self.connect_redirected(EDGE)
        self.sends(again, answering)

    def test_no_socket_to_end(self):
        """A connection whose socket must not be destroyed is reset with its next packet."""
        client, _ = self.connect(flow(EDGE))
        # As with the server's own; a forwarded connection has no socket here either.
        SocketMarker()(client)
        self.listen(Target(OWN, SERVER))
        self.lead("-A", Target(EDGE, KUBELET), Target(OWN, SERVER))
        self.assertEqual(1, self.cut(lambda each: each.responder.address == EDGE))
        client.send(b"?")
        self.assertRaises(ConnectionResetError, client.recv, 10)

    def connect_redirected(self, address):
        """Connect with a rule that redirects to the server."""
        client = self.make(socket.socket())
        client.connect((str(address), KUBELET))
        server, _ = self.listeners[Target(OWN, SERVER)].accept()
        return client, self.make(server)

    def test_a_node_leaves_the_tunnel(self):
        """A connection that was redirected is ended, and a new one goes to the node."""
        client, server = self.connect(flow(EDGE, responder=Target(OWN, SERVER)))
        self.listen(Target(EDGE, KUBELET))
        self.sends(client, server)
        self.assertEqual(1, self.cut(lambda each: each.responder.address == OWN))
        self.assertRaises(ConnectionAbortedError, client.recv, 10)
        self.sends(*self.connect(flow(EDGE)))

    def test_connections_of_others_are_not_touched(self):
        """Correct connections continue; other ports and protocols are not affected either."""
        kept = [self.connect(flow(CLOUD)), self.connect(flow(EDGE, OTHER))]
        datagrams = self.make(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.sendto(b"?", (str(EDGE), KUBELET))
        self.connect(flow(EDGE))
        self.assertEqual(1, self.cut(lambda each: each.destination == EDGE))
        for client, server in kept:
            self.sends(client, server)
        self.assertIn("udp", run("conntrack", "-L", "-p", "udp"))

    def test_a_redirected_connection(self):
        """This machine answers it, at the port of the listener."""
        loopback = Target(ip_address("127.0.0.1"), SERVER)
        self.listen(loopback)
        rule = ("-p", "tcp", "--dport", str(KUBELET), "-j", "REDIRECT", "--to-ports", str(SERVER))
        run("iptables", "-w", "-t", "nat", "-A", "OUTPUT", *rule)
        client = self.make(socket.socket())
        client.connect((str(EDGE), KUBELET))
        self.assertEqual({flow(EDGE, responder=loopback)}, self.seen())

    def test_loopback_is_local(self):
        """So are addresses that no interface has."""
        self.listen(Target(CLOUD, KUBELET))
        client = self.make(socket.socket())
        client.bind(("127.0.0.77", 0))
        client.connect((str(CLOUD), KUBELET))
        self.assertEqual({flow(CLOUD)}, self.seen())

    def test_a_connection_from_elsewhere(self):
        """A connection from another machine, or a pod, is not local."""
        pod = self.linked_pod()
        self.listen(Target(CLOUD, KUBELET))
        connect = f"exec 3<>/dev/tcp/{CLOUD}/{KUBELET}"
        pod.run("bash", "-c", connect)
        self.assertEqual({flow(CLOUD, local=False)}, self.seen())

    def test_a_listener_at_the_source_port(self):
        """A listener on the source port of another program's connection continues to listen."""
        pod = self.linked_pod()
        self.listen(Target(CLOUD, KUBELET))
        listener = self.make(socket.create_server(("", 0)))
        port = listener.getsockname()[1]
        connect = f"""
import socket
connected = socket.create_connection(("{CLOUD}", {KUBELET}), source_address=("{ELSEWHERE}", {port}))
"""
        pod.run(sys.executable, "-c", connect)
        self.assertEqual(1, self.cut(lambda each: True))
        client = self.make(socket.create_connection(("127.0.0.1", port)))
        server, _ = listener.accept()
        self.sends(client, self.make(server))

    def test_a_connection_to_elsewhere(self):
        """A connection to another machine is not to this machine itself."""
        self.pod()
        run("ip", "route", "add", str(ELSEWHERE), "dev", "pod", "src", str(OWN))
        # Nothing answers there; the connection is tracked all the same.
        neighbour = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        run("ip", "neighbour", "add", str(ELSEWHERE), *neighbour, "dev", "pod")
        client = self.make(socket.socket())
        client.setblocking(False)
        self.assertEqual(errno.EINPROGRESS, client.connect_ex((str(ELSEWHERE), KUBELET)))
        self.assertEqual({flow(ELSEWHERE, to_self=False)}, self.seen())

    def pod(self):
        """Make a separate network with a link to this one."""
        pod = self.network.add_machine("pod")
        self.network.here.link("pod", pod, "eth0")
        return pod

    def linked_pod(self):
        """Make one that reaches this machine from :data:`ELSEWHERE`."""
        pod = self.pod()
        self.network.here.set_up("pod", "10.30.0.254")
        pod.set_up("eth0", str(ELSEWHERE), gateways=("10.30.0.254",))
        return pod

    def test_zones(self):
        """A connection in a separate zone is cut, too."""
        for chain in ("OUTPUT", "PREROUTING"):
            zone = ("-p", "tcp", "--dport", str(OTHER), "-j", "CT", "--zone", "7")
            run("iptables", "-w", "-t", "raw", "-A", chain, *zone)
        self.connect(flow(EDGE, OTHER))
        self.assertEqual({flow(EDGE, OTHER)}, self.seen((OTHER,)))
        self.cut(lambda each: True, (OTHER,))
        self.assertEqual(set(), self.seen((OTHER,)))

    def test_one_that_ends_meanwhile(self):
        """It is not counted, and is no error."""
        self.connect(flow(EDGE))

        def is_wrong(each):
            run("conntrack", "-D", "-p", "tcp", "--orig-port-dst", str(KUBELET))
            return True

        self.assertEqual(0, self.cut(is_wrong))

    def test_many_ports(self):
        """Connections to the given ports are cut, even if the kernel does not filter them."""
        for port in (KUBELET, OTHER):
            self.connect(flow(EDGE, port))
        many = {OTHER, *range(20_000, 20_020)}
        self.assertEqual({flow(EDGE, OTHER)}, self.seen(many))
        self.assertEqual(1, self.cut(lambda each: True, many))
        self.assertEqual({flow(EDGE)}, self.seen())

    def test_hundreds(self):
        """There are more than one reply holds, and more than are deleted at once."""
        for _ in range(400):
            self.connect(flow(EDGE))
        self.assertEqual(400, self.cut(lambda each: True))
        self.assertEqual(set(), self.seen())

    def test_sets_and_tables_are_those_of_the_calling_thread(self):
        """Other network namespaces are not affected."""
        self.connect(flow(EDGE))
        AddressSets(run_at_once, Clock()).put("here", 4, ())
        other = KernelTestCase()
        other.setUp()
        try:
            self.assertEqual(set(), self.seen())
            self.assertEqual("", run("ipset", "list", "-n"))
        finally:
            other.doCleanups()
        self.assertEqual({flow(EDGE)}, self.seen())


class OtherKernelTests(KernelTestCase):
    """Kernels without some features, as far as their replies show."""

    def refusal(self, code):
        """Cut while the kernel refuses to return its table; return the error."""

        def refuse(table, version, protocol, ports):
            raise NetlinkError(code)

        self.patch(ConntrackTable, "to_ports", refuse)
        cut = Flows(run_at_once).cut(4, {KUBELET}, bool)
        return str(self.failureResultOf(cut, SteeringFailed).value)

    def test_a_kernel_without_its_table(self):
        """The error says so, and what to do."""
        self.assertIn("nf_conntrack_netlink", self.refusal(errno.EINVAL))

    def test_without_the_right_to(self):
        """The error says which capability is required."""
        self.assertIn("NET_ADMIN", self.refusal(errno.EPERM))
