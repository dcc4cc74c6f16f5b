"""Tests of the text of iptables rules for virtual services (service-proxy reference, section 5)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.slices import at_once
from yurttunnel.proxy.interfaces import ProxiedService
from yurttunnel.proxy.rules.iptables.portals import MAX_COMMENT_CHARACTERS, PortalRules
from yurttunnel.proxy.state.virtual_services import (
    Key,
    NoEndpointsAction,
    Portal,
    PortalKind,
    Protocol,
    Scope,
    ServicePortName,
    VirtualService,
)

WEB = ServicePortName("shop", "web", "http")
HOST = ip_address("172.16.1.9")
HOST6 = ip_address("fd00::9")

CLUSTER_IP = Portal(PortalKind.CLUSTER_IP, ip_address("10.96.0.10"), 80)
EXTERNAL_IP = Portal(PortalKind.EXTERNAL_IP, ip_address("198.51.100.1"), 80)
LOAD_BALANCER_IP = Portal(PortalKind.LOAD_BALANCER_IP, ip_address("203.0.113.1"), 80)
NODE_PORT = Portal(PortalKind.NODE_PORT, None, 30080)

NAMED = '-m comment --comment "shop/web:http"'


def proxied(
    *portals, port=4000, version=4, protocol=Protocol.TCP, scope=Scope.ALL, name=WEB, **more
):
    """Place a virtual service at a proxy port."""
    key = Key(name, version, protocol, scope)
    return ProxiedService(VirtualService(key, portals, (), **more), port)


class PortalsCase(SynchronousTestCase):
    """The content of the chains."""

    def rules(self, *services, version=4, host=HOST, node_ports=(), pods=()):
        """Return the rules by table."""
        return at_once(PortalRules(version, node_ports, pods).rules(services, host))

    def filled(self, *services, **more):
        """Return the rules by chain, without empty chains."""
        tables = self.rules(*services, **more).values()
        return {chain: list(some) for each in tables for chain, some in each.chains.items() if some}


class RedirectTests(PortalsCase):
    """Portals with endpoints."""

    def test_cluster_ip(self):
        """Incoming packets are redirected; the node's own are sent to its address."""
        match = f"-d 10.96.0.10/32 -p tcp {NAMED} -m tcp --dport 80"
        self.assertEqual(
            {
                "KUBE-PORTALS-CONTAINER": [f"{match} -j REDIRECT --to-ports 4000"],
                "KUBE-PORTALS-HOST": [f"{match} -j DNAT --to-destination 172.16.1.9:4000"],
            },
            self.filled(proxied(CLUSTER_IP)),
        )

    def test_external_ip(self):
        """Packets are redirected unless they come over a bridge to another machine's address."""
        match = f"-d 198.51.100.1/32 -p tcp {NAMED} -m tcp --dport 80"
        local = f"{match} -m addrtype --dst-type LOCAL"
        self.assertEqual(
            {
                "KUBE-PORTALS-CONTAINER": [
                    f"{match} -m physdev ! --physdev-is-in -j REDIRECT --to-ports 4000",
                    f"{local} -j REDIRECT --to-ports 4000",
                ],
                "KUBE-PORTALS-HOST": [f"{local} -j DNAT --to-destination 172.16.1.9:4000"],
            },
            self.filled(proxied(EXTERNAL_IP)),
        )

    def test_load_balancer_ip(self):
        """It has the same rules as a cluster IP."""
        match = f"-d 203.0.113.1/32 -p tcp {NAMED} -m tcp --dport 80"
        self.assertEqual(
            {
                "KUBE-PORTALS-CONTAINER": [f"{match} -j REDIRECT --to-ports 4000"],
                "KUBE-PORTALS-HOST": [f"{match} -j DNAT --to-destination 172.16.1.9:4000"],
            },
            self.filled(proxied(LOAD_BALANCER_IP)),
        )

    def test_node_port(self):
        """It is at any address, and packets redirected to the proxy port are accepted."""
        match = f"-p tcp {NAMED} -m tcp --dport 30080"
        self.assertEqual(
            {
                "KUBE-NODEPORT-CONTAINER": [f"{match} -j REDIRECT --to-ports 4000"],
                "KUBE-NODEPORT-HOST": [f"{match} -j DNAT --to-destination 172.16.1.9:4000"],
                "KUBE-NODEPORT-NON-LOCAL": [
                    f"-p tcp {NAMED} -m tcp --dport 4000 -m state --state NEW -j ACCEPT"
                ],
            },
            self.filled(proxied(NODE_PORT)),
        )

    def test_udp_by_ipv6(self):
        """Addresses have 128 bits, and brackets before ports."""
        cluster = replace(CLUSTER_IP, address=ip_address("fd96::a"))
        match = f"-p udp {NAMED} -m udp --dport"
        found = self.filled(
            proxied(cluster, NODE_PORT, version=6, protocol=Protocol.UDP), version=6, host=HOST6
        )
        self.assertEqual(
            {
                "KUBE-PORTALS-CONTAINER": [
                    f"-d fd96::a/128 {match} 80 -j REDIRECT --to-ports 4000"
                ],
                "KUBE-PORTALS-HOST": [
                    f"-d fd96::a/128 {match} 80 -j DNAT --to-destination [fd00::9]:4000"
                ],
                "KUBE-NODEPORT-CONTAINER": [f"{match} 30080 -j REDIRECT --to-ports 4000"],
                "KUBE-NODEPORT-HOST": [f"{match} 30080 -j DNAT --to-destination [fd00::9]:4000"],
                "KUBE-NODEPORT-NON-LOCAL": [f"{match} 4000 -m state --state NEW -j ACCEPT"],
            },
            found,
        )

    def test_other_family(self):
        """A family has no services of the other one."""
        self.assertEqual({}, self.filled(proxied(CLUSTER_IP), version=6))

    def test_no_host_address(self):
        """Without a host address the node's packets are redirected to loopback."""
        (rule,) = self.filled(proxied(CLUSTER_IP), host=None)["KUBE-PORTALS-HOST"]
        self.assertTrue(rule.endswith("-j REDIRECT --to-ports 4000"), rule)

    def test_address_for_all(self):
        """Incoming packets are sent to it as well, because a link may have no address; those to an
        address of the link are redirected to the link.
        """
        tables = at_once(PortalRules(4).rules([proxied(CLUSTER_IP, NODE_PORT)], HOST, HOST))
        there, at_the_link = f"-j DNAT --to-destination {HOST}:4000", "-j REDIRECT --to-ports 4000"
        for chain, expected in (
            ("KUBE-PORTALS-CONTAINER", [there]),
            ("KUBE-NODEPORT-CONTAINER", [f"--limit-iface-in {at_the_link}", there]),
        ):
            for rule, end in zip(tables["nat"].chains[chain], expected, strict=True):
                self.assertTrue(rule.endswith(end), rule)

    def test_order(self):
        """Rules have a fixed order for any order of services; portals keep their own order."""
        other = proxied(CLUSTER_IP, LOAD_BALANCER_IP, name=ServicePortName("a", "b", ""), port=5000)
        one, two = self.rules(proxied(CLUSTER_IP), other), self.rules(other, proxied(CLUSTER_IP))
        self.assertEqual(one, two)
        rules = one["nat"].chains["KUBE-PORTALS-CONTAINER"]
        self.assertEqual(["5000", "5000", "4000"], [rule.split()[-1] for rule in rules])
        self.assertIn('"a/b"', rules[0])

    def test_changes(self):
        """After changes the rules are the same as without previous ones."""
        one, two = PortalRules(4), [proxied(CLUSTER_IP), proxied(NODE_PORT, protocol=Protocol.UDP)]
        for services, host in (
            (two, HOST),
            (two[:1], HOST),
            ([proxied(CLUSTER_IP, port=4001)], HOST),
            ([proxied(CLUSTER_IP, port=4001)], HOST + 1),
            ([proxied(CLUSTER_IP, port=None)], HOST),
            (two, HOST),
        ):
            self.assertEqual(self.rules(*services, host=host), at_once(one.rules(services, host)))

    def test_what_stays(self):
        """Only the rules of changed Services are made again."""
        one = PortalRules(4)
        chain = "KUBE-PORTALS-CONTAINER"
        before, after = (
            at_once(one.rules([proxied(CLUSTER_IP)], HOST))["nat"].chains[chain][0]
            for _ in range(2)
        )
        self.assertIs(before, after)

    def test_names(self):
        """A comment is no longer than the kernel accepts, and nothing but a comment."""
        name = ServicePortName("n" * 63, "s" * 253, 'x" -j ACCEPT\n-A INPUT -j ACCEPT #')
        (rule,) = self.filled(proxied(CLUSTER_IP, name=name))["KUBE-PORTALS-HOST"]
        comment = rule.split('"')[1]
        self.assertEqual(MAX_COMMENT_CHARACTERS, len(comment))
        name = replace(name, name="s")
        (rule,) = self.filled(proxied(CLUSTER_IP, name=name))["KUBE-PORTALS-HOST"]
        self.assertNotIn("\n", rule)
        self.assertEqual(3, len(rule.split('"')))


