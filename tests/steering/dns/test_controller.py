"""Tests of the DNS controller: the records follow the nodes."""

from __future__ import annotations

from twisted.internet.defer import fail

from tests.cluster.fakes import CLOUD, EDGE, node
from tests.steering.dns.support import (
    HTTPS,
    NAME,
    NAMESPACE,
    PERIOD,
    SERVICE,
    ControllerTestCase,
    service,
)
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, SERVICES
from yurttunnel.steering.dns.controller import MAX_REPORTED


class RecordTests(ControllerTestCase):
    """The records follow the nodes."""

    def test_the_config_map_is_made(self):
        """At the start it has the records of all nodes, and nothing else."""
        self.start()
        found = self.client.look(CONFIG_MAPS, NAME, NAMESPACE)
        self.assertEqual({"tunnel-nodes": "10.96.0.5\tedge-1\n192.0.2.1\tcloud-1"}, found["data"])
        self.assertEqual([("create", "configmaps", NAME)], self.writes())
        self.assertIsNone(self.controller.problem())

    def test_nothing_is_written_when_equal(self):
        """D4: the periodic check of everything writes nothing."""
        self.start()
        self.settle(PERIOD + 10)
        self.stop()
        self.start()
        self.assertEqual(1, len(self.writes()))

    def test_what_is_new_changed_or_gone(self):
        """A node that is added, moved behind the tunnel or deleted changes the records."""
        self.start()
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle()
        self.assertIn("10.96.0.5\tedge-2", self.text())
        self.client.put(NODES, node("cloud-1", "192.0.2.1", labels=EDGE))
        self.settle()
        self.assertIn("10.96.0.5\tcloud-1", self.text())
        self.client.remove(NODES, "edge-2")
        self.settle()
        self.assertEqual("10.96.0.5\tcloud-1\n10.96.0.5\tedge-1", self.text())

    def test_an_address_that_changes(self):
        """The record of a node with a new address is updated at once."""
        self.start()
        self.client.put(NODES, node("cloud-1", "192.0.2.9", labels=CLOUD))
        self.settle()
        self.assertIn("192.0.2.9\tcloud-1", self.text())

    def test_heartbeats_write_nothing(self):
        """Changes of a node that do not affect its record cause no write."""
        self.start()
        self.client.put(NODES, node("cloud-1", "192.0.2.1", labels=CLOUD, ready=False))
        self.settle()
        self.assertEqual(1, len(self.writes()))

    def test_names_are_compared_as_a_whole(self):
        """D2: one node's name may be the end of another's."""
        self.client.put(NODES, node("1", "192.0.2.8", labels=CLOUD))
        self.client.put(NODES, node("old-edge-1", labels=EDGE))
        self.start()
        self.client.remove(NODES, "edge-1")
        self.client.put(NODES, node("1", "192.0.2.7", labels=CLOUD))
        self.settle()
        self.assertEqual("10.96.0.5\told-edge-1\n192.0.2.1\tcloud-1\n192.0.2.7\t1", self.text())

    def test_no_change_is_lost_in_another(self):
        """D3: changes while records are written are in the next ones."""
        self.start()
        self.client.hold()
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle()
        self.client.put(NODES, node("edge-3", labels=EDGE))
        self.client.remove(NODES, "edge-1")
        self.settle()
        self.client.release()
        self.settle()
        self.assertEqual("10.96.0.5\tedge-2\n10.96.0.5\tedge-3\n192.0.2.1\tcloud-1", self.text())

    def test_an_edge_node_without_address(self):
        """D6: it has a record, and no problem is reported."""
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.start()
        self.assertIn("10.96.0.5\tedge-2", self.text())
        self.assertIsNone(self.controller.problem())

    def test_the_label_of_tunnel_clients(self):
        """D8: nodes with the label of 0.3 are behind the tunnel, too."""
        labels = {"openyurt.io/edge-enable-reverseTunnel-client": "true"}
        self.client.put(NODES, node("cloud-1", "192.0.2.1", labels=labels))
        self.start()
        self.assertIn("10.96.0.5\tcloud-1", self.text())

    def test_missing_records_are_reported_once(self):
        """The log names some of those without address, and the number of the others."""
        for number in range(MAX_REPORTED + 5):
            self.client.put(NODES, node(f"cloud-x{number:02d}", labels=CLOUD))
        self.start()
        self.assertIn("node cloud-x00 has no InternalIP", self.controller.problem())
        self.assertIn("and 5 more nodes", self.controller.problem())
        self.settle(PERIOD + 10)
        reported = [line for line in self.lines if "DNS record" in line]
        self.assertEqual(MAX_REPORTED + 1, len(reported))
        for number in range(MAX_REPORTED + 5):
            self.client.remove(NODES, f"cloud-x{number:02d}")
        self.settle()
        self.assertIsNone(self.controller.problem())

    def test_a_cluster_of_two_families(self):
        """The first ClusterIP is used."""
        both = ["2001:db8::5", "10.96.0.5"]
        self.client.put(SERVICES, service(both[0], clusterIPs=both))
        self.start()
        self.assertEqual("192.0.2.1\tcloud-1\n2001:db8::5\tedge-1", self.text())

    def test_part_of_the_nodes_is_not_enough(self):
        """Until the API has listed all nodes, nothing is written, and this is reported."""
        self.check_late_cache(NODES, "nodes")

    def test_without_the_service_is_not_enough(self):
        """The same with the Service, which would be reported as missing."""
        self.check_late_cache(SERVICES, f"services {NAMESPACE}/{SERVICE}")
        self.assertEqual([], self.events.recorded)

    def test_without_the_config_maps_is_not_enough(self):
        """The same with the ConfigMaps: another one would be created, ports would be removed."""
        added = {**HTTPS, "name": "dnat-9100", "port": 9100, "targetPort": 10264}
        self.client.put(SERVICES, service(ports=(HTTPS, added)))
        self.check_late_cache(CONFIG_MAPS, f"configmaps {NAMESPACE}/{NAME}", "configmaps")

    def check_late_cache(self, late, *reported):
        """Delay the list of a kind; nothing may be written before it."""
        self.client.put(
            CONFIG_MAPS,
            {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {"tunnel-nodes": "old"}},
        )
        read = self.client.list

        def read_no_nodes(resource, namespace=None, **options):
            if resource is late:
                return fail(ApiUnreachable("GET: refused"))
            return read(resource, namespace, **options)

        self.successResultOf(self.informers.stopService())
        self.client.list = read_no_nodes
        self.make()
        self.start()
        self.settle(60)
        for words in reported:
            self.assertIn(words, self.controller.problem())
        self.assertIn("wait for the API", self.controller.problem())
        self.assertIn("GET: refused", self.controller.problem())
        self.assertEqual([], self.writes())
        self.client.list = read
        self.settle(60)
        self.assertIn("10.96.0.5\tedge-1", self.text())
        self.assertIsNone(self.controller.problem())

    def test_one_config_map_is_late(self):
        """The published one, and that of the ports: each is waited for."""
        self.client.put(
            CONFIG_MAPS,
            {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {"tunnel-nodes": "old"}},
        )
        read = self.client.list
        for late in (NAME, "yurt-tunnel-server-cfg"):

            def read_one(resource, namespace=None, *, late=late, **options):
                if options.get("field_selector") == f"metadata.name={late}":
                    return fail(ApiUnreachable("GET: refused"))
                return read(resource, namespace, **options)

            self.successResultOf(self.informers.stopService())
            self.client.list = read_one
            self.make()
            self.start()
            self.settle(60)
            self.assertIn(f"{NAMESPACE}/{late} (GET: refused)", self.controller.problem())
            self.assertEqual([], self.writes())
            self.stop()
        self.client.list = read

    def test_leading_again(self):
        """A server that leads again reports problems again."""
        self.client.put(NODES, node("nowhere", labels=CLOUD))
        self.client.delete(SERVICES, SERVICE, NAMESPACE)
        for number in range(1, 4):
            self.start()
            self.assertEqual(number, len(self.events.recorded))
            self.assertIn("there is no Service", self.controller.problem())
            self.stop()
            self.assertIsNone(self.controller.problem())
        self.assertEqual([], self.controller._ports.on_changed)
        self.client.put(SERVICES, service())
        self.lines.clear()
        for number in range(1, 4):
            self.start()
            reported = [line for line in self.lines if "nowhere" in line]
            self.assertEqual(number, len(reported), self.lines)
            self.assertIn("nowhere", self.controller.problem())
            self.stop()

    def test_refused_before(self):
        """An earlier failed write is no problem when a server starts to lead again."""
        self.start()
        update = self.client.update
        self.client.update = lambda *_, **__: fail(ApiUnreachable("PUT: refused"))
        self.client.put(NODES, node("edge-x", labels=EDGE))
        self.settle()
        self.assertIn("PUT: refused", self.controller.problem())
        self.stop()
        self.client.update = update
        self.client.delete(SERVICES, SERVICE, NAMESPACE)
        self.start()
        self.assertIn("there is no Service", self.controller.problem())
        self.assertNotIn("refused", self.controller.problem())


class LoadTests(ControllerTestCase):
    """Many nodes, and many changes."""

    def test_a_storm_makes_few_writes(self):
        """About one each second, and the last one has everything."""
        self.start()
        before = len(self.writes())
        for number in range(500):
            self.client.put(NODES, node(f"edge-x{number}", labels=EDGE))
            self.clock.advance(0.02)
        self.settle()
        self.assertEqual(502, len(self.text().splitlines()))
        writes = len(self.writes()) - before
        self.assertTrue(1 <= writes <= 12, writes)

    def test_five_thousand_nodes(self):
        """They fit with space to spare, and a change of one is one write."""
        for number in range(2500):
            self.client.put(NODES, node(f"edge-node-with-a-name-{number}", labels=EDGE))
            self.client.put(NODES, node(f"cloud-node-{number}", f"192.0.2.{number % 256}"))
        self.start()
        self.assertEqual(5002, len(self.text().splitlines()))
        self.assertLess(len(self.text()), 300_000)
        self.client.remove(NODES, "edge-1")
        self.settle()
        self.assertEqual(5001, len(self.text().splitlines()))
        self.assertEqual(
            [("create", "configmaps", NAME), ("update", "configmaps", NAME)], self.writes()
        )
