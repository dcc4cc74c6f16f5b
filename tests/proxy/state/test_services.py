"""Tests of parsing Services, and of reported problems."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.objects import port, service
from yurttunnel.proxy.state.parsing import MAX_REPORTED
from yurttunnel.proxy.state.service_ports import ServicePort
from yurttunnel.proxy.state.services import Distribution, service_from
from yurttunnel.proxy.state.virtual_services import Protocol


def problems(obj):
    """Return the problems of a Service, without its name."""
    return [problem.text for problem in service_from(obj).problems]


class SkippedTests(SynchronousTestCase):
    """Services that are skipped, which is no problem."""

    def test_skipped(self):
        """Headless ones, those of another proxy, and ExternalName have no portals."""
        proxy = {"service.kubernetes.io/service-proxy-name": "other"}
        headless = {"service.kubernetes.io/headless": ""}
        for skipped in (
            service("a", "None"),
            service("a", ""),
            service(type="ExternalName"),
            service(labels=proxy),
            service(labels=headless),
            {"kind": "Service", "metadata": {"name": "a"}},
        ):
            self.assertIsNone(service_from(skipped))

    def test_without_selector(self):
        """One without a selector is served: its endpoints are written by others."""
        self.assertIsNotNone(service_from(service(selector=None)))


class ParsedObjectTests(SynchronousTestCase):
    """The fields of a Service."""

    def test_addresses(self):
        """All addresses are kept; of a load balancer those that packets have here (KEP-1860)."""
        web = service("web", "10.96.0.1", "fd00::1", external=["192.0.2.1"])
        web["status"]["loadBalancer"]["ingress"] = [
            {"ip": "192.0.2.2"},
            {"ip": "192.0.2.3", "ipMode": "Proxy"},
            {"ip": "192.0.2.4", "ipMode": "VIP"},
            {"hostname": "lb.example.com"},
        ]
        kept = service_from(web)
        self.assertEqual((ip_address("10.96.0.1"), ip_address("fd00::1")), kept.cluster_ips)
        self.assertEqual((ip_address("192.0.2.1"),), kept.external_ips)
        self.assertEqual((ip_address("192.0.2.2"), ip_address("192.0.2.4")), kept.load_balancer_ips)

    def test_spellings(self):
        """An address in two spellings is one."""
        web = service("web", "fd00::1", external=["2001:db8::1", "2001:DB8:0::1"])
        self.assertEqual((ip_address("2001:db8::1"),), service_from(web).external_ips)

    def test_old_single_cluster_ip(self):
        """An API before 1.20 has one cluster IP, and no list of them."""
        web = service()
        del web["spec"]["clusterIPs"]
        self.assertEqual((ip_address("10.96.0.1"),), service_from(web).cluster_ips)

    def test_ports(self):
        """A port has a name, a protocol, a number, and optionally a node port."""
        web = service(ports=[port(80, "http", nodePort=30080), port(53, "dns", protocol="UDP")])
        self.assertEqual(
            (
                ServicePort("http", Protocol.TCP, 80, 30080),
                ServicePort("dns", Protocol.UDP, 53),
            ),
            service_from(web).ports,
        )

    def test_source_ranges(self):
        """They are in the spec, or else in the older annotation."""
        older = {"service.beta.kubernetes.io/load-balancer-source-ranges": "10.0.0.0/8, fd00::/8"}
        for web, expected in (
            (service(), None),
            (service(loadBalancerSourceRanges=["192.0.2.1/24 "]), ("192.0.2.0/24",)),
            (service(annotations=older), ("10.0.0.0/8", "fd00::/8")),
            (
                service(annotations=older, loadBalancerSourceRanges=["192.0.2.0/24"]),
                ("192.0.2.0/24",),
            ),
        ):
            networks = expected and tuple(ip_network(each) for each in expected)
            self.assertEqual(networks, service_from(web).sources)

    def test_affinity(self):
        """It lasts for 10,800 s by default."""
        for given, seconds in (({}, 10800), ({"clientIP": {"timeoutSeconds": 60}}, 60)):
            web = service(sessionAffinity="ClientIP", sessionAffinityConfig=given)
            self.assertEqual(seconds, service_from(web).affinity)
        self.assertIsNone(service_from(service(sessionAffinity="None")).affinity)

    def test_distribution(self):
        """``PreferClose`` is the old name of ``PreferSameZone`` (KEP-3015)."""
        for given, expected in (
            (None, Distribution.ANY),
            ("PreferClose", Distribution.SAME_ZONE),
            ("PreferSameZone", Distribution.SAME_ZONE),
            ("PreferSameNode", Distribution.SAME_NODE),
        ):
            kept = service_from(service(trafficDistribution=given))
            self.assertEqual((expected, ()), (kept.distribution, kept.problems))

    def test_health_check_node_port(self):
        """It applies to Services of load balancers with the policy Local only."""
        local = {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}
        self.assertEqual(
            [32000, 0, 0],
            [
                service_from(service(**spec)).health_check_node_port
                for spec in (
                    {"type": "LoadBalancer", **local},
                    {"type": "NodePort", **local},
                    {"type": "LoadBalancer", **local, "externalTrafficPolicy": "Cluster"},
                )
            ],
        )


class InvalidTests(SynchronousTestCase):
    """Invalid values: each is reported, and the rest is kept."""

    def test_ports(self):
        """A port that cannot be served is left out."""
        web = service(
            ports=[
                port(0, "zero"),
                port(70_000, "large"),
                port("80", "text"),
                port(True, "bool"),
                port(80, "sctp", protocol="SCTP"),
                port(80, "http"),
                port(81, "http"),
                port(80, "again"),
            ]
        )
        kept = service_from(web)
        self.assertEqual((ServicePort("http", Protocol.TCP, 80),), kept.ports)
        self.assertEqual(
            [
                f"default/web:{name}"
                for name in ("zero", "large", "text", "bool", "sctp", "http", "again")
            ],
            [problem.what for problem in kept.problems],
        )
        self.assertEqual(
            "protocol SCTP is not supported, TCP and UDP are: it is not served",
            kept.problems[4].text,
        )

    def test_node_ports(self):
        """A node port that is invalid, or another port's, is left out; its port is served."""
        web = service(
            ports=[
                port(80, "a", nodePort=70_000),
                port(81, "b", nodePort=30080),
                port(82, "c", nodePort=30080),
                port(83, "d", nodePort=30080, protocol="UDP"),
            ]
        )
        kept = service_from(web)
        self.assertEqual([0, 30080, 0, 30080], [each.node_port for each in kept.ports])
        self.assertEqual(["default/web:a", "default/web:c"], [each.what for each in kept.problems])

    def test_addresses(self):
        """An address that is invalid, or special, is left out."""
        web = service(
            "web",
            "10.96.0.1",
            "fd00::zz",
            external=[
                *("127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "x" * 300),
                *("192.0.2.1", "2001:db8::1"),
            ],
        )
        kept = service_from(web)
        self.assertEqual((ip_address("10.96.0.1"),), kept.cluster_ips)
        self.assertEqual((ip_address("192.0.2.1"),), kept.external_ips)
        self.assertEqual(8, len(kept.problems))
        self.assertLess(max(len(each.text) for each in kept.problems), 150)

    def test_sources(self):
        """If no range is valid, no client is allowed: a limit must not disappear."""
        wrong = ["10.0.0.0", "10.0.0.0/255.0.0.0", "here", "fd00::%eth0/64"]
        web = service(loadBalancerSourceRanges=wrong)
        self.assertEqual((), service_from(web).sources)
        self.assertEqual(4, len(problems(web)))

    def test_words(self):
        """Unknown words are reported, with the known ones."""
        web = service(
            trafficDistribution="Near",
            annotations={
                "yurttunnel.io/proxy-protocol": "v3",
                "yurttunnel.io/load-balancing": "magic",
            },
        )
        self.assertEqual(
            [
                "trafficDistribution Near is not valid, use PreferSameZone or"
                " PreferSameNode or PreferClose: it is ignored",
                "yurttunnel.io/proxy-protocol v3 is not valid, use v1 or v2: it is ignored",
                "yurttunnel.io/load-balancing magic is not valid, use round-robin or"
                " least-connections: it is ignored",
            ],
            problems(web),
        )

    def test_affinity(self):
        """An invalid timeout is replaced by the default."""
        for seconds in (0, -1, 86_401, "60"):
            config = {"clientIP": {"timeoutSeconds": seconds}}
            web = service(sessionAffinity="ClientIP", sessionAffinityConfig=config)
            self.assertEqual(10800, service_from(web).affinity)
            self.assertEqual(1, len(problems(web)))

    def test_long_names(self):
        """Names of 253 characters are valid."""
        name = "n" * 253
        self.assertEqual(
            (name, ()), (service_from(service(name)).name, service_from(service(name)).problems)
        )

    def test_invalid_names(self):
        """The Service, or the port, is left out: an invalid name must not break rules or log."""
        for name in ('a"b', "a b", "a;b", "a\nb", "$(x)", "\u00e9", "a/b", "", "n" * 254):
            made = service_from(service(name))
            self.assertEqual((), made.ports)
            (reported,) = made.problems
            self.assertNotIn("\n", reported.what)
            self.assertIn("not valid in Kubernetes", reported.text)
            web = service(ports=[port(80, name or " "), port(81, "good")])
            self.assertEqual([81], [each.port for each in service_from(web).ports])
            self.assertEqual(1, len(problems(web)))

    def test_many(self):
        """Of very many problems of one Service some are reported, with the number of others."""
        web = service(external=["::"] * 100 + [f"127.0.0.{n}" for n in range(100)])
        reported = problems(web)
        self.assertEqual(MAX_REPORTED + 1, len(reported))
        self.assertEqual("91 more problems are not listed", reported[-1])