class OwnPacketsTests(PortalsCase):
    """External portals with local endpoints only."""

    def test_internal_serves(self):
        """This machine's own packets are served like those to the cluster IP."""
        found = self.filled(
            proxied(CLUSTER_IP, scope=Scope.INTERNAL, port=4001),
            proxied(
                LOAD_BALANCER_IP, NODE_PORT, scope=Scope.EXTERNAL, port=4002, keeps_source=True
            ),
        )
        ports = {chain: [rule.split()[-1] for rule in rules] for chain, rules in found.items()}
        self.assertEqual(["4002", "4001"], ports["KUBE-PORTALS-CONTAINER"])
        self.assertEqual(["172.16.1.9:4001"] * 2, ports["KUBE-PORTALS-HOST"])
        self.assertEqual(["4002"], ports["KUBE-NODEPORT-CONTAINER"])
        self.assertEqual(["172.16.1.9:4001"], ports["KUBE-NODEPORT-HOST"])

    def test_pods(self):
        """Known pods are served the same way, with precedence over others."""
        found = self.filled(
            proxied(CLUSTER_IP, scope=Scope.INTERNAL, port=4001),
            proxied(
                LOAD_BALANCER_IP, NODE_PORT, scope=Scope.EXTERNAL, port=4002, keeps_source=True
            ),
            pods=[ip_network("10.1.0.0/16"), ip_network("fd01::/48")],
        )
        balancer = f"-d 203.0.113.1/32 -p tcp {NAMED} -m tcp --dport 80 -j REDIRECT --to-ports"
        node_port = f"-p tcp {NAMED} -m tcp --dport 30080 -j REDIRECT --to-ports"
        self.assertEqual(
            [f"-s 10.1.0.0/16 {balancer} 4001", f"{balancer} 4002"],
            found["KUBE-PORTALS-CONTAINER"][:2],
        )
        self.assertEqual(
            [f"-s 10.1.0.0/16 {node_port} 4001", f"{node_port} 4002"],
            found["KUBE-NODEPORT-CONTAINER"],
        )
        self.assertEqual(2, len(found["KUBE-NODEPORT-NON-LOCAL"]))
        self.assertEqual(1, len(self.filled(proxied(CLUSTER_IP))["KUBE-PORTALS-CONTAINER"]))

    def test_only_internal(self):
        """This also holds if no endpoint is on this node: only incoming packets are dropped."""
        found = self.filled(
            proxied(CLUSTER_IP, scope=Scope.INTERNAL, port=4001),
            proxied(
                LOAD_BALANCER_IP,
                scope=Scope.EXTERNAL,
                port=None,
                no_endpoints_action=NoEndpointsAction.DROPPED,
                keeps_source=True,
            ),
        )
        match = f"-d 203.0.113.1/32 -p tcp {NAMED} -m tcp --dport 80"
        self.assertEqual(1, len(found["KUBE-PORTALS-CONTAINER"]))
        self.assertIn(
            f"{match} -j DNAT --to-destination 172.16.1.9:4001", found["KUBE-PORTALS-HOST"]
        )
        self.assertEqual([f"{match} -j DROP"], found["YURTPROXY-REFUSED-CONTAINER"])
        self.assertNotIn("YURTPROXY-REFUSED-HOST", found)


