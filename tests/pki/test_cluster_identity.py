"""The identity of a node by a certificate of the cluster's authority."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from tests.pki.signing import issue
from tests.pki.support import EDGE_1, Issuer, clock_now
from yurttunnel.pki.certificate_template import proxy_client_template
from yurttunnel.pki.cluster_identity import (
    MAX_NODES,
    WARNING_INTERVAL,
    NodeIdentification,
    agent_template,
    check_sibling,
    cluster_identity,
    common_name_of,
    node_from_names,
)
from yurttunnel.pki.identity import identity_from_certificate, parse_identifiers
from yurttunnel.pki.names import BadIdentity, check_cluster_node_name

LONG = "-".join(["node"] * 12) + ".edge.example"
COMMON = replace(agent_template("edge-1", EDGE_1), common_name="tunnel-agent-client")


class CommonNameTests(SynchronousTestCase):
    """The common name of a node's certificate, which is also the name of a Kubernetes user."""

    def test_short(self):
        """A short name has a prefix, so that no node has the name of a user."""
        self.assertEqual(common_name_of("kubernetes-admin"), "tunnel-agent:kubernetes-admin")
        longest = "n" * 51
        self.assertEqual(common_name_of(longest), f"tunnel-agent:{longest}")
        self.assertEqual(len(common_name_of(longest)), 64)

    def test_long(self):
        """A longer name is truncated and followed by digits of its SHA-256, 64 characters total."""
        name = common_name_of("n" * 52)
        # The digits are those of: python -c "print('n' * 52, end='')" | sha256sum
        self.assertEqual(name, f"tunnel-agent:{'n' * 30}-b32d904b81c4c6af6981")
        self.assertEqual(len(name), 64)
        self.assertNotEqual(name, common_name_of("n" * 53))

    def test_node(self):
        """The node is the DNS name with that common name, at any place in the list."""
        for node in ("edge-1", LONG):
            hosts = ["a.example", node, "z.example"]
            self.assertEqual(node_from_names(common_name_of(node), hosts), node)

    def test_no_node(self):
        """Without such a DNS name, or without the prefix, there is no node."""
        for common_name in ("tunnel-agent:edge-2", "edge-1", "tunnel-agent:", ""):
            self.assertRaises(BadIdentity, node_from_names, common_name, ["edge-1", "a.example"])

    def test_two_nodes(self):
        """Two names with one common name are rejected as ambiguous."""
        short = common_name_of(LONG).removeprefix("tunnel-agent:")
        self.assertEqual(common_name_of(short), common_name_of(LONG))
        self.assertRaises(BadIdentity, node_from_names, common_name_of(LONG), [LONG, short])

    def test_names_of_nodes(self):
        """Nodes of a cluster may have longer names than those of the standalone mode."""
        self.assertEqual(check_cluster_node_name(LONG), LONG)
        for name in ("n" * 254, "Edge", "edge_1", "edge\n1", ""):
            self.assertRaises(BadIdentity, check_cluster_node_name, name)


