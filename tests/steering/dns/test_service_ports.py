"""Tests of the ports of the internal Service."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cluster.proxy_ports import Ports
from yurttunnel.steering.dns.service_ports import (
    ServerPorts,
    reconciled,
    service_ports,
    with_ports,
)

SERVER = ServerPorts(secure=10263, insecure=10264)
PASSING = ServerPorts(10263, 10264, passthrough=10270, passthrough_ports=frozenset({10250, 9443}))

HTTPS = {"name": "https", "protocol": "TCP", "port": 10250, "targetPort": 10263}
HTTP = {"name": "http", "protocol": "TCP", "port": 10255, "targetPort": 10264}


def entry(port, target, name=None, **more):
    """Make an entry as the controller does, or with another name and more fields."""
    name = f"dnat-{port}" if name is None else name
    return {"name": name, "protocol": "TCP", "port": port, "targetPort": target, **more}


def desired(http=(), https=(), server=SERVER):
    """Return the desired ports."""
    return service_ports(Ports(http=frozenset(http), https=frozenset(https)), server)


class DesiredPortsTests(SynchronousTestCase):
    """Which port leads where."""

    def test_configured_ports_lead_to_the_servers_own(self):
        """Those for HTTP and for HTTPS lead to the ports that the server listens on."""
        found = desired([9100], [9443], ServerPorts(20263, 20264))
        self.assertEqual({9100: 20264, 9443: 20263}, found.desired)
        self.assertEqual({10250: 20263, 10255: 20264}, found.kubelet)

    def test_pass_through_counts_first(self):
        """Ports that are passed through lead there, whether they are configured or not."""
        found = desired([9100], [9443], PASSING)
        self.assertEqual({9100: 10264, 9443: 10270, 10250: 10270}, found.desired)
        self.assertEqual({10255: 10264}, found.kubelet)


class ReconcilingTests(SynchronousTestCase):
    """The update of existing entries."""

    def test_missing_ones_are_added(self):
        """They follow the others, sorted by number."""
        self.assertEqual(
            [HTTPS, HTTP, entry(9100, 10264), entry(9443, 10263)],
            reconciled([HTTPS, HTTP], desired([9100], [9443])),
        )

    def test_those_of_the_kubelet_are_not_added(self):
        """An operator may remove them on purpose; but pass-through needs its ports."""
        self.assertEqual([HTTPS], reconciled([HTTPS], desired()))
        self.assertEqual([entry(9443, 10270), entry(10250, 10270)], _passing([]))

    def test_a_wrong_target_is_corrected(self):
        """Also that of a manual entry, whose name stays."""
        by_hand = entry(9100, 9100, "node-exporter", nodePort=30000, appProtocol="http")
        self.assertEqual(
            [{**by_hand, "targetPort": 10264}, entry(9443, 10263)],
            reconciled([by_hand, entry(9443, 10264)], desired([9100], [9443])),
        )

    def test_the_kubelets_ports_follow_pass_through(self):
        """They lead there while it is enabled, and back when it is disabled."""
        passing = _passing([HTTPS, HTTP])
        self.assertEqual([{**HTTPS, "targetPort": 10270}, HTTP, entry(9443, 10270)], passing)
        self.assertEqual([HTTPS, HTTP], reconciled(passing, desired()))

    def test_former_ports_are_removed(self):
        """Entries with our names are removed, and others stay whatever they are."""
        other = entry(9100, 9100, "other")
        connect = entry(10268, 10268, "connect")
        udp = {**entry(9443, 1, "mine"), "protocol": "UDP"}
        self.assertEqual(
            [other, connect, udp],
            reconciled([entry(9443, 10263), other, connect, udp, entry(9101, 1)], desired()),
        )

    def test_protocols_are_distinguished(self):
        """An entry for UDP is not one for TCP; without a protocol it is for TCP."""
        udp = {**entry(9100, 1, "udp"), "protocol": "UDP"}
        self.assertEqual([udp, entry(9100, 10264)], reconciled([udp], desired([9100])))
        silent = {"port": 9100, "targetPort": 10264}
        self.assertEqual([silent], reconciled([silent], desired([9100])))
        ours_for_udp = {**entry(9100, 1), "protocol": "UDP"}
        self.assertEqual([entry(9100, 10264)], reconciled([ours_for_udp], desired([9100])))

    def test_ports_that_are_no_numbers(self):
        """An entry without a number has no port, neither the lowest nor any other."""
        for odd in ({"name": "odd"}, {"name": "odd", "port": "1"}):
            self.assertEqual([odd, entry(1, 10264)], reconciled([odd], desired([1])))

    def test_names_never_collide(self):
        """An entry with the name of another port gets its own, so that names are unique."""
        misnamed = entry(9200, 10264, "dnat-9100", nodePort=30000)
        self.assertEqual(
            [{**misnamed, "name": "dnat-9200"}, entry(9100, 10264)],
            reconciled([misnamed], desired([9100, 9200])),
        )
        self.assertEqual([entry(9100, 10264)], reconciled([misnamed], desired([9100])))
        swapped = [entry(1, 10264, "dnat-2"), entry(2, 10264, "dnat-1")]
        self.assertEqual([entry(1, 10264), entry(2, 10264)], reconciled(swapped, desired([1, 2])))

    def test_repetition_changes_nothing(self):
        """A second update changes nothing."""
        for ports in (desired(), desired([9100], [9443]), desired([1], [2], PASSING)):
            once = reconciled([HTTPS, entry(9100, 1, "dnat-5"), entry(7, 7)], ports)
            self.assertEqual(once, reconciled(once, ports))


class ServiceTests(SynchronousTestCase):
    """The updated Service."""

    def test_only_the_ports_differ(self):
        """Everything else of the Service is unchanged."""
        old = {
            "metadata": {"name": "s", "resourceVersion": "7"},
            "spec": {"clusterIP": "10.96.0.5", "selector": {"a": "b"}, "ports": [HTTPS]},
            "status": {"loadBalancer": {}},
        }
        new = with_ports(old, desired([9100]))
        self.assertEqual({**old, "spec": {**old["spec"], "ports": new["spec"]["ports"]}}, new)
        self.assertEqual([HTTPS, entry(9100, 10264)], new["spec"]["ports"])
        self.assertEqual([HTTPS], old["spec"]["ports"])

    def test_nothing_to_do(self):
        """One with the right ports is not changed."""
        service = {"spec": {"ports": [HTTPS, HTTP, entry(9100, 10264)]}}
        self.assertIsNone(with_ports(service, desired([9100])))

    def test_one_without_ports(self):
        """Desired entries are added to whatever there is."""
        for spec in ({}, {"spec": {}}, {"spec": {"ports": None}}):
            self.assertEqual([entry(1, 10264)], with_ports(spec, desired([1]))["spec"]["ports"])


def _passing(entries):
    return reconciled(entries, desired(server=PASSING))
