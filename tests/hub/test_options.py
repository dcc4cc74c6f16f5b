"""The hub's command line."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.hub.options import Options
from yurttunnel.hub.settings import BootstrapMode, InterfaceSettings, LoadBalancing, Settings

REQUIRED = ("--node-name=edge-1", "--server-addr=api.example:6443")
TOKEN = "abcdef.0123456789abcdef"
PIN = "ab" * 32


def parse(*arguments: str, environment: dict[str, str] | None = None) -> Settings:
    """Parse the required flags and ``arguments``, which override them."""
    return Options(environment or {}).settings_of(*REQUIRED, *arguments)


class ValueTests(SynchronousTestCase):
    """The meaning of valid command lines."""

    def test_the_required_flags_suffice(self) -> None:
        """All other flags have upstream's defaults, if upstream has the flag."""
        settings = parse()
        self.assertEqual("edge-1", settings.node_name)
        self.assertEqual(("https://api.example:6443",), settings.servers)
        self.assertEqual(Path("/var/lib/yurthub"), settings.root_dir)
        self.assertEqual(Path("/etc/kubernetes/cache"), settings.cache_dir)
        self.assertEqual(2 * 2**30, settings.cache_bytes)
        listeners = settings.listeners
        self.assertEqual(("127.0.0.1", 10267), (listeners.meta_host, listeners.meta_port))
        self.assertEqual(("127.0.0.1", 10261), (listeners.proxy_host, listeners.proxy_port))
        self.assertEqual(10268, listeners.secure_port)
        interface = InterfaceSettings("yurthub-dummy0", ip_address("169.254.2.1"))
        self.assertEqual(interface, listeners.interface)
        self.assertIs(LoadBalancing.ROUND_ROBIN, settings.load_balancing)
        health = settings.health
        self.assertEqual((10.0, 2.0), (health.interval, health.timeout))
        self.assertEqual((3, 2, 40.0), (health.retries, health.threshold, health.kubelet_grace))
        self.assertEqual(250, settings.max_requests)
        self.assertEqual(1800.0, settings.min_watch_seconds)
        self.assertTrue(settings.token_placeholders)
        self.assertEqual(("kube-system", ""), (settings.namespace, settings.node_pool))
        self.assertEqual(frozenset(), settings.disabled_filters)
        bootstrap = settings.bootstrap
        self.assertIs(BootstrapMode.TOKEN, bootstrap.mode)
        self.assertEqual((None, None), (bootstrap.file, bootstrap.token))
        self.assertFalse(bootstrap.skips_pins)

    def test_servers(self) -> None:
        """Several servers are separated by commas, without duplicates; the default port is 443."""
        text = "--server-addr=https://a:1/, b:2 ,https://[fd00::1]:6443,c,a:1,"
        expected = ("https://a:1", "https://b:2", "https://[fd00::1]:6443", "https://c:443")
        self.assertEqual(expected, parse(text).servers)

    def test_the_node_is_named_by_the_environment(self) -> None:
        """The node's name may come from the environment, as in static pods."""
        settings = Options({"NODE_NAME": "edge-2"}).settings_of(REQUIRED[1])
        self.assertEqual("edge-2", settings.node_name)

    def test_the_manifest_of_upstream(self) -> None:
        """Its flags are accepted, with a warning for each one that is ignored."""
        lines = Logged(self, "yurttunnel")
        settings = parse(
            "--v=2",
            "--bind-address=127.0.0.1",
            "--bootstrap-file=/var/lib/yurthub/bootstrap-hub.conf",
            "--working-mode=edge",
            "--namespace=kube-system",
            "--enable-iptables=true",
            "--gc-frequency=60",
            "--nodepool-name=",
            "--join-token=",
        )
        self.assertEqual(Path("/var/lib/yurthub/bootstrap-hub.conf"), settings.bootstrap.file)
        warned = [line.split()[0] for line in lines if "is ignored" in line]
        self.assertEqual(["--enable-iptables", "--gc-frequency"], sorted(warned))

    def test_token_and_pins(self) -> None:
        """Several pins are combined, in any format."""
        pins = (f"sha256:{PIN},sha256:{'cd' * 32}", f"sha256:{'ef' * 32}")
        given = [f"--discovery-token-ca-cert-hash={pin}" for pin in pins]
        bootstrap = parse(f"--join-token={TOKEN}", *given).bootstrap
        self.assertEqual({PIN, "cd" * 32, "ef" * 32}, bootstrap.pins)
        assert bootstrap.token is not None
        self.assertEqual(TOKEN, bootstrap.token.bearer)

    def test_no_interface(self) -> None:
        """Then pods can only use the loopback address."""
        self.assertIsNone(parse("--enable-dummy-if=false").listeners.interface)

    def test_the_address_of_ipv6(self) -> None:
        """An IPv6-only node has an IPv6 address by default."""
        interface = parse("--bind-proxy-address=::1").listeners.interface
        assert interface is not None
        self.assertEqual(ip_address("fd00::2:1"), interface.address)

    def test_no_limits(self) -> None:
        """Zero and negative values are no limit; upstream then rejected all requests."""
        settings = parse("--max-requests-in-flight=0", "--max-watches=-1")
        self.assertEqual((0, 0), (settings.max_requests, settings.max_watches))

    def test_sizes(self) -> None:
        """The size of the cache has the units of Kubernetes."""
        self.assertEqual(512 * 2**20, parse("--cache-max-bytes=512Mi").cache_bytes)
        self.assertEqual(10**9, parse("--cache-max-bytes=1000000000").cache_bytes)

    def test_filters(self) -> None:
        """Filters are disabled by name, or all at once."""
        disabled = parse("--disabled-resource-filters=masterservice, x").disabled_filters
        self.assertEqual({"masterservice", "x"}, disabled)
        self.assertEqual({"*"}, parse("--enable-resource-filter=false").disabled_filters)

    def test_help(self) -> None:
        """It lists ignored flags, and their release."""
        text = Options({}).help().note
        self.assertIn("yurthub 1.6 are accepted and ignored", text)
        self.assertIn("enable-iptables", text)


