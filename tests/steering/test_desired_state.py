"""Tests of the desired state of the firewall."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, node
from tests.steering.manager_support import INSECURE, INSECURE6, SECURE, SECURE6, addresses
from yurttunnel.cluster.nodes import node_from
from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.steering.desired_state import Listeners, SteeringSettings, desired, not_intercepted
from yurttunnel.steering.interception import Interception, Match, Target

PASSTHROUGH = Target(ip_address("10.0.0.1"), 10261)


def settings(listeners=None, pods=False, passthrough_ports=(10250,)):
    """Return the settings of the command line."""
    return SteeringSettings(
        {4: listeners or Listeners(SECURE, INSECURE)}, None, pods, frozenset(passthrough_ports), 60
    )


def of(nodes, ports=None, **changes):
    """Return the desired state of IPv4."""
    made = settings(**changes)
    return desired(made, Match.EDGE_SET, map(node_from, nodes), ports or Ports(), ())[4]


class AddressTests(SynchronousTestCase):
    """Which addresses are on which side."""

    def sides(self, *nodes, version=4, services=()):
        """Return the addresses of edge and cloud nodes."""
        kept = map(node_from, nodes)
        found = desired(settings(), Match.EDGE_SET, kept, Ports(), services)[version]
        return found.edge, found.cloud

    def test_labels(self):
        """Nodes with either label are edge nodes; all others are cloud nodes."""
        edge, cloud = self.sides(
            node("a", "192.0.2.1", labels=EDGE),
            node("b", "192.0.2.2", labels={"openyurt.io/edge-enable-reverseTunnel-client": "true"}),
            node("c", "192.0.2.3", labels={"openyurt.io/is-edge-worker": "false"}),
            node("d", "192.0.2.4"),
        )
        self.assertEqual(addresses("192.0.2.1", "192.0.2.2"), edge)
        self.assertEqual(addresses("192.0.2.3", "192.0.2.4"), cloud)

    def test_all_addresses(self):
        """All internal and external addresses of both families are used, and no others."""
        nodes = [
            node(
                "a",
                "192.0.2.1",
                "2001:db8::1",
                "192.0.2.2",
                ("ExternalIP", "198.51.100.1"),
                ("ExternalIP", "2001:db8:1::1"),
                ("Hostname", "192.0.2.9"),
                ("InternalDNS", "a.example"),
                labels=EDGE,
            )
        ]
        self.assertEqual(addresses("192.0.2.1", "192.0.2.2", "198.51.100.1"), self.sides(*nodes)[0])
        self.assertEqual(
            addresses("2001:db8::1", "2001:db8:1::1"), self.sides(*nodes, version=6)[0]
        )

    def test_reserved(self):
        """Some clouds already use addresses that are reserved for the future."""
        self.assertEqual(addresses("240.0.0.1"), self.sides(node("a", "240.0.0.1", labels=EDGE))[0])

    def test_useless(self):
        """Invalid addresses, and those without a single machine, are ignored."""
        for text in (
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::ffff:255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "no address",
            "",
        ):
            for labels in (EDGE, {}):
                for version in (4, 6):
                    sides = self.sides(node("a", text, labels=labels), version=version)
                    self.assertEqual((frozenset(), frozenset()), sides, text)

    def test_services(self):
        """Cluster addresses of the server's Services are never a node's, whatever nodes report."""
        services = addresses("10.96.0.7", "fd00::7")
        nodes = [
            node("edge-1", "192.0.2.1", "10.96.0.7", "fd00::7", labels=EDGE),
            node("cloud-1", "192.0.2.2", "10.96.0.7"),
        ]
        edge, cloud = self.sides(*nodes, services=services)
        self.assertEqual((addresses("192.0.2.1"), addresses("192.0.2.2")), (edge, cloud))
        self.assertEqual(
            (frozenset(), frozenset()), self.sides(*nodes, version=6, services=services)
        )

    def test_shared(self):
        """An address of both an edge and a cloud node is that of the cloud node, and reported."""
        nodes = [
            node("a", "192.168.0.1", ("ExternalIP", "198.51.100.1"), labels=EDGE),
            node("gateway", "198.51.100.1"),
        ]
        edge, cloud = self.sides(*nodes)
        self.assertEqual(addresses("192.168.0.1"), edge)
        self.assertEqual(addresses("198.51.100.1"), cloud)
        [sentence] = not_intercepted(settings(), of(nodes))
        self.assertIn("connections to 198.51.100.1 are not intercepted", sentence)
        self.assertIn("the cloud node gateway as well as of the edge node a", sentence)

    def test_all_shared(self):
        """It is reported even if nothing is left to intercept."""
        nodes = [node("a", "192.0.2.1", labels=EDGE), node("b", "192.0.2.1")]
        self.assertTrue(of(nodes).is_empty)
        self.assertEqual(1, len(not_intercepted(settings(), of(nodes))))

    def test_many_shared(self):
        """A few are reported one by one, always the same."""
        nodes = [
            node(f"{kind}-{number:02}", f"192.0.2.{number}", labels=labels)
            for kind, labels in (("edge", EDGE), ("cloud", {}))
            for number in range(30)
        ]
        found = not_intercepted(settings(), of(nodes))
        self.assertEqual(11, len(found))
        self.assertEqual("the same applies to 20 more addresses", found[-1])
        self.assertEqual(found, not_intercepted(settings(), of(reversed(nodes))))

    def test_many_of_a_node(self):
        """The first 16 are used, and the rest is reported with the name of the node."""
        many = [f"192.0.2.{number}" for number in range(16)]
        self.assertEqual(
            (), not_intercepted(settings(), of([node("a", *many, *many, labels=EDGE)]))
        )
        nodes = [node("a", *many, "198.51.100.1", "2001:db8::1", labels=EDGE)]
        found = of(nodes)
        self.assertEqual(addresses(*many), found.edge)
        [sentence] = not_intercepted(settings(), found)
        self.assertIn(
            "some IPv4 addresses of node a are ignored, because it has more than 16", sentence
        )
        kept = map(node_from, nodes)
        other = desired(settings(), Match.EDGE_SET, kept, Ports(), ())[6]
        self.assertEqual(frozenset(), other.edge)
        [sentence] = not_intercepted(settings(), other)
        self.assertIn("IPv6 addresses of node a are ignored", sentence)

    def test_many_nodes_with_too_many_addresses(self):
        """Ten such nodes are reported one by one, in order, and then the number of the others."""
        many = [f"192.0.2.{number}" for number in range(17)]
        for count, more in ((10, []), (12, ["the same applies to IPv4 addresses of 2 more nodes"])):
            nodes = [node(f"n-{number:02}", *many, labels=EDGE) for number in range(count)]
            found = not_intercepted(settings(), of(reversed(nodes)))
            self.assertEqual(
                [f"n-{number:02}" for number in range(10)],
                [sentence.split()[5] for sentence in found[:10]],
            )
            self.assertEqual(more, list(found[10:]))

    def test_notes_change_no_rules(self):
        """States that differ only in their notes are equal for the firewall."""
        self.assertEqual(
            Interception(4, Match.EDGE_SET, notes=("a",)), Interception(4, Match.EDGE_SET)
        )

    def test_not_ready(self):
        """A node that is not ready counts all the same."""
        edge, cloud = self.sides(
            node("a", "192.0.2.1", labels=EDGE, ready=False), node("b", "192.0.2.2", ready=False)
        )
        self.assertEqual(addresses("192.0.2.1"), edge)
        self.assertEqual(addresses("192.0.2.2"), cloud)

    def test_mapped(self):
        """An IPv4-mapped IPv6 address is an IPv4 address."""
        edge, _ = self.sides(node("a", "::ffff:192.0.2.1", labels=EDGE))
        self.assertEqual(addresses("192.0.2.1"), edge)


class PortTests(SynchronousTestCase):
    """Targets of ports."""

    def test_kubelet(self):
        """The kubelet's ports always lead to the server, by their protocol."""
        self.assertEqual({10250: SECURE, 10255: INSECURE}, of([]).ports)

    def test_configured(self):
        """Configured ports lead to the listener for their protocol."""
        ports = Ports(http=frozenset({9100, 9101}), https=frozenset({9443}))
        found = of([], ports).ports
        self.assertEqual((INSECURE, INSECURE), (found[9100], found[9101]))
        self.assertEqual(SECURE, found[9443])

    def test_passthrough(self):
        """Ports that are passed through lead there, whatever they are otherwise."""
        listeners = Listeners(SECURE, INSECURE, PASSTHROUGH)
        ports = Ports(http=frozenset({9100}), https=frozenset({9443}))
        found = of([], ports, listeners=listeners, passthrough_ports=(10250, 9443, 22)).ports
        self.assertEqual(
            {
                22: PASSTHROUGH,
                9100: INSECURE,
                9443: PASSTHROUGH,
                10250: PASSTHROUGH,
                10255: INSECURE,
            },
            found,
        )

    def test_no_listener(self):
        """A family in which the server does not listen has no ports, so nothing is intercepted."""
        nodes = [node_from(node("a", "2001:db8::1", labels=EDGE))]
        found = desired(settings(), Match.CLOUD_RETURN, nodes, Ports(), ())[6]
        self.assertTrue(found.is_empty)
        [sentence] = not_intercepted(settings(), found)
        self.assertIn("does not listen on IPv6: see --bind-address", sentence)

    def test_no_listener_needed(self):
        """A family that no edge node has is not reported."""
        found = desired(settings(), Match.CLOUD_RETURN, [], Ports(), ())[6]
        self.assertEqual((), not_intercepted(settings(), found))

    def test_pods(self):
        """The same applies to pods, except for listeners on loopback, which they do not reach."""
        nodes = [node("a", "192.0.2.1", labels=EDGE)]
        found = of(nodes, Ports(http=frozenset({9100})), pods=True)
        self.assertEqual({10250: SECURE}, found.pod_ports)
        [sentence] = not_intercepted(settings(pods=True), found)
        self.assertIn("pods to port 9100, 10255 are not intercepted", sentence)
        self.assertIn("--insecure-bind-address", sentence)

    def test_pods_everywhere(self):
        """Pods reach listeners on all addresses as well."""
        listeners = Listeners(Target(None, 10263), Target(None, 10264))
        found = of([node("a", "192.0.2.1", labels=EDGE)], listeners=listeners, pods=True)
        self.assertEqual(found.ports, found.pod_ports)
        self.assertEqual((), not_intercepted(settings(listeners, pods=True), found))

    def test_without_pods(self):
        """Without the flag pods are not intercepted, and nothing is reported about them."""
        found = of([node("a", "192.0.2.1", labels=EDGE)])
        self.assertEqual({}, found.pod_ports)
        self.assertEqual((), not_intercepted(settings(), found))

    def test_families(self):
        """Each family has its own listeners."""
        listeners = {4: Listeners(SECURE, INSECURE), 6: Listeners(SECURE6, INSECURE6)}
        made = SteeringSettings(listeners, Match.CLOUD_RETURN, False, frozenset(), 60)
        found = desired(made, Match.CLOUD_RETURN, [], Ports(), ())
        self.assertEqual({10250: SECURE6, 10255: INSECURE6}, found[6].ports)
        self.assertEqual(
            Interception(4, Match.CLOUD_RETURN, ports={10250: SECURE, 10255: INSECURE}), found[4]
        )
