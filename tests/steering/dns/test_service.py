"""Tests of the DNS controller: the internal Service."""

from __future__ import annotations

from tests.cluster.fakes import EDGE, config_map, node
from tests.steering.dns.support import (
    HTTPS,
    NAME,
    NAMESPACE,
    PERIOD,
    SERVICE,
    ControllerTestCase,
    service,
)
from yurttunnel.kube.errors import ApiError
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, SERVICES
from yurttunnel.steering.dns.service_ports import ServerPorts


class ServiceTests(ControllerTestCase):
    """The Service: its address, and its ports."""

    def test_another_address(self):
        """D7: records follow a Service that is created again with another ClusterIP."""
        self.start()
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.client.put(SERVICES, service("10.96.0.77"))
        self.settle()
        self.assertIn("10.96.0.77\tedge-1", self.text())

    def test_one_that_is_missing(self):
        """D7: records stay as they are, an event reports it, and updates continue with it."""
        self.start()
        before = self.text()
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.client.put(NODES, node("edge-2", labels=EDGE))
        self.settle(PERIOD + 10)
        self.assertEqual(before, self.text())
        self.assertIn(f"no Service {NAMESPACE}/{SERVICE}", self.controller.problem())
        [(involved, type, reason, _)] = self.events.recorded
        self.assertEqual(("Service", "v1"), (involved["kind"], involved["apiVersion"]))
        self.assertEqual({"namespace": NAMESPACE, "name": SERVICE}, involved["metadata"])
        self.assertEqual(("Warning", "NoService"), (type, reason))
        self.client.put(SERVICES, service())
        self.settle()
        self.assertIn("10.96.0.5\tedge-2", self.text())
        self.assertIsNone(self.controller.problem())

    def test_one_that_is_headless(self):
        """D7: it has no address; this is reported once, and again when it occurs again."""
        self.client.put(SERVICES, service("None"))
        self.start()
        self.settle(PERIOD + 10)
        self.assertIsNone(self.client.look(CONFIG_MAPS, NAME, NAMESPACE))
        self.assertIn("has no ClusterIP", self.controller.problem())
        [(involved, _, reason, message)] = self.events.recorded
        self.assertEqual("NoClusterIP", reason)
        self.assertTrue(involved["metadata"]["uid"])
        self.assertIn("without clusterIP", message)
        self.client.put(SERVICES, service())
        self.settle()
        self.assertIn("10.96.0.5\tedge-1", self.text())
        self.client.put(SERVICES, service("None"))
        self.settle()
        self.assertEqual(2, len(self.events.recorded))

    def test_one_that_is_gone_has_no_other_problem(self):
        """Its earlier problems, and failed writes, are no longer reported."""
        self.refuse("update", ApiError(422, "Invalid", "spec.ports[0].name: Required value"))
        self.client.put(SERVICES, service("None", ports=[{**HTTPS, "targetPort": 1}]))
        self.start()
        self.assertIn("has no ClusterIP", self.controller.problem())
        self.assertIn("Required value", self.controller.problem())
        self.client.remove(SERVICES, SERVICE, NAMESPACE)
        self.settle(61)
        self.assertTrue(self.controller.problem().startswith("there is no Service"))
        self.assertNotIn(";", self.controller.problem())

    def test_ports_follow_the_config_map_of_ports(self):
        """They are added, moved and removed with it, and nothing else of the Service changes."""
        self.start()
        before = self.client.look(SERVICES, SERVICE, NAMESPACE)
        self.client.put(CONFIG_MAPS, config_map(http_proxy_ports="9100", https_proxy_ports="9443"))
        self.settle()
        self.assertEqual(
            {
                10250: ("https", 10263),
                9100: ("dnat-9100", 10264),
                9443: ("dnat-9443", 10263),
            },
            self.ports(),
        )
        self.client.put(CONFIG_MAPS, config_map(https_proxy_ports="9100"))
        self.settle()
        self.assertEqual({10250: ("https", 10263), 9100: ("dnat-9100", 10263)}, self.ports())
        self.client.remove(CONFIG_MAPS, "yurt-tunnel-server-cfg", NAMESPACE)
        self.settle()
        after = self.client.look(SERVICES, SERVICE, NAMESPACE)
        before["metadata"].pop("resourceVersion"), after["metadata"].pop("resourceVersion")
        self.assertEqual(before, after)

    def test_ports_that_somebody_changes_are_repaired(self):
        """An entry with another target is corrected, and other fields of the Service stay."""
        self.start()
        wrong = {**HTTPS, "targetPort": 1, "nodePort": 30000}
        self.client.put(SERVICES, service(ports=[wrong], sessionAffinity="ClientIP"))
        self.settle()
        found = self.client.look(SERVICES, SERVICE, NAMESPACE)["spec"]
        self.assertEqual([{**wrong, "targetPort": 10263}], found["ports"])
        self.assertEqual("ClientIP", found["sessionAffinity"])

    def test_ports_do_not_wait_for_records(self):
        """If one of the two cannot be written, the other is."""
        self.refuse("create", ApiError(500, "InternalError", "no"))
        self.client.put(CONFIG_MAPS, config_map(http_proxy_ports="9100"))
        self.start()
        self.assertEqual(("dnat-9100", 10264), self.ports()[9100])
        self.client.put(SERVICES, service("None"))
        self.settle(61)
        self.assertEqual(("dnat-9100", 10264), self.ports()[9100])

    def test_ports_that_the_api_refuses(self):
        """The problem has the message of the API."""
        error = ApiError(422, "Invalid", "spec.ports[0].name: Required value")
        self.refuse("update", error)
        self.client.put(CONFIG_MAPS, config_map(http_proxy_ports="9100"))
        self.start()
        self.assertIn(
            f"Service {NAMESPACE}/{SERVICE} cannot be written: {error}", self.controller.problem()
        )


class PassThroughTests(ControllerTestCase):
    """With a port for pass-through."""

    server = ServerPorts(10263, 10264, 10270, frozenset({10250}))

    def test_kubelets_are_reached_through_it(self):
        """The kubelets' port leads there, whatever the manifests specify."""
        self.start()
        self.assertEqual({10250: ("https", 10270)}, self.ports())
