"""The ports in the ConfigMap."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers, config_map
from tests.logged import Logged
from yurttunnel.cluster.proxy_ports import MAX_REPORTED, ProxyPorts, parse_ports, raw_ports
from yurttunnel.kube.resources import CONFIG_MAPS


def parsed(**data):
    """Parse the values of a ConfigMap, where 10264 is the insecure port."""
    return parse_ports(raw_ports(config_map(**data)), 10264)


class ParsingTests(SynchronousTestCase):
    """The four keys."""

    def test_lists(self):
        """Lists have ports between commas, with or without spaces; empty items are ignored."""
        ports = parsed(
            localhost_proxy_ports="10266, 10267",
            http_proxy_ports=" 9445 ,9100,",
            https_proxy_ports="9443",
        )
        self.assertEqual({10266, 10267}, ports.localhost)
        self.assertEqual({9445, 9100}, ports.http)
        self.assertEqual({9443}, ports.https)
        self.assertEqual((), ports.problems)

    def test_pairs(self):
        """Pairs with the insecure port are for HTTP."""
        self.assertEqual({9051, 9052}, parsed(dnat_ports_pair="9051=10264, 9052 = 10264").http)

    def test_pairs_without(self):
        """Without any pair in it, the key of the pairs is a list."""
        self.assertEqual({9051, 9052}, parsed(dnat_ports_pair="9051, 9052").http)

    def test_order(self):
        """A port in several keys is for HTTPS; the kubelet's own are in none."""
        ports = parsed(
            http_proxy_ports="1, 2, 10250, 10255",
            https_proxy_ports="2, 3, 10250",
            dnat_ports_pair="3=10264,10255=10264",
        )
        self.assertEqual(({1}, {2, 3}), (ports.http, ports.https))
        self.assertEqual((), ports.problems)

    def test_bad_items(self):
        """A bad item is ignored without an effect on others, and reported with its key."""
        ports = parsed(
            localhost_proxy_ports="10266, x, 0, 65536, -1, 1.5",
            http_proxy_ports="9100 9101",
            dnat_ports_pair="9051=10264, 9052=10263, 9053, =10264, a=b",
        )
        self.assertEqual(({10266}, {9051}), (ports.localhost, ports.http))
        self.assertEqual(10, len(ports.problems))
        for problem, words in (
            (ports.problems[0], "localhost-proxy-ports: 'x' is not a port"),
            (ports.problems[5], "http-proxy-ports: '9100 9101' is not a port"),
            (ports.problems[6], "dnat-ports-pair: 9052=10263 does not lead to --insecure-port"),
        ):
            self.assertIn(words, problem)

    def test_long_item(self):
        """A long item is truncated in the error."""
        [problem] = parsed(http_proxy_ports="9" * 100_000).problems
        self.assertLess(len(problem), 200)

    def test_malformed(self):
        """A ConfigMap without data, or with values that are not text, has no ports."""
        for data in (None, [], {"http-proxy-ports": 9100}):
            ports = parse_ports(raw_ports({"metadata": {}, "data": data}), 10264)
            self.assertEqual((set(), set(), ()), (ports.http, ports.localhost, ports.problems))


class ProxyPortsTests(SynchronousTestCase):
    """Watching the ConfigMap."""

    def setUp(self):
        """Watch a cluster without the ConfigMap."""
        self.reports = []
        self.lines = Logged(self, "proxy_ports")
        self.informers = FakeInformers()
        self.ports = ProxyPorts(
            self.informers, "tunnel", 10264, lambda *report: self.reports.append(report)
        )

    def put(self, **data):
        """Create or change the ConfigMap."""
        self.informers.put(CONFIG_MAPS, config_map("tunnel", **data))

    def test_live(self):
        """The ports follow the ConfigMap, and are empty when it is deleted."""
        self.assertEqual(set(), self.ports.ports.localhost)
        self.put(localhost_proxy_ports="10266")
        self.assertEqual({10266}, self.ports.ports.localhost)
        self.put(localhost_proxy_ports="10267")
        self.assertEqual({10267}, self.ports.ports.localhost)
        self.informers.delete(CONFIG_MAPS, "yurt-tunnel-server-cfg", "tunnel")
        self.assertEqual(set(), self.ports.ports.localhost)

    def test_others(self):
        """Other ConfigMaps are not watched."""
        self.informers.put(CONFIG_MAPS, config_map("other", localhost_proxy_ports="1"))
        self.assertEqual(set(), self.ports.ports.localhost)
        [spec] = self.informers.by_spec
        self.assertEqual(("tunnel", "yurt-tunnel-server-cfg"), (spec.namespace, spec.name))

    def test_reported_once(self):
        """A bad item is reported once, in the log and as an event, until it has been removed."""
        self.put(localhost_proxy_ports="x")
        self.put(localhost_proxy_ports="x, 10266")
        [line] = self.lines
        self.assertIn("ConfigMap tunnel/yurt-tunnel-server-cfg, localhost-proxy-ports: 'x'", line)
        [(involved, text)] = self.reports
        self.assertEqual(("v1", "ConfigMap"), (involved["apiVersion"], involved["kind"]))
        self.assertEqual(
            {"namespace": "tunnel", "name": "yurt-tunnel-server-cfg", "uid": "u-1"},
            involved["metadata"],
        )
        self.assertIn("'x' is not a port", text)
        self.put(localhost_proxy_ports="10266")
        self.put(localhost_proxy_ports="x")
        self.assertEqual((2, 2), (len(self.lines), len(self.reports)))

    def test_many(self):
        """Of very many bad items only some are reported, with the number of the others."""
        self.put(localhost_proxy_ports=",".join(f"x{i}" for i in range(1000)))
        self.assertEqual(MAX_REPORTED + 1, len(self.lines))
        [(_, text)] = self.reports
        self.assertIn("and 990 more", text)
        self.assertLess(len(text), 2000)
