"""Tests of the desired rules, in the format of ``iptables-save``."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.firewall import rules
from yurttunnel.steering.firewall.own_chains import Rules
from yurttunnel.steering.firewall.rules import TUNNEL, port_of, rules_of
from yurttunnel.steering.interception import Interception, Match, Target

EDGE = frozenset({IPv4Address("192.168.7.1")})
CLOUD = frozenset({IPv4Address("172.16.1.199"), IPv4Address("172.16.1.20")})
SECURE = Target(IPv4Address("172.16.1.199"), 10263)
INSECURE = Target(IPv4Address("127.0.0.1"), 10264)
PORTS = {10255: INSECURE, 10250: SECURE}
RETURN = '-m comment --comment "return request to access node directly"'
DNAT_COMMENT = '-m comment --comment "dnat to tunnel for access node"'
OWN = (
    '-m mark --mark 0x59/0xff -m comment --comment "connections of the tunnel server itself"'
    " -j RETURN"
)
SELF = (
    '-m addrtype --dst-type LOCAL -m comment --comment "addresses of this machine itself" -j RETURN'
)
EDGE6 = frozenset({IPv6Address("fd00::7")})


def jump(port, chains="TUNNEL-PORT"):
    """Return the rule that jumps to a port's chain."""
    return (
        f'-p tcp -m tcp --dport {port} -m comment --comment "jump to port {port}"'
        f" -j {chains}-{port}"
    )