class RejectionTests(SynchronousTestCase):
    """Errors name the flag and the fix."""

    def assert_rejected(self, argument: str, words: str) -> None:
        """Assert that an argument is rejected with these words, on one line."""
        error = str(self.assertRaises(UsageError, parse, argument))
        self.assertIn(argument.partition("=")[0], error)
        self.assertIn(words, error)
        self.assertNotIn("\n", error)

    def test_missing(self) -> None:
        """Name and servers are required."""
        for given, flag in zip(REQUIRED, ("--server-addr", "--node-name"), strict=True):
            error = self.assertRaises(UsageError, Options({}).parseOptions, [given])
            self.assertIn(f"{flag} is missing", str(error))

    def test_servers(self) -> None:
        """Schemes other than https are rejected."""
        self.assert_rejected("--server-addr=http://api:6443", "https://HOST:PORT")
        self.assert_rejected("--server-addr=,", "names no API server")
        for text in ("api:0", "https://api:99999", "https://api:6443/prefix"):
            self.assert_rejected(f"--server-addr={text}", "not a port")
        self.assert_rejected("--server-addr=https://a b", "not a host name")
        self.assert_rejected("--server-addr=https://[fe80::1%eth0]:6443", "has a zone")
        self.assert_rejected("--server-addr=https://fd00::1:6443", "has no brackets")

    def test_interface(self) -> None:
        """Names have at most 15 characters, and addresses must not be in use by others."""
        self.assert_rejected("--dummy-if-name=yurthub-dummy-00", "15 characters")
        self.assert_rejected("--dummy-if-name=a/b", "not the name")
        for address in ("10.0.0.1", "169.254.31.7", "169.254.1.1", "::1"):
            self.assert_rejected(f"--dummy-if-ip={address}", address)

    def test_everybodys_node(self) -> None:
        """The port without credentials must be on loopback."""
        self.assert_rejected("--bind-proxy-address=0.0.0.0", "not a loopback address")

    def test_cloud(self) -> None:
        """Errors for removed modes name the alternative."""
        self.assert_rejected("--working-mode=cloud", "runs no hub")

    def test_choices(self) -> None:
        """Unknown values are rejected with the list of known ones."""
        self.assert_rejected("--lb-mode=random", "rr nor priority")
        self.assert_rejected("--bootstrap-mode=password", "token nor kubeletcertificate")

    def test_numbers(self) -> None:
        """Numbers, times and sizes are checked."""
        self.assert_rejected("--heartbeat-failed-retry=0", "from 1 on")
        self.assert_rejected("--heartbeat-interval-seconds=0", "no time")
        self.assert_rejected(
            "--heartbeat-timeout-seconds=11", "longer than --heartbeat-interval-seconds"
        )
        self.assert_rejected("--max-watches=many", "not a number")
        self.assert_rejected("--cache-max-bytes=1Mi", "at least 16Mi")

    def test_tokens(self) -> None:
        """A token is not in the error message, and needs a pin."""
        error = str(self.assertRaises(UsageError, parse, "--join-token=sesame"))
        self.assertIn("--join-token", error)
        self.assertNotIn("sesame", error)
        error = str(self.assertRaises(UsageError, parse, f"--join-token={TOKEN}"))
        self.assertIn("--discovery-token-ca-cert-hash is missing", error)
        self.assert_rejected("--discovery-token-ca-cert-hash=ab", "sha256:")
        both = (f"--join-token={TOKEN}", "--bootstrap-file=x")
        self.assertIn("not both", str(self.assertRaises(UsageError, parse, *both)))
