"""The replicas in EndpointSlices."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.cluster.services import server_name
from yurttunnel.server.siblings.replicas import (
    Endpoint,
    by_replica,
    endpoints_in,
    replica_slices,
)


def endpoint(*addresses, pod=None, **conditions):
    """Return an endpoint."""
    made = {"addresses": list(addresses), "conditions": conditions}
    if pod is not None:
        made["targetRef"] = {"kind": "Pod", "name": pod}
    return made


def slice_of(*endpoints, ports=({"name": "tcp", "port": 10262, "protocol": "TCP"},)):
    """Return an EndpointSlice."""
    return {"metadata": {"name": "s"}, "ports": list(ports), "endpoints": list(endpoints)}


class ReplicaTests(SynchronousTestCase):
    """The addresses of the replicas are those of the API's EndpointSlices."""

    def test_addresses(self):
        """Each endpoint is an address with the port named tcp."""
        ports = [{"name": "https", "port": 10263}, {"name": "tcp", "port": 20262}]
        found = endpoints_in(slice_of(endpoint("10.0.0.1", pod="a"), ports=ports))
        self.assertEqual((Endpoint("a", ("10.0.0.1", 20262)),), found)

    def test_serving(self):
        """Endpoints that are not serving are omitted; those without the condition are included."""
        found = endpoints_in(
            slice_of(
                endpoint("10.0.0.1", serving=True, terminating=True, ready=False),
                endpoint("10.0.0.2", serving=False, ready=False),
                endpoint("10.0.0.3"),
                {"addresses": ["10.0.0.4"]},
            )
        )
        hosts = [each.address[0] for each in found]
        self.assertEqual(["10.0.0.1", "10.0.0.3", "10.0.0.4"], hosts)

    def test_replicas(self):
        """The addresses of a pod in slices of both families belong to one replica."""
        four = endpoints_in(slice_of(endpoint("10.0.0.1", pod="a"), endpoint("10.0.0.2", pod="b")))
        six = endpoints_in(slice_of(endpoint("2001:DB8::1", pod="a")))
        self.assertEqual(
            {
                "a": (("10.0.0.1", 10262), ("2001:db8::1", 10262)),
                "b": (("10.0.0.2", 10262),),
            },
            by_replica([four, six]),
        )

    def test_without_pods(self):
        """Manually written endpoints are each a replica."""
        found = by_replica([endpoints_in(slice_of(endpoint("10.0.0.1"), endpoint("10.0.0.2")))])
        self.assertEqual(["10.0.0.1", "10.0.0.2"], list(found))

    def test_malformed(self):
        """Malformed parts are ignored, and the others are used."""
        lines = Logged(self)
        found = endpoints_in(
            slice_of(
                None,
                7,
                endpoint("not an address", "10.0.0.1"),
                {"addresses": "10.0.0.9"},
                {"addresses": [None, {}], "conditions": [], "targetRef": 7},
                {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Pod", "name": 7}},
            )
        )
        self.assertEqual(["10.0.0.1", "10.0.0.2"], [each.replica for each in found])
        self.assertIn("not an address", "".join(lines))
        for bad in ({}, {"ports": 7}, {"ports": [{"name": "tcp"}], "endpoints": [endpoint("1")]}):
            self.assertEqual((), endpoints_in(bad))
        for port in ("10262", 0, 65536, True, None):
            ports = [{"name": "tcp", "port": port}]
            self.assertEqual((), endpoints_in(slice_of(endpoint("10.0.0.1"), ports=ports)))

    def test_what_is_followed(self):
        """Only slices of the server's Service are followed, in its namespace."""
        spec = replica_slices("kube-system")
        self.assertEqual(
            ("kube-system", "kubernetes.io/service-name=x-tunnel-server-svc"),
            (spec.namespace, spec.label_selector),
        )
        self.assertEqual(spec, replica_slices("kube-system"))
        self.assertEqual("x-tunnel-server-svc.kube-system.svc", server_name("kube-system"))