class NoEndpointsTests(PortalsCase):
    """Portals without endpoints."""

    def both(self, *portals, **more):
        """Return the rules, which are only in chains for refusals."""
        host = more.get("host", HOST)
        found = self.filled(
            proxied(*portals, port=None, **more), host=host, version=more["version"]
        )
        names = ["YURTPROXY-REFUSED-CONTAINER", "YURTPROXY-REFUSED-HOST"]
        self.assertEqual(names, sorted(found))
        return [found[name] for name in names]

    def test_tcp(self):
        """Connections are reset."""
        rule = (
            f"-d 10.96.0.10/32 -p tcp {NAMED} -m tcp --dport 80 -j REJECT --reject-with tcp-reset"
        )
        self.assertEqual([[rule]] * 2, self.both(CLUSTER_IP, version=4))

    def test_udp(self):
        """Datagrams are rejected as port unreachable."""
        for version, text, reason in (
            (4, "10.96.0.10", "icmp-port-unreachable"),
            (6, "fd96::a", "icmp6-port-unreachable"),
        ):
            portal = replace(CLUSTER_IP, address=ip_address(text))
            bits = 32 if version == 4 else 128
            rule = f"-d {text}/{bits} -p udp {NAMED} -m udp --dport 80 -j REJECT --reject-with"
            found = self.both(portal, version=version, protocol=Protocol.UDP)
            self.assertEqual([[f"{rule} {reason}"]] * 2, found)

    def test_dropped(self):
        """If another node serves, there is no answer."""
        found = self.both(
            LOAD_BALANCER_IP, version=4, no_endpoints_action=NoEndpointsAction.DROPPED
        )
        rule = f"-d 203.0.113.1/32 -p tcp {NAMED} -m tcp --dport 80 -j DROP"
        self.assertEqual([[rule]] * 2, found)

    def test_external_ip(self):
        """An address that may be elsewhere is refused only where it would be redirected."""
        container, host = self.both(EXTERNAL_IP, version=4)
        refuse = "-j REJECT --reject-with tcp-reset"
        self.assertEqual(2, len(container))
        self.assertTrue(container[0].endswith(f"-m physdev ! --physdev-is-in {refuse}"))
        self.assertTrue(container[1].endswith(f"-m addrtype --dst-type LOCAL {refuse}"))
        self.assertEqual([container[1]], host)

    def test_node_port(self):
        """A node port is refused at this machine's addresses only."""
        rule = f"-p tcp {NAMED} -m tcp --dport 30080 -m addrtype --dst-type LOCAL -j REJECT"
        found = self.both(NODE_PORT, version=4)
        self.assertEqual([[f"{rule} --reject-with tcp-reset"]] * 2, found)