class RulesTests(SynchronousTestCase):
    """Chains, comments and structure of yurttunnel 1.2."""

    maxDiff = None

    def test_cloud_return(self):
        """Loopback and cloud nodes return, loopback first, and the rest is redirected."""
        desired = Interception(4, Match.CLOUD_RETURN, EDGE, CLOUD, PORTS)
        found = rules_of(desired, None)
        jumps = {"OUTPUT": ('-p tcp -m comment --comment "yurttunnel server port" -j TUNNEL-PORT',)}
        self.assertEqual(jumps, found.jumps)
        chains = {"TUNNEL-PORT": (OWN, SELF, jump(10250), jump(10255))}
        for port, lead in ((10250, "172.16.1.199:10263"), (10255, "127.0.0.1:10264")):
            chains[f"TUNNEL-PORT-{port}"] = (
                f"-d 127.0.0.0/8 -p tcp {RETURN} -m tcp --dport {port} -j RETURN",
                f"-d 172.16.1.20/32 -p tcp {RETURN} -m tcp --dport {port} -j RETURN",
                f"-d 172.16.1.199/32 -p tcp {RETURN} -m tcp --dport {port} -j RETURN",
                f"-p tcp {DNAT_COMMENT} -m tcp --dport {port} -j DNAT --to-destination {lead}",
            )
        self.assertEqual(chains, found.chains)

    def test_edge_set(self):
        """With a set of addresses each port's chain has one rule."""
        desired = Interception(4, Match.EDGE_SET, EDGE, CLOUD, {10250: SECURE})
        found = rules_of(desired, "YURTTUNNEL-EDGE4").chains
        lead = (
            f"-p tcp {DNAT_COMMENT} -m tcp --dport 10250 -m set --match-set YURTTUNNEL-EDGE4 dst"
            " -j DNAT --to-destination 172.16.1.199:10263"
        )
        self.assertEqual((lead,), found["TUNNEL-PORT-10250"])
        with self.assertRaises(ValueError):
            rules_of(desired, None)

    def test_ipv6(self):
        """IPv6 addresses have prefixes, and brackets before a port."""
        target = Target(IPv6Address("fd00::1"), 10263)
        cloud = frozenset({IPv6Address("fd00::2")})
        desired = Interception(6, Match.CLOUD_RETURN, EDGE6, cloud, {10250: target})
        expected = (
            f"-d ::1/128 -p tcp {RETURN} -m tcp --dport 10250 -j RETURN",
            f"-d fd00::2/128 -p tcp {RETURN} -m tcp --dport 10250 -j RETURN",
            f"-p tcp {DNAT_COMMENT} -m tcp --dport 10250 -j DNAT --to-destination [fd00::1]:10263",
        )
        self.assertEqual(expected, rules_of(desired, None).chains["TUNNEL-PORT-10250"])

    def test_mapped(self):
        """An address is spelled as in the programs; otherwise it would always differ."""
        desired = Interception(
            6,
            Match.CLOUD_RETURN,
            EDGE6,
            frozenset({IPv6Address("::ffff:192.0.2.1"), IPv6Address("fd00:0:1:2:3:4:5:6")}),
            {10250: Target(IPv6Address("fd00::1"), 10263)},
        )
        found = rules_of(desired, None).chains["TUNNEL-PORT-10250"]
        self.assertTrue(found[1].startswith("-d ::ffff:192.0.2.1/128 "), found)
        self.assertTrue(found[2].startswith("-d fd00:0:1:2:3:4:5:6/128 "), found)

    def test_every_address(self):
        """Connections are redirected without an address if the server listens on all addresses."""
        desired = Interception(6, Match.EDGE_SET, EDGE6, ports={10250: Target(None, 10263)})
        (rule,) = rules_of(desired, "S").chains["TUNNEL-PORT-10250"]
        self.assertTrue(rule.endswith(" -j REDIRECT --to-ports 10263"), rule)

    def test_pods(self):
        """Forwarded connections have a separate hook and chains; no mark is matched."""
        target = Target(None, 10263)
        desired = Interception(4, Match.EDGE_SET, EDGE, CLOUD, PORTS, {10250: target})
        found = rules_of(desired, "S")
        comment = '-m comment --comment "yurttunnel server port for pods"'
        self.assertEqual((f"-p tcp {comment} -j TUNNEL-PODS",), found.jumps["PREROUTING"])
        self.assertEqual((SELF, jump(10250, "TUNNEL-PODS")), found.chains["TUNNEL-PODS"])
        self.assertIn("TUNNEL-PODS-10250", found.chains)
        self.assertNotIn("TUNNEL-PODS-10255", found.chains)
        only = Interception(4, Match.EDGE_SET, EDGE, CLOUD, {}, {10250: target})
        self.assertEqual(["PREROUTING"], list(rules_of(only, "S").jumps))

    def test_many_cloud_nodes(self):
        """Many nodes are listed once before all ports; a chain that is entered by goto returns."""
        self.patch(rules, "MAX_RETURNS_BY_PORT", 5)
        desired = Interception(4, Match.CLOUD_RETURN, EDGE, CLOUD, PORTS)
        chains = rules_of(desired, None).chains
        to = tuple(
            f'-p tcp -m tcp --dport {port} -m comment --comment "cloud nodes before port {port}"'
            " -g TUNNEL-PORT-CLOUD"
            for port in (10250, 10255)
        )
        self.assertEqual((OWN, SELF, *to), chains["TUNNEL-PORT"])
        expected = (
            f"-d 127.0.0.0/8 -p tcp {RETURN} -j RETURN",
            f"-d 172.16.1.20/32 -p tcp {RETURN} -j RETURN",
            f"-d 172.16.1.199/32 -p tcp {RETURN} -j RETURN",
            jump(10250),
            jump(10255),
        )
        self.assertEqual(expected, chains["TUNNEL-PORT-CLOUD"])
        target = "--to-destination 172.16.1.199:10263"
        lead = f"-p tcp {DNAT_COMMENT} -m tcp --dport 10250 -j DNAT {target}"
        self.assertEqual((lead,), chains["TUNNEL-PORT-10250"])

    def test_nothing(self):
        """Without nodes behind the tunnel, or without ports, there are no rules."""
        for edge, ports in ((frozenset(), PORTS), (EDGE, {})):
            desired = Interception(4, Match.CLOUD_RETURN, edge, CLOUD, ports)
            self.assertEqual(Rules(), rules_of(desired, None))


class NamesTests(SynchronousTestCase):
    """Which chains are ours."""

    def test_ours(self):
        """The two chains, and all with names below them, whoever created them."""
        for name in ("TUNNEL-PORT", "TUNNEL-PORT-10250", "TUNNEL-PORT-x", "TUNNEL-PODS-CLOUD"):
            self.assertTrue(TUNNEL.owns(name), name)
        for name in ("TUNNEL-PORTS", "TUNNEL", "MY-TUNNEL-PORT", "OUTPUT", "TUNNEL-POD"):
            self.assertFalse(TUNNEL.owns(name), name)

    def test_ports(self):
        """Chains of ports are recognized by their names."""
        self.assertEqual(10250, port_of("TUNNEL-PORT-10250"))
        self.assertEqual(9100, port_of("TUNNEL-PODS-9100"))
        for name in ("TUNNEL-PORT", "TUNNEL-PORT-CLOUD", "TUNNEL-PORT-²", "KUBE-10250"):
            self.assertIsNone(port_of(name))
