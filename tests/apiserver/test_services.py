"""Services: defaults, addresses and ports."""

from __future__ import annotations

from ipaddress import ip_address

from tests.apiserver import services
from tests.apiserver.services import ADDRESSES, NODE_PORTS
from tests.apiserver.support import ApiTestCase
from tests.yurtlab.api.support import MERGE

PATH = "/api/v1/namespaces/default/services"


def service(name="web", **spec):
    """Return a Service."""
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


class ServiceTestCase(ApiTestCase):
    """A test case that creates Services."""

    def spec(self, name="web", **spec):
        """Create a Service; return its specification."""
        return self.create(service(name, **spec), PATH)["spec"]

    def refused(self, method="POST", path=PATH, **spec):
        """Return the errors in a Service."""
        status, answer = self.call(method, path, service("bad" if path == PATH else "web", **spec))
        self.assertEqual((422, "Invalid"), (status, answer["reason"]), answer)
        return [f"{one['field']}: {one['message']}" for one in answer["details"]["causes"]]


class DefaultTests(ServiceTestCase):
    """Defaults."""

    def test_cluster_ip(self):
        """A Service gets a cluster IP and the defaults."""
        spec = self.spec()
        self.assertIn(ip_address(spec["clusterIP"]), ADDRESSES)
        self.assertEqual(
            {
                "type": "ClusterIP",
                "clusterIP": spec["clusterIP"],
                "clusterIPs": [spec["clusterIP"]],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None",
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
            },
            spec,
        )

    def test_node_ports(self):
        """Services of these types get a node port for each port."""
        for kind in ("NodePort", "LoadBalancer"):
            ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
            spec = self.spec(kind.lower(), type=kind, ports=ports)
            first, second = (port["nodePort"] for port in spec["ports"])
            self.assertNotEqual(first, second)
            self.assertIn(first, NODE_PORTS)
            self.assertEqual("Cluster", spec["externalTrafficPolicy"])
        self.assertTrue(spec["allocateLoadBalancerNodePorts"])

    def test_headless(self):
        """A headless Service gets no address."""
        spec = self.spec(clusterIP="None", ports=[])
        self.assertEqual(("None", ["None"]), (spec["clusterIP"], spec["clusterIPs"]))

    def test_external_name(self):
        """An external name has no address."""
        spec = self.spec(type="ExternalName", externalName="a.example", ports=[])
        self.assertNotIn("clusterIP", spec)

    def test_status(self):
        """A client cannot set the status at creation."""
        ingress = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
        made = self.create({**service(), "status": ingress}, PATH)
        self.assertEqual({"loadBalancer": {}}, made["status"])
        _, answer = self.call("PUT", f"{PATH}/web/status", {**made, "status": ingress})
        self.assertEqual(ingress, answer["status"])


class AllocationTests(ServiceTestCase):
    """Addresses and ports."""

    def test_requested_values(self):
        """A Service may request an address and a port, which no other gets."""
        ports = [{"port": 80, "nodePort": 30080}]
        spec = self.spec(type="NodePort", clusterIP="10.96.0.10", ports=ports)
        self.assertEqual(("10.96.0.10", 30080), (spec["clusterIP"], spec["ports"][0]["nodePort"]))
        self.assertEqual(
            [
                'spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed to allocate IP 10.96.0.10:'
                " provided IP is already allocated",
                "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated",
            ],
            self.refused(type="NodePort", clusterIP="10.96.0.10", ports=ports),
        )

    def test_out_of_range(self):
        """Requested values must be in the cluster's ranges."""
        address, port = self.refused(
            type="NodePort", clusterIP="192.0.2.1", ports=[{"port": 80, "nodePort": 80}]
        )
        self.assertIn("is not in the valid range. The range of valid IPs is 10.96.0.0/12", address)
        self.assertIn("The range of valid ports is 30000-32767", port)

    def test_taken(self):
        """Allocated values are not allocated again."""
        self.patch(services, "NODE_PORTS", range(30000, 30002))
        found = {self.spec(name, type="NodePort")["ports"][0]["nodePort"] for name in ("a", "b")}
        self.assertEqual({30000, 30001}, found)
        self.assertNotIn("nodePort", self.spec("c", type="NodePort")["ports"][0])

    def test_kept(self):
        """An update without address and ports keeps them."""
        before = self.spec(type="NodePort")
        _, answer = self.call("PUT", f"{PATH}/web", service(type="NodePort"))
        self.assertEqual(before, answer["spec"])
        patch = {"spec": {"ports": [{"port": 80}, {"port": 81, "name": "b"}]}}
        patch["spec"]["ports"][0]["name"] = "a"
        _, answer = self.call("PATCH", f"{PATH}/web", patch, media_type=MERGE)
        ports = answer["spec"]["ports"]
        self.assertEqual(before["ports"][0]["nodePort"], ports[0]["nodePort"])
        self.assertIn(ports[1]["nodePort"], NODE_PORTS)

    def test_the_address_stays(self):
        """The address is immutable."""
        self.spec()
        self.assertEqual(
            ['spec.clusterIPs[0]: Invalid value: ["10.96.0.10"]: may not change once set'],
            self.refused("PUT", f"{PATH}/web", clusterIP="10.96.0.10", clusterIPs=["10.96.0.10"]),
        )

    def test_another_type(self):
        """A Service whose type changes to one with node ports gets them."""
        self.spec()
        patch = {"spec": {"type": "NodePort"}}
        _, answer = self.call("PATCH", f"{PATH}/web", patch, media_type=MERGE)
        self.assertIn(answer["spec"]["ports"][0]["nodePort"], NODE_PORTS)


class ValidationTests(ServiceTestCase):
    """Validation."""

    def test_services(self):
        """Type, ports and address must be valid."""
        for spec, expected in (
            ({"type": "X"}, 'spec.type: Unsupported value: "X": supported values: "ClusterIP"'),
            ({"ports": []}, "spec.ports: Required value"),
            ({"clusterIP": "x"}, 'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP'),
            ({"type": "ExternalName"}, "spec.externalName: Required value"),
            (
                {"type": "NodePort", "clusterIP": "None"},
                "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None'",
            ),
        ):
            (cause,) = self.refused(**spec)
            self.assertTrue(cause.startswith(expected), cause)

    def test_ports(self):
        """Ports have numbers, protocols, and names when there are several."""
        ports = [
            {"port": 0, "name": "a"},
            {"port": 1, "protocol": "X", "name": "a"},
            {"port": 2, "targetPort": 70000},
            {"port": 3, "name": "A"},
        ]
        self.assertEqual(
            [
                "spec.ports[0].port: Invalid value: 0",
                "spec.ports[0].targetPort: Invalid value: 0",
                'spec.ports[1].name: Duplicate value: "a"',
                'spec.ports[1].protocol: Unsupported value: "X"',
                "spec.ports[2].name: Required value",
                "spec.ports[2].targetPort: Invalid value: 70000",
                'spec.ports[3].name: Invalid value: "A"',
            ],
            [
                ":".join(cause.split(":")[:3]) if "Required" not in cause else cause
                for cause in self.refused(ports=ports)
            ],
        )