class SourceRangesTests(PortalsCase):
    """Load balancers' addresses with source ranges."""

    MATCH = f"-p tcp {NAMED} -m conntrack --ctorigdst 203.0.113.1 --ctorigdstport 80"

    def sources(self, *texts, host=HOST):
        """Return the rules for sources."""
        networks = tuple(ip_network(text) for text in texts)
        portal = replace(LOAD_BALANCER_IP, sources=networks)
        return self.filled(proxied(portal), host=host).get("YURTPROXY-SOURCES")

    def test_some(self):
        """Clients outside all ranges are dropped, by the original destination."""
        self.assertEqual(
            [
                f"-s 192.0.2.0/24 {self.MATCH} -j RETURN",
                f"-s 198.51.100.7/32 {self.MATCH} -j RETURN",
                f"{self.MATCH} -j DROP",
            ],
            self.sources("198.51.100.7/32", "192.0.2.0/24", "192.0.2.128/25", "fd00::/8"),
        )

    def test_everyone(self):
        """A range of all IPv4 addresses needs no rules."""
        self.assertIsNone(self.sources("192.0.2.0/24", "0.0.0.0/0"))

    def test_nobody(self):
        """With ranges of the other family only, no client is allowed."""
        self.assertEqual([f"{self.MATCH} -j DROP"], self.sources("fd00::/8"))

    def test_this_machine(self):
        """If this machine is allowed, so is the load balancer's address, in case it is its own."""
        self.assertIn(f"-s 203.0.113.1/32 {self.MATCH} -j RETURN", self.sources("172.16.0.0/16"))


