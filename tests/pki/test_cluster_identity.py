"""Who a node is by a certificate of the cluster's authority."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from tests.pki.signing import issue
from tests.pki.support import EDGE_1, Issuer, clock_now
from yurttunnel.pki.agent_template import agent_template
from yurttunnel.pki.certificate_template import proxy_client_template
from yurttunnel.pki.cluster_identity import (
    MAX_NODES,
    WARNING_INTERVAL,
    NodeIdentification,
    check_sibling,
    cluster_identity,
    common_name_of,
    node_named_by,
)
from yurttunnel.pki.identity import identity_from_certificate, parse_identifiers
from yurttunnel.pki.names import BadIdentity, check_cluster_node_name

LONG = "-".join(["node"] * 12) + ".edge.example"
COMMON = replace(agent_template("edge-1", EDGE_1), common_name="tunnel-agent-client")


class CommonNameTests(SynchronousTestCase):
    """The common name of a node's certificate, which is the name of a Kubernetes user, too."""

    def test_short(self):
        """A name that fits stands behind a prefix, so that no node is called like a user."""
        self.assertEqual(common_name_of("kubernetes-admin"), "tunnel-agent:kubernetes-admin")
        longest = "n" * 51
        self.assertEqual(common_name_of(longest), f"tunnel-agent:{longest}")
        self.assertEqual(len(common_name_of(longest)), 64)

    def test_long(self):
        """A longer one is cut and followed by digits of its SHA-256, 64 characters in all."""
        name = common_name_of("n" * 52)
        # The digits are those of: python -c "print('n' * 52, end='')" | sha256sum
        self.assertEqual(name, f"tunnel-agent:{'n' * 30}-b32d904b81c4c6af6981")
        self.assertEqual(len(name), 64)
        self.assertNotEqual(name, common_name_of("n" * 53))

    def test_node(self):
        """The node is the DNS name whose common name it is, wherever in the list it stands."""
        for node in ("edge-1", LONG):
            hosts = ["a.example", node, "z.example"]
            self.assertEqual(node_named_by(common_name_of(node), hosts), node)

    def test_no_node(self):
        """Without such a DNS name, or without the prefix, there is no node."""
        for common_name in ("tunnel-agent:edge-2", "edge-1", "tunnel-agent:", ""):
            self.assertRaises(BadIdentity, node_named_by, common_name, ["edge-1", "a.example"])

    def test_two_nodes(self):
        """Two names that share one common name are refused: either could be meant."""
        short = common_name_of(LONG).removeprefix("tunnel-agent:")
        self.assertEqual(common_name_of(short), common_name_of(LONG))
        self.assertRaises(BadIdentity, node_named_by, common_name_of(LONG), [LONG, short])

    def test_names_of_nodes(self):
        """Nodes of a cluster may have longer names than those of the standalone mode."""
        self.assertEqual(check_cluster_node_name(LONG), LONG)
        for name in ("n" * 254, "Edge", "edge_1", "edge\n1", ""):
            self.assertRaises(BadIdentity, check_cluster_node_name, name)