class ClusterIdentityTests(SynchronousTestCase):
    """Certificates of nodes."""

    def setUp(self):
        """Create an authority."""
        self.issuer = Issuer.make(self)

    def certificate(self, template):
        """Issue a certificate."""
        return issue(self.issuer, template).certificate

    def test_round_trip(self):
        """The server reads the identity that the agent has requested."""
        identifiers = parse_identifiers(
            "host=camera.site&ipv4=192.0.2.7&ipv6=2001:db8::7&cidr=10.0.0.0/8&default-route=true"
        )
        for node in ("edge-1", LONG):
            certificate = self.certificate(agent_template(node, identifiers))
            identity = cluster_identity(certificate)
            self.assertEqual(identity.node, node)
            self.assertEqual(
                identity.identifiers, replace(identifiers, hosts=identifiers.hosts | {node})
            )
            self.assertEqual(identity.not_after, certificate.not_valid_after_utc)

    def test_standalone(self):
        """Certificates of the embedded authority are rejected in a cluster, and vice versa."""
        node = self.issuer.node().certificate
        error = self.assertRaises(BadIdentity, cluster_identity, node)
        self.assertIn("tunnel-agent:NODE", str(error))
        certificate = self.certificate(agent_template("edge-1", EDGE_1))
        self.assertRaises(BadIdentity, identity_from_certificate, certificate)

    def test_not_a_nodes(self):
        """Certificates of servers and of other organizations are rejected."""
        template = agent_template("edge-1", EDGE_1)
        for other, words in (
            (proxy_client_template(), "no subjectAltName"),
            (replace(template, organizations=("system:masters",)), "organization"),
            (replace(template, usage="server auth"), "not meant for TLS clients"),
            (replace(template, common_name="edge-1"), "tunnel-agent:NODE"),
        ):
            error = self.assertRaises(BadIdentity, cluster_identity, self.certificate(other))
            self.assertIn(words, str(error))

    def test_common_refused(self):
        """The common certificate of yurttunnel 1.2 is rejected, and the error names the flag."""
        error = self.assertRaises(BadIdentity, cluster_identity, self.certificate(COMMON))
        self.assertIn("--accept-common-agent-certificates", str(error))

    def test_common_accepted(self):
        """With the flag, its only DNS name is the node, and its networks are ignored."""
        wide = replace(COMMON, uris=("yurttunnel:cidr=0.0.0.0/0", "yurttunnel:default-route=true"))
        identity = cluster_identity(self.certificate(wide), accept_common=True)
        self.assertEqual(identity.node, "edge-1")
        self.assertEqual(identity.identifiers.addresses, {ip_address("192.0.2.7")})
        self.assertEqual(identity.identifiers.networks, frozenset())
        self.assertFalse(identity.identifiers.default_route)

    def test_common_with_two_names(self):
        """A common certificate with several DNS names, or none, does not identify a node."""
        for names in ((), ("edge-1", "edge-2")):
            template = replace(COMMON, dns_names=names)
            error = self.assertRaises(
                BadIdentity, cluster_identity, self.certificate(template), accept_common=True
            )
            self.assertIn(f"has {len(names)} DNS names", str(error))

    def test_flag_is_for_common_ones_only(self):
        """The flag does not make other certificates valid."""
        other = replace(COMMON, common_name="tunnel-agent-clients")
        self.assertRaises(
            BadIdentity, cluster_identity, self.certificate(other), accept_common=True
        )


class SiblingTests(SynchronousTestCase):
    """The certificate that identifies replicas to each other."""

    def test_sibling(self):
        """Only the server's own client certificate is accepted, no other of the authority."""
        issuer = Issuer.make(self)
        template = proxy_client_template()
        check_sibling(issue(issuer, template).certificate)
        for other in (
            agent_template("edge-1", EDGE_1),
            replace(template, common_name="tunnel-agent-client"),
            replace(template, organizations=("system:nodes",)),
            replace(template, usage="server auth"),
            replace(template, dns_names=("tunnel-proxy-client",)),
        ):
            self.assertRaises(BadIdentity, check_sibling, issue(issuer, other).certificate)


class NodeIdentificationTests(SynchronousTestCase):
    """The server's handling of certificates of yurttunnel 1.2."""

    def setUp(self):
        """Create an authority, and observe the log."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.warnings = Logged(self, level=LogLevel.warn)

    def warned(self):
        """Return the nodes of the warnings."""
        return [event["node"] for event in self.warnings.events if "node" in event]

    def common(self, node):
        """Issue the certificate of a node with yurttunnel 1.2."""
        return issue(self.issuer, replace(COMMON, dns_names=(node,))).certificate

    def test_accepted(self):
        """Each use is counted, and each node is logged once an hour."""
        identification = NodeIdentification(self.clock, accepts_common=True)
        one, two = self.common("edge-1"), self.common("edge-2")
        for certificate in (one, one, two, one):
            identification.identify(certificate)
        self.assertEqual(self.warned(), ["edge-1", "edge-2"])
        self.clock.advance(WARNING_INTERVAL)
        identification.identify(one)
        self.assertEqual(self.warned(), ["edge-1", "edge-2", "edge-1"])
        self.assertEqual(
            (identification.counters.accepted, identification.counters.refused), (5, 0)
        )

    def test_refused(self):
        """Without the flag they are rejected and counted."""
        identification = NodeIdentification(self.clock, accepts_common=False)
        self.assertRaises(BadIdentity, identification.identify, self.common("edge-1"))
        self.assertEqual(
            (identification.counters.accepted, identification.counters.refused), (0, 1)
        )
        self.assertEqual(self.warned(), [])

    def test_own(self):
        """Certificates that name their node are accepted without a warning."""
        for accepts in (True, False):
            identification = NodeIdentification(self.clock, accepts)
            certificate = issue(self.issuer, agent_template("edge-1", EDGE_1)).certificate
            self.assertEqual(identification.identify(certificate).node, "edge-1")
            self.assertEqual(
                (identification.counters.accepted, identification.counters.refused), (0, 0)
            )
        self.assertEqual(self.warned(), [])

    def test_bound(self):
        """The number of remembered nodes is limited."""
        identification = NodeIdentification(self.clock, accepts_common=True)
        for number in range(MAX_NODES + 10):
            identification._warn(f"node-{number}")
        self.assertEqual(len(identification._warned), MAX_NODES)