class JumpsTests(PortalsCase):
    """The jumps to the chains."""

    def test_nat(self):
        """Portals come first, and node ports last."""
        nat = self.rules()["nat"]
        portals = '"handle ClusterIPs; NOTE: this must be before the NodePort rules"'
        node_ports = '"handle service NodePorts; NOTE: this must be the last rule in the chain"'
        local = "-m addrtype --dst-type LOCAL -m comment --comment"
        self.assertEqual(
            {
                "PREROUTING": (f"-m comment --comment {portals} -j KUBE-PORTALS-CONTAINER",),
                "OUTPUT": (f"-m comment --comment {portals} -j KUBE-PORTALS-HOST",),
            },
            nat.jumps,
        )
        self.assertEqual(
            {
                "PREROUTING": (f"{local} {node_ports} -j KUBE-NODEPORT-CONTAINER",),
                "OUTPUT": (f"{local} {node_ports} -j KUBE-NODEPORT-HOST",),
            },
            nat.last_jumps,
        )
        self.assertEqual(
            dict.fromkeys(
                (
                    "KUBE-PORTALS-CONTAINER",
                    "KUBE-PORTALS-HOST",
                    "KUBE-NODEPORT-CONTAINER",
                    "KUBE-NODEPORT-HOST",
                ),
                (),
            ),
            nat.chains,
        )

    def test_filter(self):
        """Clients that are not allowed are dropped before any are accepted."""
        jumps = self.rules()["filter"].jumps
        self.assertEqual(
            {
                "INPUT": [
                    "YURTPROXY-SOURCES",
                    "YURTPROXY-REFUSED-CONTAINER",
                    "KUBE-NODEPORT-NON-LOCAL",
                ],
                "FORWARD": ["YURTPROXY-SOURCES", "YURTPROXY-REFUSED-CONTAINER"],
                "OUTPUT": ["YURTPROXY-SOURCES", "YURTPROXY-REFUSED-HOST"],
            },
            {chain: [rule.split()[-1] for rule in rules] for chain, rules in jumps.items()},
        )
        self.assertEqual(
            '-m comment --comment "Ensure that non-local NodePort traffic can flow"'
            " -j KUBE-NODEPORT-NON-LOCAL",
            jumps["INPUT"][-1],
        )

    def test_node_port_networks(self):
        """With node port networks, only their addresses are redirected and refused."""
        networks = [ip_network(text) for text in ("10.1.0.0/16", "172.16.1.9/32", "fd00::/8")]
        tables = self.rules(proxied(NODE_PORT, port=None), node_ports=networks)
        for jumps in tables["nat"].last_jumps.values():
            self.assertEqual(["10.1.0.0/16", "172.16.1.9/32"], [rule.split()[1] for rule in jumps])
        refused = tables["filter"].chains["YURTPROXY-REFUSED-CONTAINER"]
        self.assertEqual(["10.1.0.0/16", "172.16.1.9/32"], [rule.split()[1] for rule in refused])
        everything = self.rules(node_ports=[ip_network("0.0.0.0/0")])
        self.assertEqual(self.rules(), everything)
