"""The nodes of the cluster, by name and by address."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, node
from tests.logged import Logged
from yurttunnel.cluster.nodes import MAX_ADDRESSES, METRICS, Nodes, node_from
from yurttunnel.kube.resources import NODES
from yurttunnel.metrics import MetricRegistry
from yurttunnel.ops.exposition import exposition


class NodeTests(SynchronousTestCase):
    """The cached part of a node."""

    def test_kept(self):
        """Name, addresses by type, the kubelet's port, and readiness are cached."""
        kept = node_from(node("edge-1", "192.0.2.7", ("Hostname", "edge-1.site"), port=10350))
        self.assertEqual("edge-1", kept.name)
        self.assertEqual((("InternalIP", "192.0.2.7"), ("Hostname", "edge-1.site")), kept.addresses)
        self.assertEqual(10350, kept.kubelet_port)
        self.assertTrue(kept.ready)
        self.assertFalse(node_from(node("edge-1", ready=False)).ready)

    def test_heartbeat(self):
        """Fields that change with each heartbeat are not cached, so that they are no change."""
        first, second = node("edge-1", "192.0.2.7"), node("edge-1", "192.0.2.7")
        second["metadata"]["resourceVersion"] = "2"
        second["status"]["conditions"][1]["lastHeartbeatTime"] = "2026-01-01T00:00:00Z"
        second["status"]["images"] = [{"names": ["a"]}]
        self.assertEqual(node_from(first), node_from(second))

    def test_many_addresses(self):
        """A node that reports endless addresses costs no more than one with a few."""
        many = [f"10.0.{number // 256}.{number % 256}" for number in range(1000)]
        kept = node_from(node("edge-1", ("Hostname", "x" * 1000), *many))
        self.assertEqual(many[:MAX_ADDRESSES], [address for _, address in kept.addresses])

    def test_labels(self):
        """Edge nodes are those with either label under either prefix, if it is true."""
        for labels, edge, cloud in (
            ({}, False, False),
            (EDGE, True, False),
            (CLOUD, False, True),
            ({"alibabacloud.com/is-edge-worker": "true"}, True, False),
            ({"alibabacloud.com/is-edge-worker": "false"}, False, True),
            ({"openyurt.io/edge-enable-reverseTunnel-client": "true"}, True, False),
            ({"openyurt.io/edge-enable-reverseTunnel-client": "false"}, False, False),
            ({**CLOUD, "openyurt.io/edge-enable-reverseTunnel-client": "true"}, True, False),
            ({"openyurt.io/is-edge-worker": "yes"}, False, False),
        ):
            kept = node_from(node("n", labels=labels))
            self.assertEqual((edge, cloud), (kept.edge, kept.cloud), labels)

    def test_malformed(self):
        """Malformed fields are treated as missing."""
        for status in (
            None,
            [],
            {"addresses": None, "conditions": "Ready"},
            {"addresses": [None, "192.0.2.7"], "conditions": [1]},
            {"daemonEndpoints": {"kubeletEndpoint": {"Port": "10250"}}},
            {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}},
            {"daemonEndpoints": None},
        ):
            kept = node_from({"metadata": {"name": "n", "labels": None}, "status": status})
            self.assertEqual(("n", (), 10250), (kept.name, kept.addresses, kept.kubelet_port))

    def test_called(self):
        """A node is recognized by its name and its addresses, in any spelling."""
        kept = node_from(node("edge-1", "2001:db8::7", ("Hostname", "Edge-1.Site")))
        for host in ("edge-1", "EDGE-1", "edge-1.", "2001:DB8:0::7", "edge-1.site"):
            self.assertTrue(kept.has_host(host), host)
        for host in ("edge-2", "2001:db8::8", "no host", ""):
            self.assertFalse(kept.has_host(host), host)


