"""The cluster addresses of the server's Services."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers
from yurttunnel.cluster.services import INTERNAL_SERVICE, SERVICE, ClusterAddresses
from yurttunnel.kube.resources import SERVICES


def service(name, *addresses, namespace="tunnel"):
    """Create a ``Service``."""
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"clusterIP": addresses[0], "clusterIPs": list(addresses)},
    }


class ClusterAddressesTests(SynchronousTestCase):
    """``ClusterAddresses`` with two Services."""

    def setUp(self):
        """Begin with an API that has sent nothing."""
        self.informers = FakeInformers(False)
        self.services = ClusterAddresses(self.informers, "tunnel")
        self.changes = []
        self.services.on_changed.append(lambda: self.changes.append(self.services.addresses))

    def assert_addresses(self, *texts):
        """Assert the addresses."""
        self.assertEqual(frozenset(map(ip_address, texts)), self.services.addresses)

    def test_both(self):
        """Those of both Services count, in both families; those of other Services do not."""
        self.informers.put(SERVICES, service(SERVICE, "10.96.0.1"))
        self.informers.put(SERVICES, service(INTERNAL_SERVICE, "10.96.0.2", "fd00::2"))
        self.informers.put(SERVICES, service("kubernetes", "10.96.0.3"))
        self.informers.put(SERVICES, service(SERVICE, "10.96.0.4", namespace="default"))
        self.assert_addresses("10.96.0.1", "10.96.0.2", "fd00::2")

    def test_changes(self):
        """Callbacks are called for each change, and for nothing else."""
        self.informers.put(SERVICES, service(SERVICE, "10.96.0.1"))
        labelled = service(SERVICE, "10.96.0.1")
        labelled["metadata"]["annotations"] = {"x-tunnel-server-external-addr": "a.example:1"}
        self.informers.put(SERVICES, labelled)
        self.informers.put(SERVICES, service(SERVICE, "None"))
        self.assert_addresses()
        self.informers.put(SERVICES, service(SERVICE, "10.96.0.2"))
        self.informers.delete(SERVICES, SERVICE, "tunnel")
        self.assertEqual([1, 0, 1, 0], [len(each) for each in self.changes])

    def test_ways(self):
        """kube-proxy forwards node ports, and other addresses with the Service's ports.

        A node port maps to another port of the Service.
        """
        made = service(INTERNAL_SERVICE, "10.96.0.2")
        made["spec"] |= {
            "externalIPs": ["192.0.2.1", "none"],
            "ports": [
                {"port": 10250, "nodePort": 31250},
                {"port": 10255},
                {"port": "x", "nodePort": 1},
            ],
        }
        made["status"] = {
            "loadBalancer": {"ingress": [{"ip": "::ffff:192.0.2.2"}, {"hostname": "x"}]}
        }
        self.informers.put(SERVICES, made)
        for address, port, behind in (
            ("10.96.0.2", 1, 1),
            ("192.0.2.1", 10250, 10250),
            ("192.0.2.2", 10255, 10255),
            ("192.0.2.1", 31251, None),
            ("192.0.2.3", 10250, None),
            ("192.0.2.3", 31250, 10250),
            ("192.0.2.3", 1, None),
        ):
            self.assertEqual(behind, self.services.port_behind(ip_address(address), port), address)
        self.assert_addresses("10.96.0.2")

    def test_synced(self):
        """Both Services have to be loaded."""
        self.assertFalse(self.services.synced)
        first, second = self.informers.by_spec.values()
        first.complete()
        self.assertFalse(self.services.synced)
        second.complete()
        self.assertTrue(self.services.synced)
