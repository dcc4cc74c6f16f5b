"""Tests of the records of nodes as text."""

from __future__ import annotations

from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, node
from yurttunnel.cluster.nodes import node_from
from yurttunnel.steering.dns.records import (
    MAX_BYTES,
    TooManyRecords,
    limit_sentences,
    make_records,
    with_records,
)

TUNNEL = ip_address("10.96.0.5")


def records(*nodes):
    """Make the records of objects of the API."""
    return make_records([node_from(each) for each in nodes], TUNNEL)


class RecordTests(SynchronousTestCase):
    """One line for each node."""

    def test_a_record_is_an_address_a_tab_and_a_name(self):
        """The lines are sorted by their characters, and there is no newline at the end."""
        found = records(
            node("cloud-2", "192.0.2.20", labels=CLOUD),
            node("edge-1", "10.0.0.1", labels=EDGE),
            node("cloud-1", "192.0.2.3", labels=CLOUD),
        )
        self.assertEqual(
            "10.96.0.5\tedge-1\n192.0.2.20\tcloud-2\n192.0.2.3\tcloud-1",
            found.text,
        )
        self.assertEqual((3, ()), (found.count, found.problems))

    def test_no_nodes(self):
        """A cluster without nodes has an empty text."""
        self.assertEqual(("", 0), (records().text, records().count))

    def test_an_edge_node_needs_no_address(self):
        """D6: a node behind the tunnel is reached at the Service, whatever address it has."""
        found = records(node("edge-1", labels=EDGE))
        self.assertEqual(("10.96.0.5\tedge-1", ()), (found.text, found.problems))

    def test_both_labels_make_an_edge_node(self):
        """D8: nodes that are behind the tunnel for the firewall are so for DNS."""
        for label in (
            "openyurt.io/is-edge-worker",
            "openyurt.io/edge-enable-reverseTunnel-client",
            "alibabacloud.com/is-edge-worker",
        ):
            found = records(node("n", "192.0.2.1", labels={label: "true"}))
            self.assertEqual("10.96.0.5\tn", found.text, label)
            found = records(node("n", "192.0.2.1", labels={label: "false"}))
            self.assertEqual("192.0.2.1\tn", found.text, label)

    def test_the_first_internal_address_counts(self):
        """Other nodes have their first InternalIP, and an ExternalIP only without one."""
        external = ("ExternalIP", "203.0.113.1")
        for addresses, desired in (
            ((external, "192.0.2.1", "192.0.2.2"), "192.0.2.1"),
            ((("Hostname", "n"), external, ("ExternalIP", "203.0.113.2")), "203.0.113.1"),
            (("2001:db8::1", "192.0.2.1"), "2001:db8::1"),
            (("nonsense", external), "203.0.113.1"),
        ):
            self.assertEqual(f"{desired}\tn", records(node("n", *addresses)).text)

    def test_a_node_that_is_not_ready_has_a_record(self):
        """Nodes that are not ready have records, because they are accessed, too."""
        found = records(node("n", "192.0.2.1", ready=False))
        self.assertEqual("192.0.2.1\tn", found.text)

    def test_a_node_without_address_is_left_out(self):
        """Only its own record is missing, and this is reported."""
        found = records(node("b", ("Hostname", "b")), node("a"), node("c", "192.0.2.1"))
        self.assertEqual(("192.0.2.1\tc", 1), (found.text, found.count))
        self.assertEqual(["node a has", "node b has"], [each[:10] for each in found.problems])

    def test_only_some_sentences_are_shown(self):
        """Of many problems the first are shown, and the number of the others."""
        self.assertEqual(["a", "b"], limit_sentences(["a", "b"], 2))
        self.assertEqual(
            ["a", "b", "and 1 more nodes have no DNS record"], limit_sentences(["a", "b", "c"], 2)
        )


class ConfigMapTests(SynchronousTestCase):
    """The updated ConfigMap."""

    def test_one_that_is_missing(self):
        """It is created with the records only."""
        self.assertEqual(
            {
                "metadata": {"name": "yurt-tunnel-nodes", "namespace": "tunnel"},
                "data": {"tunnel-nodes": "x"},
            },
            with_records(None, "tunnel", "x"),
        )
        self.assertEqual({"tunnel-nodes": ""}, with_records(None, "tunnel", "")["data"])

    def test_everything_else_stays(self):
        """Other keys, labels and the version stay."""
        old = {
            "metadata": {"name": "yurt-tunnel-nodes", "resourceVersion": "7", "labels": {"a": "b"}},
            "data": {"tunnel-nodes": "old", "other": "mine"},
            "binaryData": {"more": "eA=="},
        }
        new = with_records(old, "tunnel", "new")
        self.assertEqual({**old, "data": {"tunnel-nodes": "new", "other": "mine"}}, new)
        self.assertEqual("old", old["data"]["tunnel-nodes"])

    def test_nothing_to_do(self):
        """One that has the records is not changed."""
        old = {"metadata": {}, "data": {"tunnel-nodes": "x"}}
        self.assertIsNone(with_records(old, "tunnel", "x"))

    def test_one_without_data(self):
        """The key is added to whatever it contains."""
        for data in ({}, {"data": None}, {"data": []}, {"data": {"tunnel-nodes": 1}}):
            new = with_records({"metadata": {}, **data}, "tunnel", "")
            self.assertEqual({"tunnel-nodes": ""}, new["data"])

    def test_too_many(self):
        """A request that the API would reject is not sent, and the message says what to do."""
        self.assertIsNotNone(with_records(None, "tunnel", "x" * MAX_BYTES))
        error = self.assertRaises(
            TooManyRecords, with_records, None, "tunnel", "x" * (MAX_BYTES + 1)
        )
        self.assertIn("are 1048577 bytes, and the limit of a ConfigMap is 1048576", str(error))
        self.assertIn("--enable-iptables", str(error))

    def test_other_keys_take_room_too(self):
        """The limit applies to all values together."""
        old = {"metadata": {}, "data": {"other": "é"}, "binaryData": {"more": "eHh4"}}
        self.assertIsNotNone(with_records(old, "tunnel", "x" * (MAX_BYTES - 5)))
        error = self.assertRaises(
            TooManyRecords, with_records, old, "tunnel", "x" * (MAX_BYTES - 4)
        )
        self.assertIn("beside 5 bytes under other keys", str(error))