class NodesTests(SynchronousTestCase):
    """Finding nodes."""

    def setUp(self):
        """Create the index of an empty cluster."""
        self.informers = FakeInformers()
        self.nodes = Nodes(self.informers)

    def put(self, *args, **kwargs):
        """Create or change a node."""
        self.informers.put(NODES, node(*args, **kwargs))

    def found(self, host):
        """Return the names of the nodes that are found."""
        return sorted(each.name for each in self.nodes.find(host))

    def test_name(self):
        """A node is found by its name and its other names, in any case."""
        self.put("edge-1", "192.0.2.7", ("Hostname", "box"), ("InternalDNS", "box.site-7"))
        for host in ("edge-1", "Edge-1", "edge-1.", "box", "box.site-7"):
            self.assertEqual(["edge-1"], self.found(host), host)
        self.assertEqual([], self.found("edge-2"))
        self.assertEqual([], self.found("a b"))

    def test_name_first(self):
        """The name of a node finds only that node, whatever names others report."""
        self.put("edge-1", "192.0.2.7")
        self.put("edge-2", "192.0.2.8", ("Hostname", "edge-1"))
        self.assertEqual(["edge-1"], self.found("edge-1"))

    def test_named_like_an_address(self):
        """A node named like an address owns that name, but the address may be another's, too."""
        self.put("10.0.0.9", "10.0.0.10")
        self.assertEqual(["10.0.0.9"], self.found("10.0.0.9"))
        self.put("edge-3", "10.0.0.9")
        for host in ("10.0.0.9", "::ffff:10.0.0.9"):
            self.assertEqual(["10.0.0.9", "edge-3"], self.found(host), host)
            self.assertTrue(self.nodes.belongs_to_other_node("edge-3", host), host)
            self.assertFalse(self.nodes.belongs_to_other_node("10.0.0.9", host), host)
        self.assertEqual(["10.0.0.9"], self.found("10.0.0.10"))
        self.assertTrue(self.nodes.belongs_to_other_node("edge-3", "10.0.0.10"))

    def test_address(self):
        """A node is found by each of its addresses, in any spelling."""
        self.put("edge-1", "192.0.2.7", "2001:db8::7", ("ExternalIP", "198.51.100.1"))
        for host in ("192.0.2.7", "2001:DB8:0:0::7", "::ffff:192.0.2.7", "198.51.100.1"):
            self.assertEqual(["edge-1"], self.found(host), host)

    def test_several(self):
        """All nodes with an address are found; those with it as InternalIP take precedence."""
        self.put("edge-1", "192.168.1.10", ("ExternalIP", "198.51.100.1"))
        self.put("edge-2", "192.168.1.10", ("ExternalIP", "198.51.100.1"))
        self.put("gateway", "198.51.100.1")
        self.assertEqual(["edge-1", "edge-2"], self.found("192.168.1.10"))
        self.assertEqual(["gateway"], self.found("198.51.100.1"))
        self.informers.delete(NODES, "gateway")
        self.assertEqual(["edge-1", "edge-2"], self.found("198.51.100.1"))

    def test_anothers(self):
        """A host belongs to other nodes unless it is also the node's own; unknown ones to none."""
        self.put("edge-1", "192.0.2.7", "192.0.2.9", ("Hostname", "box"))
        self.put("edge-2", "192.0.2.8", "192.0.2.9", ("Hostname", "edge-1"))
        for host in ("192.0.2.7", "::ffff:192.0.2.7", "box", "edge-1", "Edge-1."):
            self.assertTrue(self.nodes.belongs_to_other_node("edge-2", host), host)
            self.assertFalse(self.nodes.belongs_to_other_node("edge-1", host), host)
        for host in ("192.0.2.8", "192.0.2.9", "edge-2", "192.0.2.10", "camera", "a b"):
            self.assertFalse(self.nodes.belongs_to_other_node("edge-2", host), host)
        self.assertTrue(self.nodes.belongs_to_other_node("edge-3", "192.0.2.9"))
        self.put("edge-2", "192.0.2.7")
        self.assertFalse(self.nodes.belongs_to_other_node("edge-2", "192.0.2.7"))

    def test_the_name_of_a_node_that_is_not_known_yet(self):
        """A node's name is its own, even before it is known and if another node reports it."""
        self.put("edge-1", "192.0.2.7", ("Hostname", "edge-2"))
        self.assertFalse(self.nodes.belongs_to_other_node("edge-2", "edge-2"))

    def test_names_of_the_server(self):
        """The server's names find no node, in any spelling, whatever nodes claim."""
        self.nodes = Nodes(self.informers, frozenset({"tunnel.example"}))
        self.put("edge-1", "192.0.2.7", ("Hostname", "Tunnel.Example."), ("InternalDNS", "box"))
        for _ in range(2):
            for host in ("tunnel.example", "TUNNEL.Example."):
                self.assertEqual([], self.found(host), host)
                self.assertTrue(self.nodes.belongs_to_other_node("edge-1", host), host)
            self.assertEqual(["edge-1"], self.found("box"))
            self.put("tunnel.example", "192.0.2.8")
        self.assertEqual(["tunnel.example"], self.found("192.0.2.8"))
        self.assertFalse(self.nodes.belongs_to_other_node("tunnel.example", "tunnel.example"))

    def test_changes(self):
        """A changed node is found by its current hosts, and a deleted one by none."""
        self.put("edge-1", "192.0.2.7")
        self.put("edge-1", "192.0.2.8")
        self.assertEqual([], self.found("192.0.2.7"))
        self.assertEqual(["edge-1"], self.found("192.0.2.8"))
        self.informers.delete(NODES, "edge-1")
        self.assertEqual([], self.found("192.0.2.8"))
        self.assertEqual([], self.found("edge-1"))
        self.assertIsNone(self.nodes.get("edge-1"))

    def test_not_synced(self):
        """Until all nodes are loaded, a name finds its node but an address finds none."""
        informers = FakeInformers(synced=False)
        nodes = Nodes(informers)
        informers.put(NODES, node("edge-1", "192.0.2.7"))
        self.assertEqual([], list(nodes.find("192.0.2.7")))
        self.assertEqual(["edge-1"], [each.name for each in nodes.find("edge-1")])
        informers.complete()
        self.assertEqual(["edge-1"], [each.name for each in nodes.find("192.0.2.7")])

    def test_address_of_every_machine(self):
        """No node is found by a loopback address, whatever it reports."""
        self.informers.put(NODES, node("edge-1", "10.0.0.1", "127.0.0.1", "::1", "169.254.2.1"))
        for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.2.1"):
            self.assertEqual([], list(self.nodes.find(host)), host)
        self.assertEqual(["edge-1"], [each.name for each in self.nodes.find("10.0.0.1")])

    def test_bad_address(self):
        """An invalid address is logged, and the node is found by the others.

        It is logged once, however often the node's readiness changes.
        """
        lines = Logged(self)
        self.put("edge-1", "192.0.2.7", ("Hostname", "no host"))
        self.assertEqual(["edge-1"], self.found("192.0.2.7"))
        self.put("edge-1", "192.0.2.7", ("Hostname", "no host"), ready=False)
        [line] = lines
        self.assertIn("edge-1", line)
        self.assertIn("'no host'", line)

    def test_cloud_addresses(self):
        """Ready nodes outside of the tunnel are counted by their first address, as in 1.2."""
        self.put("cloud-1", "192.0.2.1", "192.0.2.101", labels=CLOUD)
        self.put("cloud-2", "192.0.2.2")
        self.put("same-as-2", "192.0.2.2")
        self.put("no-address", labels=CLOUD)
        self.put("not-ready", "192.0.2.3", ready=False)
        self.put("edge-1", "192.0.2.4", labels=EDGE)
        self.assertEqual(2, self.nodes.cloud_addresses())

    def test_metric(self):
        """A scrape has the count under the name of yurttunnel 1.2."""
        self.put("cloud-1", "192.0.2.1", labels=CLOUD)
        registry = MetricRegistry()
        registry.add(METRICS, lambda: self.nodes)
        self.assertIn("yurttunnel_server_cloud_nodes_counter 1\n", exposition(registry).decode())
