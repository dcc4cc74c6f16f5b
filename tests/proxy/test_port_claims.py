"""Tests of claiming ports of this machine that are portals, in a network namespace."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address, ip_network

from zope.interface.verify import verifyObject

from tests.proxy.services import key, service
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.ops.slices import ITEMS_PER_PIECE, at_once
from yurttunnel.proxy.interfaces import IPortClaims
from yurttunnel.proxy.port_claims import PortClaims
from yurttunnel.proxy.state.virtual_services import Portal, PortalKind, Protocol

OWN, OTHER, OWN_6 = (ip_address(text) for text in ("10.20.0.1", "10.20.0.2", "fd00:20::1"))
FOREIGN = ip_address("203.0.113.1")
ANY = {4: "0.0.0.0", 6: "::"}
KINDS = {Protocol.TCP: socket.SOCK_STREAM, Protocol.UDP: socket.SOCK_DGRAM}
EVERY = [(version, protocol) for version in (4, 6) for protocol in Protocol]


def node_port(port=30080):
    """Make the portal of a node port."""
    return Portal(PortalKind.NODE_PORT, None, port)


def external(address=OWN, port=30080, kind=PortalKind.EXTERNAL_IP):
    """Make the portal of an external address."""
    return Portal(kind, address, port)


class PortClaimsTests(KernelTestCase):
    """What is claimed, and what happens to others that want the same port."""

    addresses = (str(OWN), str(OTHER), str(OWN_6))

    def setUp(self):
        """Start without claims."""
        super().setUp()
        self.own = {OWN, OTHER, OWN_6}
        self.proxy_ports = set()
        self.claims = PortClaims(lambda: self.own, lambda *asked: asked in self.proxy_ports)
        self.addCleanup(self.claims.release)

    def claim(self, portals):
        """Claim the portals of services by their keys; return the problems."""
        services = {
            requested: service(key=requested, portals=tuple(portals[requested]))
            for requested in portals
        }
        return at_once(self.claims.claim(services))

    def bound(self, version=4, protocol=Protocol.TCP, port=30080, address=None, options=()):
        """Return another program's socket on a port; for TCP it listens."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        opened = socket.socket(family, KINDS[protocol])
        self.addCleanup(opened.close)
        if version == 6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for option in options:
            opened.setsockopt(socket.SOL_SOCKET, option, 1)
        opened.bind((str(address or ANY[version]), port))
        if protocol is Protocol.TCP:
            opened.listen()
        return opened

    def is_claimed(self, *arguments, **more):
        """Return whether another program cannot use a port."""
        try:
            self.bound(*arguments, **more).close()
        except OSError as error:
            self.assertEqual(errno.EADDRINUSE, error.errno)
            return True
        return False

    def test_interface(self):
        """The claims provide their interface."""
        verifyObject(IPortClaims, self.claims)

    def test_many_services(self):
        """Thousands of Services are looked at in short pieces of work."""
        keys = [key(f"web-{number}") for number in range(1000)]
        services = {each: service(key=each, portals=(node_port(),)) for each in keys}
        pieces = list(self.claims.claim(services))
        self.assertGreaterEqual(len(pieces), len(keys) // ITEMS_PER_PIECE)

    def test_node_ports(self):
        """Each is claimed on every address of its family, by its protocol; no others are."""
        for version, protocol in EVERY:
            requested = key(protocol=protocol, version=version)
            self.assertEqual({}, self.claim({requested: [node_port()]}))
            for other in EVERY:
                self.assertEqual(other == (version, protocol), self.is_claimed(*other))
            self.assertFalse(self.is_claimed(version, protocol, 30081))

    def restrict_node_ports(self, *networks):
        """Serve node ports at the addresses of some networks only."""
        self.claims = PortClaims(
            lambda: self.own,
            lambda *asked: asked in self.proxy_ports,
            tuple(ip_network(each) for each in networks),
        )
        self.addCleanup(self.claims.release)

    def test_node_ports_at_some_addresses(self):
        """They are claimed only there: another program may use the same port elsewhere."""
        self.restrict_node_ports("10.20.0.1/32", "fd00::/8", "fe80::/10")
        self.own.add(ip_address("fe80::1"))
        for version, protocol in EVERY:
            elsewhere = OTHER if version == 4 else ip_address("::1")
            self.bound(version, protocol, address=elsewhere)
            requested = key(protocol=protocol, version=version)
            self.assertEqual({}, self.claim({requested: [node_port()]}))
            self.assertTrue(self.is_claimed(version, protocol, address=(OWN, OWN_6)[version == 6]))

    def test_node_ports_of_a_family_without_networks(self):
        """They are claimed at all of its addresses, as in the rules; the same with all networks."""
        for networks in (["10.20.0.0/16"], ["::/0", "fd00::/8"]):
            self.restrict_node_ports(*networks)
            self.claim({key(version=6): [node_port()]})
            self.assertTrue(self.is_claimed(6, address=ip_address("::1")))
            self.claims.release()

    def test_node_ports_at_many_addresses(self):
        """They are claimed by one socket for all addresses, not by thousands."""
        self.restrict_node_ports("10.0.0.0/8")
        self.own = {ip_address(f"10.30.0.{number}") for number in range(17)}
        self.assertEqual({}, self.claim({key(): [node_port()]}))
        self.assertTrue(self.is_claimed(address=OWN))

    def test_an_external_address_with_a_node_port_of_another_service(self):
        """Both are served: clients of that address get the first."""
        self.restrict_node_ports("10.20.0.0/16")
        wanted = {key("a"): [external(OWN)], key("b"): [node_port()]}
        self.assertEqual({}, self.claim(wanted))
        self.assertEqual({}, self.claim(dict(reversed(wanted.items()))))

    def test_whoever_shares(self):
        """Options that share ports do not give access to a claimed one."""
        for version, protocol in EVERY:
            self.claim({key(protocol=protocol, version=version): [node_port()]})
            for options in ([socket.SO_REUSEADDR], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]):
                self.assertTrue(self.is_claimed(version, protocol, options=options))
                self.assertTrue(
                    self.is_claimed(version, protocol, address=(OWN, OWN_6)[version == 6])
                )

    def test_own_external_addresses(self):
        """They are claimed only there; those of other machines, and cluster IPs, are not."""
        portals = [
            external(OWN),
            external(OTHER, 443, PortalKind.LOAD_BALANCER_IP),
            external(FOREIGN, 80),
            external(OTHER, 81, PortalKind.CLUSTER_IP),
        ]
        self.assertEqual({}, self.claim({key(): portals}))
        self.assertTrue(self.is_claimed(address=OWN))
        self.assertFalse(self.is_claimed(address=OTHER))
        self.assertTrue(self.is_claimed(address=OTHER, port=443))
        self.assertFalse(self.is_claimed(port=80))
        self.assertFalse(self.is_claimed(port=81))

    def test_added_address(self):
        """It is claimed by the next call."""
        portals = {key(): [external(FOREIGN)]}
        self.claim(portals)
        self.own.add(FOREIGN)
        # It is already known, but not configured yet.
        self.assertEqual({}, self.claim(portals))
        self.network.add(str(FOREIGN))
        self.assertEqual({}, self.claim(portals))
        self.assertTrue(self.is_claimed(address=FOREIGN))

    def test_a_taken_port(self):
        """It is reported, the rest is claimed, and it is tried again."""
        for version, protocol in EVERY:
            taken = self.bound(version, protocol)
            requested = key(protocol=protocol, version=version)
            portals = {requested: [node_port(), node_port(30081)]}
            for _ in range(2):
                [(where, problem)] = self.claim(portals).items()
                self.assertEqual((requested, node_port()), where)
                self.assertIn(f"{protocol.value} port 30080 (IPv{version}) is in use", problem)
                self.assertIn("sport = :30080", problem)
            self.assertTrue(self.is_claimed(version, protocol, 30081))
            taken.close()
            self.assertEqual({}, self.claim(portals))
            self.assertTrue(self.is_claimed(version, protocol))

    def test_a_proxy_port(self):
        """A port of this process itself is not reported as another's; the fix is."""
        for version, protocol in EVERY:
            self.bound(version, protocol)
            self.proxy_ports = {(version, protocol, 30080)}
            requested = key(protocol=protocol, version=version)
            [problem] = self.claim({requested: [node_port()]}).values()
            said = f"{protocol.value} port 30080 (IPv{version}) is a proxy port of this process: "
            self.assertIn(said, problem)
            self.assertNotIn("another process", problem)

    def test_a_port_in_time_wait(self):
        """A port that a server, such as kube-proxy, has just released can be claimed at once."""
        for version in (4, 6):
            address = str(OWN_6 if version == 6 else OWN)
            former = self.bound(version, options=[socket.SO_REUSEADDR])
            with socket.create_connection((address, 30080)) as client:
                served, _ = former.accept()
                # The end that closes first has the connection in TIME_WAIT.
                served.close()
                self.assertEqual(b"", client.recv(1))
            former.close()
            self.assertTrue(self.is_claimed(version))
            self.assertEqual({}, self.claim({key(version=version): [node_port()]}))
            for options in ([], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT]):
                self.assertTrue(self.is_claimed(version, options=options))

    def test_again(self):
        """A claim is kept by the same socket."""
        portals = {key(): [node_port(), external()]}
        self.claim(portals)
        self.patch(socket, "socket", self.refuse)
        self.assertEqual({}, self.claim(portals))

    @staticmethod
    def refuse(*arguments):
        """Make no socket."""
        raise OSError(errno.EMFILE, "Too many open files")

    def test_release(self):
        """Unneeded ports are released; in the end all are."""
        self.claim({key(): [node_port()], key("b"): [node_port(30081)]})
        self.claim({key("b"): [node_port(30081)]})
        self.assertFalse(self.is_claimed())
        self.assertTrue(self.is_claimed(port=30081))
        self.claims.release()
        self.assertFalse(self.is_claimed(port=30081))

    def test_two_services(self):
        """The one that has had a portal keeps it; the other one's problem names the owner."""
        late, early = key("a"), key("b")
        self.claim({early: [node_port()]})
        for _ in range(2):
            problems = self.claim({late: [node_port()], early: [node_port()]})
            self.assertEqual([(late, node_port())], list(problems))
            self.assertIn(str(early), problems[late, node_port()])
        self.assertEqual({}, self.claim({late: [node_port()]}))
        self.assertTrue(self.is_claimed())

    def test_a_node_port_and_an_address(self):
        """The socket for all addresses includes both, in any order of changes."""
        wildcard, there = {key("a"): [node_port()]}, {key("b"): [external()]}
        for first, second in ((wildcard, there), (there, wildcard)):
            self.assertEqual({}, self.claim(first))
            self.assertEqual({}, self.claim({**first, **second}))
            self.assertTrue(self.is_claimed())
            self.assertEqual({}, self.claim(second))
            self.assertTrue(self.is_claimed(address=OWN))
            self.assertEqual(second is wildcard, self.is_claimed(address=OTHER))
            self.claims.release()

    def test_node_port_that_is_in_use_elsewhere(self):
        """At its own address a service still gets the ports that are free there."""
        self.bound(address=OTHER)
        both = {key("a"): [node_port()], key("b"): [external()]}
        for _ in range(2):
            self.assertEqual([(key("a"), node_port())], list(self.claim(both)))
            self.assertTrue(self.is_claimed(address=OWN))

    def test_without_rules(self):
        """Clients of a claimed port are refused at once, for both protocols."""
        for version, protocol in EVERY:
            self.claim({key(protocol=protocol, version=version): [node_port()]})
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            with socket.socket(family, KINDS[protocol]) as client:
                client.settimeout(60)
                with self.assertRaises(ConnectionRefusedError):
                    client.connect((str(OWN if version == 4 else OWN_6), 30080))
                    client.send(b"?")
                    client.recv(1)

    def test_no_descriptors(self):
        """Other reasons are reported as they are."""
        self.patch(socket, "socket", self.refuse)
        [problem] = self.claim({key(): [node_port()]}).values()
        self.assertEqual("TCP port 30080 (IPv4) cannot be claimed: Too many open files", problem)
