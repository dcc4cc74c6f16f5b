"""Tests of deleting conntrack entries: real packets, in a network namespace."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import ip_address

from zope.interface.verify import verifyObject

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.proxy.conntrack import Conntrack
from yurttunnel.proxy.interfaces import IConntrack, StaleFlows
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink import conntrack_table
from yurttunnel.steering.netlink.conntrack_table import ConntrackTable
from yurttunnel.steering.netlink.netlink_socket import NetlinkError

DNS, NODE_PORT = 53, 30053
OWN = {4: "10.20.0.1", 6: "fd00:20::1"}
PORTAL = {4: "10.96.0.10", 6: "fd00:96::a"}
OTHER_PORTAL = {4: "10.96.0.11", 6: "fd00:96::b"}
PODS = {4: ("10.20.0.2", "10.20.0.3"), 6: ("fd00:20::2", "fd00:20::3")}
PROGRAMS = {4: "iptables", 6: "ip6tables"}


def to(address, port=DNS, endpoint=None, protocol=Protocol.UDP, excluded=()):
    """Return the flows to a portal."""
    return StaleFlows(protocol, address, port, endpoint, frozenset(excluded))


class ConntrackTests(KernelTestCase):
    """Which entries are deleted, and which are not."""

    version = 4
    other_version = 6
    addresses = tuple(each for version in (4, 6) for each in (OWN[version], *PODS[version]))

    def setUp(self):
        """Add portals without rules."""
        super().setUp()
        # Packets there are lost: no machine has that hardware address.
        run("ip", "link", "add", "cloud", "type", "veth", "peer", "name", "far")
        for link in ("cloud", "far"):
            run("ip", "link", "set", link, "addrgenmode", "none", "up")
        for version, length in ((4, 32), (6, 128)):
            for address in (PORTAL[version], OTHER_PORTAL[version]):
                route = (f"{address}/{length}", "dev", "cloud", "src", OWN[version])
                run("ip", f"-{version}", "route", "add", *route)
                neighbour = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
                run("ip", "neighbour", "add", address, *neighbour, "dev", "cloud")
            run(PROGRAMS[version], "-w", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW")
        self.conntrack = Conntrack(run_at_once)
        self.pods = [self.listen(self.version, address) for address in PODS[self.version]]

    def socket(self, version, kind=socket.SOCK_DGRAM):
        """Make a socket that is closed in the end."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        made = socket.socket(family, kind)
        self.addCleanup(made.close)
        made.settimeout(60)
        return made

    def listen(self, version, address):
        """Make a pod that serves DNS."""
        made = self.socket(version)
        made.bind((address, DNS))
        return made

    def lead(self, change, address, pod, port=DNS, version=None, protocol="udp"):
        """Create the rule that redirects a portal to a pod, or remove it."""
        version = version or self.version
        there = PODS[version][pod]
        there = there if version == 4 else f"[{there}]"
        destination = () if address is None else ("-d", address)
        run(
            *(PROGRAMS[version], "-w", "-t", "nat", change, "OUTPUT", "-p", protocol),
            *(*destination, "--dport", str(port)),
            *("-j", "DNAT", "--to-destination", f"{there}:{DNS}"),
        )

    def send(self, address, port=DNS, version=None):
        """Send from a new client."""
        client = self.socket(version or self.version)
        client.connect((address, port))
        client.send(b"?")
        return client

    def connect(self, address, port=DNS):
        """Start to connect from a new client."""
        connecting = self.socket(self.version, socket.SOCK_STREAM)
        connecting.setblocking(False)
        self.assertEqual(errno.EINPROGRESS, connecting.connect_ex((address, port)))
        return connecting

    def flows(self, version=None, protocol="udp"):
        """Return the original destinations of tracked flows, sorted."""
        found = run("conntrack", "-L", "-p", protocol, "-f", f"ipv{version or self.version}")
        return sorted(
            (line.split(" dst=")[1].split()[0], int(line.split(" dport=")[1].split()[0]))
            for line in found.splitlines()
        )

    def delete_entries(self, *stale, version=None):
        """Delete entries at once; return their number."""
        return self.successResultOf(self.conntrack.delete_entries(version or self.version, stale))

    def endpoint(self, pod):
        """Return the endpoint of a pod."""
        return Endpoint(ip_address(PODS[self.version][pod]), DNS)

    def test_interface(self):
        """The class provides its interface."""
        verifyObject(IConntrack, self.conntrack)

    def test_client_follows_the_current_rules(self):
        """Otherwise a client that continues to send would keep the former pod forever."""
        portal = PORTAL[self.version]
        self.lead("-A", portal, 0)
        client = self.send(portal)
        self.assertEqual(b"?", self.pods[0].recv(10))
        self.lead("-D", portal, 0)
        self.lead("-A", portal, 1)
        client.send(b"still there")
        self.assertEqual(b"still there", self.pods[0].recv(20))
        self.assertEqual(1, self.delete_entries(to(portal)))
        client.send(b"moved")
        self.assertEqual(b"moved", self.pods[1].recv(10))

    def test_before_there_were_rules(self):
        """A client that has sent to a portal without rules is served once there are rules."""
        portal = PORTAL[self.version]
        client = self.send(portal)
        self.lead("-A", portal, 0)
        self.delete_entries(to(portal))
        client.send(b"now")
        self.assertEqual(b"now", self.pods[0].recv(10))

    def test_only_the_portal(self):
        """Other portals, ports, protocols and families are left alone."""
        portal, other = PORTAL[self.version], OTHER_PORTAL[self.version]
        self.send(portal)
        self.send(portal)
        self.send(portal, 54)
        self.send(other)
        self.send(PORTAL[self.other_version], version=self.other_version)
        self.connect(portal)
        self.assertEqual(2, self.delete_entries(to(portal)))
        self.assertEqual(sorted([(portal, 54), (other, DNS)]), self.flows())
        self.assertEqual([(portal, DNS)], self.flows(protocol="tcp"))
        self.assertEqual(1, len(self.flows(self.other_version)))
        self.assertEqual(0, self.delete_entries(to(portal)))

    def test_an_attempt_before_there_were_rules(self):
        """A TCP client's packet after a second follows the rules that exist by then."""
        portal, pod = PORTAL[self.version], self.socket(self.version, socket.SOCK_STREAM)
        pod.bind((PODS[self.version][0], DNS))
        pod.listen()
        client = self.connect(portal)
        self.connect(OTHER_PORTAL[self.version])
        self.lead("-A", portal, 0, protocol="tcp")
        self.assertEqual(1, self.delete_entries(to(portal, protocol=Protocol.TCP)))
        self.assertEqual(client.getsockname()[1], pod.accept()[1][1])
        self.assertIn((OTHER_PORTAL[self.version], DNS), self.flows(protocol="tcp"))

    def test_the_port_of_a_reset_connection(self):
        """A client that uses it again is served by the current rules; connections that are open, or
        were closed, are left alone.
        """
        portal, pods = PORTAL[self.version], []
        for address in PODS[self.version]:
            pods.append(self.socket(self.version, socket.SOCK_STREAM))
            pods[-1].bind((address, DNS))
            pods[-1].listen()
        self.lead("-A", portal, 0, protocol="tcp")
        clients = [self.connect(portal) for _ in range(3)]
        accepted = {address[1]: made for made, address in (pods[0].accept() for _ in clients)}
        reset, closed, _ = (accepted[client.getsockname()[1]] for client in clients)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for each in (closed, clients[1], reset):
            each.close()
        pods[0].close()
        self.lead("-D", portal, 0, protocol="tcp")
        self.lead("-A", portal, 1, protocol="tcp")
        client, former = clients[0], clients[0].getsockname()
        for expected, count in ((errno.ECONNREFUSED, 1), (0, 0)):
            client.close()
            client = self.socket(self.version, socket.SOCK_STREAM)
            client.bind(former)
            self.assertEqual(expected, client.connect_ex((portal, DNS)))
            deleted = self.delete_entries(to(portal, protocol=Protocol.TCP))
            self.assertEqual(count, deleted)
        self.assertEqual(former, pods[1].accept()[1])
        self.assertEqual(3, len(self.flows(protocol="tcp")))

    def test_connections_that_are_not_redirected(self):
        """They are left alone, whatever is a portal now; so are connections from elsewhere."""
        address = PODS[self.version][0]
        pod = self.socket(self.version, socket.SOCK_STREAM)
        pod.bind((address, DNS))
        pod.listen()
        client = self.connect(address)
        accepted, _ = pod.accept()
        self.addCleanup(accepted.close)
        self.connect(PORTAL[self.version], 54)
        of_tcp = to(address, protocol=Protocol.TCP), to(None, protocol=Protocol.TCP)
        self.assertEqual(0, self.delete_entries(*of_tcp))
        accepted.send(b"!")
        client.setblocking(True)
        self.assertEqual(b"!", client.recv(1))

    def test_both_protocols(self):
        """Each protocol in its own way."""
        portal = PORTAL[self.version]
        self.send(portal)
        self.connect(portal)
        self.connect(portal)
        self.assertEqual(3, self.delete_entries(to(portal), to(portal, protocol=Protocol.TCP)))

    def test_redirected_attempts(self):
        """They are left alone: their endpoint may be about to answer."""
        portal = PORTAL[self.version]
        run(PROGRAMS[self.version], "-w", "-A", "INPUT", "-p", "tcp", "-j", "DROP")
        self.lead("-A", portal, 0, protocol="tcp")
        self.connect(portal)
        self.assertEqual([(portal, DNS)], self.flows(protocol="tcp"))
        self.assertEqual(0, self.delete_entries(to(portal, protocol=Protocol.TCP)))

    def test_a_removed_endpoint(self):
        """Only flows of the portal that it answered are deleted."""
        portal = PORTAL[self.version]
        for pod, count in ((0, 2), (1, 3)):
            self.lead("-A", portal, pod)
            for _ in range(count):
                self.send(portal)
            self.lead("-D", portal, pod)
        self.assertEqual(5, len(self.flows()))
        self.assertEqual(2, self.delete_entries(to(portal, endpoint=self.endpoint(0))))
        self.assertEqual(0, self.delete_entries(to(portal, endpoint=self.endpoint(0))))
        self.assertEqual(3, self.delete_entries(to(portal, endpoint=self.endpoint(1))))

    def test_all_except_some_endpoints(self):
        """Flows that a previous process sent to an endpoint that still serves continue; those that
        were not translated are deleted.
        """
        portal = PORTAL[self.version]
        for pod in (0, 1):
            self.lead("-A", portal, pod)
            self.send(portal)
            self.lead("-D", portal, pod)
        self.send(portal)
        self.assertEqual(2, self.delete_entries(to(portal, excluded=[self.endpoint(1)])))
        self.assertEqual(0, self.delete_entries(to(portal, excluded=[self.endpoint(1)])))
        self.assertEqual(1, self.delete_entries(to(portal, endpoint=self.endpoint(1))))

    def test_node_ports(self):
        """They are at all addresses of this machine, and of no other machine."""
        here = [OWN[self.version], PODS[self.version][0], {4: "127.0.0.1", 6: "::1"}[self.version]]
        elsewhere = PORTAL[self.version]
        for address in (*here, elsewhere):
            self.send(address, NODE_PORT)
            self.send(address, NODE_PORT + 1)
        self.assertEqual(3, self.delete_entries(to(None, NODE_PORT)))
        self.assertEqual(
            sorted([(elsewhere, NODE_PORT), *((each, NODE_PORT + 1) for each in here)]),
            [each for each in self.flows() if each != (elsewhere, NODE_PORT + 1)],
        )

    def test_many_portals(self):
        """Hundreds of clients of more portals than the kernel filters one by one."""
        portal = PORTAL[self.version]
        ports = range(2000, 2300)
        for port in ports:
            self.send(portal, port)
        self.send(portal)
        self.assertEqual(300, self.delete_entries(*(to(portal, port) for port in ports)))
        self.assertEqual([(portal, DNS)], self.flows())

    def test_flows_to_others(self):
        """Flows to the same port elsewhere, of which there may be very many, are not parsed."""
        parsed, parse = [], conntrack_table._entry

        def entry(*arguments):
            parsed.append(found := parse(*arguments))
            return found

        portal, other = PORTAL[self.version], OTHER_PORTAL[self.version]
        for address in (portal, other, other):
            self.send(address)
        self.patch(conntrack_table, "_entry", entry)
        self.assertEqual(1, self.delete_entries(to(portal)))
        self.assertEqual([ip_address(portal).packed], [each.destination for each in parsed])
        # The addresses of a node port are not known.
        self.assertEqual(0, self.delete_entries(to(None)))
        self.assertEqual(3, len(parsed))

    def test_nothing(self):
        """The kernel is not queried if there is nothing to delete."""
        self.conntrack = Conntrack(None)
        self.assertEqual(0, self.delete_entries())

    def test_a_kernel_that_refuses(self):
        """The error is reported with the fix."""

        def refuse(*arguments):
            raise NetlinkError(errno.EINVAL)

        self.patch(ConntrackTable, "to_ports", refuse)
        failure = self.failureResultOf(
            self.conntrack.delete_entries(self.version, {to(PORTAL[self.version])}), SteeringFailed
        )
        self.assertIn("nf_conntrack_netlink", str(failure.value))


class IPv6Tests(ConntrackTests):
    """The same with IPv6."""

    version = 6
    other_version = 4
