"""Tests of parsing EndpointSlices, and of reported problems."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.objects import endpoint, endpoint_slice, port
from yurttunnel.proxy.state.endpoint_slices import Condition, SlicePort, endpoint_slice_from
from yurttunnel.proxy.state.virtual_services import Protocol


class ParsedObjectTests(SynchronousTestCase):
    """The fields of an EndpointSlice."""

    def test_conditions(self):
        """Missing conditions have the meaning that the API defines."""
        for conditions, expected in (
            ({}, Condition.READY),
            ({"ready": None}, Condition.READY),
            ({"ready": True}, Condition.READY),
            ({"ready": True, "terminating": True}, Condition.READY),
            ({"ready": False}, Condition.NOT_READY),
            ({"ready": False, "serving": True}, Condition.NOT_READY),
            ({"ready": False, "serving": True, "terminating": True}, Condition.DRAINING),
            ({"ready": False, "serving": None, "terminating": True}, Condition.NOT_READY),
            ({"ready": False, "serving": False, "terminating": True}, Condition.NOT_READY),
        ):
            (kept,) = endpoint_slice_from(endpoint_slice(endpoint(**conditions))).endpoints
            self.assertEqual(expected, kept.condition, conditions)

    def test_no_conditions(self):
        """An endpoint without conditions is ready."""
        kept = endpoint_slice_from(endpoint_slice({"addresses": ["10.1.0.1"]}))
        self.assertEqual(Condition.READY, kept.endpoints[0].condition)

    def test_place(self):
        """Node, zone and hints are kept; equal hints are one object for all endpoints."""
        near = {"node": "here", "zone": "a", "for_zones": ["a", "b"], "for_nodes": ["here"]}
        kept = endpoint_slice_from(
            endpoint_slice(endpoint("10.1.0.1", **near), endpoint("10.1.0.2", **near))
        )
        one, other = kept.endpoints
        self.assertEqual(
            ("here", "a", {"a", "b"}, {"here"}), (one.node, one.zone, one.for_zones, one.for_nodes)
        )
        self.assertIs(one.for_zones, other.for_zones)

    def test_first_address(self):
        """Only the first address of an endpoint is used."""
        kept = endpoint_slice_from(endpoint_slice({"addresses": ["10.1.0.1", "10.1.0.2"]}))
        self.assertEqual(["10.1.0.1"], [str(each.address) for each in kept.endpoints])

    def test_skipped(self):
        """Slices without a Service, of a headless one, and of another proxy are skipped."""
        for label in ("service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"):
            skipped = endpoint_slice("10.1.0.1")
            skipped["metadata"]["labels"][label] = "x"
            self.assertIsNone(endpoint_slice_from(skipped))
        skipped = endpoint_slice("10.1.0.1")
        del skipped["metadata"]["labels"]
        self.assertIsNone(endpoint_slice_from(skipped))

    def test_null(self):
        """Go writes empty lists as null."""
        empty = {**endpoint_slice(), "ports": None, "endpoints": None}
        kept = endpoint_slice_from(empty)
        self.assertEqual(((), (), ()), (kept.ports, kept.endpoints, kept.problems))


class InvalidTests(SynchronousTestCase):
    """Invalid values: each is reported, and the rest is kept."""

    def test_addresses(self):
        """Endpoints whose address is invalid, or of the other family, are left out."""
        wrong = ["0.0.0.0", "224.0.0.1", "name", "", "fd00::1"]
        kept = endpoint_slice_from(endpoint_slice(*wrong, "10.1.0.1"))
        self.assertEqual(["10.1.0.1"], [str(each.address) for each in kept.endpoints])
        self.assertEqual(len(wrong), len(kept.problems))
        self.assertEqual(
            "the endpoint 0.0.0.0 is the unspecified address: it is not used", kept.problems[0].text
        )

    def test_addresses_of_ipv6(self):
        """The same with IPv6, where an IPv4-mapped address counts as IPv4."""
        wrong = ["fe80::1", "::", "ff02::1", "10.1.0.1", "::ffff:10.1.0.1"]
        kept = endpoint_slice_from(endpoint_slice(*wrong, "fd00::1", version=6))
        self.assertEqual(["fd00::1"], [str(each.address) for each in kept.endpoints])
        self.assertEqual(len(wrong), len(kept.problems))

    def test_ports(self):
        """An invalid port is reported; an unsupported protocol is reported for the Service."""
        ports = [port(0, "a"), port(70_000, "b"), port(None, "c"), port(1, "d", protocol="SCTP")]
        kept = endpoint_slice_from(endpoint_slice("10.1.0.1", ports=[*ports, port(80, "e")]))
        self.assertEqual((SlicePort("e", Protocol.TCP, 80),), kept.ports)
        self.assertEqual(3, len(kept.problems))

    def test_address_type(self):
        """Names are not resolved."""
        names = {**endpoint_slice("a.example.com"), "addressType": "FQDN"}
        kept = endpoint_slice_from(names)
        self.assertEqual(((), 1), (kept.endpoints, len(kept.problems)))

    def test_thousand_endpoints(self):
        """As many as a slice may have are kept; of as many invalid ones, some are reported."""
        good = [f"10.1.{n // 250}.{n % 250 + 1}" for n in range(1000)]
        self.assertEqual(1000, len(endpoint_slice_from(endpoint_slice(*good)).endpoints))
        bad = endpoint_slice_from(endpoint_slice(*["224.0.0.1"] * 1000))
        self.assertEqual("990 more problems are not listed", bad.problems[-1].text)
        self.assertEqual(11, len(bad.problems))