class ClusterIdentityTests(SynchronousTestCase):
    """Certificates of nodes."""

    def setUp(self):
        """Make an authority."""
        self.issuer = Issuer.make(self)

    def certificate(self, template):
        """Have a certificate issued."""
        return issue(self.issuer, template).certificate

    def test_round_trip(self):
        """What the agent asks for is what the server reads."""
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
        """Certificates of the embedded authority do not pass in a cluster, and the reverse."""
        node = self.issuer.node().certificate
        error = self.assertRaises(BadIdentity, cluster_identity, node)
        self.assertIn("tunnel-agent:NODE", str(error))
        certificate = self.certificate(agent_template("edge-1", EDGE_1))
        self.assertRaises(BadIdentity, identity_from_certificate, certificate)

    def test_not_a_nodes(self):
        """Certificates of servers and of other organizations are not those of nodes."""
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
        """The common certificate of yurttunnel 1.2 is refused, and the flag is named."""
        error = self.assertRaises(BadIdentity, cluster_identity, self.certificate(COMMON))
        self.assertIn("--accept-common-agent-certificates", str(error))

    def test_common_accepted(self):
        """With the flag its node is its only DNS name, and networks in it do not count."""
        wide = replace(COMMON, uris=("yurttunnel:cidr=0.0.0.0/0", "yurttunnel:default-route=true"))
        identity = cluster_identity(self.certificate(wide), accept_common=True)
        self.assertEqual(identity.node, "edge-1")
        self.assertEqual(identity.identifiers.addresses, {ip_address("192.0.2.7")})
        self.assertEqual(identity.identifiers.networks, frozenset())
        self.assertFalse(identity.identifiers.default_route)

    def test_common_with_two_names(self):
        """A common certificate with several DNS names, or none, says of no node."""
        for names in ((), ("edge-1", "edge-2")):
            template = replace(COMMON, dns_names=names)
            error = self.assertRaises(
                BadIdentity, cluster_identity, self.certificate(template), accept_common=True
            )
            self.assertIn(f"has {len(names)} DNS names", str(error))

    def test_flag_is_for_common_ones_only(self):
        """The flag does not make other certificates good."""
        other = replace(COMMON, common_name="tunnel-agent-clients")
        self.assertRaises(
            BadIdentity, cluster_identity, self.certificate(other), accept_common=True
        )


class SiblingTests(SynchronousTestCase):
    """The certificate by which replicas know each other."""

    def test_sibling(self):
        """It is the server's own for clients, and no other of the same authority."""
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
    """What the server notes of certificates of yurttunnel 1.2."""

    def setUp(self):
        """Make an authority, and listen to the log."""
        self.clock = clock_now()
        self.issuer = Issuer.make(self, self.clock)
        self.warned = []
        globalLogPublisher.addObserver(self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, self.observe)

    def observe(self, event):
        """Note whom a warning is about."""
        if event["log_level"].name == "warn" and "node" in event:
            self.warned.append(event["node"])

    def common(self, node):
        """Make the certificate of a node with yurttunnel 1.2."""
        return issue(self.issuer, replace(COMMON, dns_names=(node,))).certificate

    def test_accepted(self):
        """Each is counted, and each node is warned of once an hour."""
        identification = NodeIdentification(self.clock, accepts_common=True)
        one, two = self.common("edge-1"), self.common("edge-2")
        for certificate in (one, one, two, one):
            identification.identify(certificate)
        self.assertEqual(self.warned, ["edge-1", "edge-2"])
        self.clock.advance(WARNING_INTERVAL)
        identification.identify(one)
        self.assertEqual(self.warned, ["edge-1", "edge-2", "edge-1"])
        self.assertEqual(
            (identification.counters.accepted, identification.counters.refused), (5, 0)
        )

    def test_refused(self):
        """Without the flag they are refused and counted."""
        identification = NodeIdentification(self.clock, accepts_common=False)
        self.assertRaises(BadIdentity, identification.identify, self.common("edge-1"))
        self.assertEqual(
            (identification.counters.accepted, identification.counters.refused), (0, 1)
        )
        self.assertEqual(self.warned, [])

    def test_own(self):
        """Certificates that name their node pass without a word."""
        for accepts in (True, False):
            identification = NodeIdentification(self.clock, accepts)
            certificate = issue(self.issuer, agent_template("edge-1", EDGE_1)).certificate
            self.assertEqual(identification.identify(certificate).node, "edge-1")
            self.assertEqual(
                (identification.counters.accepted, identification.counters.refused), (0, 0)
            )
        self.assertEqual(self.warned, [])

    def test_bound(self):
        """What is kept in mind has a bound, however many nodes come."""
        identification = NodeIdentification(self.clock, accepts_common=True)
        for number in range(MAX_NODES + 10):
            identification._warn(f"node-{number}")
        self.assertEqual(len(identification._warned), MAX_NODES)
