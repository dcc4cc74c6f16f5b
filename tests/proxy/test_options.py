"""Tests of the command line of the service proxy."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.proxy.command import subject
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.rules.nftables.table import NAME
from yurttunnel.proxy.settings import BackEnd, Mode, Settings


def parse(*arguments: str, environment: dict[str, str] | None = None) -> Settings:
    """Parse ``arguments`` on the node edge-1."""
    return Options({"NODE_NAME": "edge-1"} if environment is None else environment).settings_of(
        *arguments
    )


class ValueTests(SynchronousTestCase):
    """Valid command lines."""

    def test_no_flag_is_required(self) -> None:
        """Defaults are those of kube-proxy, for flags that it has."""
        settings = parse()
        self.assertEqual("edge-1", settings.node_name)
        self.assertIs(Mode.AUTO, settings.mode)
        self.assertIs(BackEnd.AUTO, settings.back_end)
        self.assertEqual(("0.0.0.0", 10256), settings.pages.health)
        self.assertEqual(("127.0.0.1", 10249), settings.pages.metrics)
        self.assertEqual("0.0.0.0", settings.bind_address)
        self.assertIsNone(settings.proxy_ports)
        self.assertEqual((), settings.node_port_networks)
        self.assertEqual((False, ()), (settings.masquerade.everyone, settings.masquerade.pods))
        self.assertEqual((5.0, 30.0), (settings.udp.first, settings.udp.idle))
        sync = settings.sync
        self.assertEqual((30.0, 1.0, 30.0), (sync.period, sync.min_period, sync.drain))
        self.assertFalse(sync.removes_rules)
        self.assertFalse(settings.cleanup)
        sources = settings.sources
        self.assertTrue(sources.api)
        self.assertEqual((None, None, None), (sources.kube_config, sources.master, sources.file))

    def test_the_machine_names_the_node(self) -> None:
        """As for kube-proxy, if nothing else does; also with a flag without a value."""
        name = socket.gethostname().lower()
        self.assertEqual(name, parse(environment={}).node_name)
        self.assertEqual(name, parse("--hostname-override=").node_name)
        self.assertEqual("edge-2", parse("--hostname-override=Edge-2").node_name)

    def test_file_replaces_the_api(self) -> None:
        """Unless the API is specified: then both are used."""
        alone = parse("--services-file=/etc/services.yaml").sources
        self.assertEqual((False, Path("/etc/services.yaml")), (alone.api, alone.file))
        both = parse("--services-file=/a", "--master=http://127.0.0.1:10261/").sources
        self.assertEqual((True, "http://127.0.0.1:10261"), (both.api, both.master))

    def test_a_hub_in_capital_letters(self) -> None:
        """A scheme may be in capital letters, and selects TLS as usual."""
        self.assertEqual("http://hub:10261", parse("--master=HTTP://hub:10261").sources.master)
        self.assertEqual("https://api", parse("--master=api/").sources.master)

    def test_ranges_of_ports(self) -> None:
        """All formats of kube-proxy are accepted."""
        for text, ports in {
            "": None,
            "0-0": None,
            "4000-4002": range(4000, 4003),
            "4000+2": range(4000, 4003),
            "4000": range(4000, 4001),
        }.items():
            self.assertEqual(ports, parse(f"--proxy-port-range={text}").proxy_ports, text)

    def test_addresses_of_pages(self) -> None:
        """The port may be omitted, and health checks disabled."""
        self.assertEqual(("::", 10256), parse("--healthz-bind-address=[::]").pages.health)
        self.assertIsNone(parse("--healthz-bind-address=").pages.health)
        pages = parse("--metrics-bind-address=192.0.2.1:1").pages
        self.assertEqual(("192.0.2.1", 1), pages.metrics)

    def test_networks(self) -> None:
        """They are separated by commas; bits after the prefix are ignored."""
        found = parse("--nodeport-addresses=10.0.0.1/8, fd00::/8").node_port_networks
        self.assertEqual((ip_network("10.0.0.0/8"), ip_network("fd00::/8")), found)
        pods = parse("--cluster-cidr=10.244.0.0/16").masquerade.pods
        self.assertEqual((ip_network("10.244.0.0/16"),), pods)

    def test_a_manifest_of_kube_proxy(self) -> None:
        """Its flags are accepted; those without a meaning, and its file, cause a warning each."""
        file = Path(self.mktemp())
        file.write_text("kind: KubeProxyConfiguration\nmode: iptables\n")
        lines = Logged(self)
        settings = parse(
            f"--config={file}",
            "--hostname-override=edge-2",
            "--proxy-mode",
            "iptables",
            "--profiling",
            "--masquerade-all",
            "--v=2",
        )
        self.assertEqual("edge-2", settings.node_name)
        self.assertTrue(settings.masquerade.everyone)
        warned = [line.split()[0] for line in lines if "is ignored" in line]
        self.assertEqual(["--config", "--profiling", "--proxy-mode"], sorted(warned))

    def test_what_a_diagnosis_looks_at(self) -> None:
        """The pages, the files that are named, and the rules of both back ends."""
        found = subject(parse("--kubeconfig=/a", "--services-file=/b"))
        self.assertEqual(("127.0.0.1", 10249), (found.meta_host, found.meta_port))
        self.assertEqual((Path("/a"), Path("/b")), found.files)
        self.assertEqual(NAME, found.own_table)
        self.assertEqual(
            [b":KUBE-PORTALS-HOST -"], found.own_lines(b":A -\n:KUBE-PORTALS-HOST -\n")
        )
        self.assertIsNone(subject(parse("--master=http://a", "--proxy-backend=none")).own_lines)


class RefusalTests(SynchronousTestCase):
    """Errors name the flag and the fix."""

    def refused(self, *arguments: str) -> str:
        """Return the error of a command line."""
        with self.assertRaises(UsageError) as raised:
            parse(*arguments)
        return str(raised.exception)

    def test_hub_gets_no_secrets(self) -> None:
        """With a kubeconfig the API is accessed by TLS, wherever it is."""
        lines = self.refused("--kubeconfig=/etc/kubeconfig", "--master=http://127.0.0.1:10261")
        self.assertIn("--kubeconfig has no effect with --master http://", lines)
        both = parse("--kubeconfig=/etc/kubeconfig", "--master=https://api").sources
        self.assertEqual(("https://api", Path("/etc/kubeconfig")), (both.master, both.kube_config))

    def test_rules_cannot_lead_to_loopback(self) -> None:
        """This is only allowed for clients that connect without rules."""
        for address in ("127.0.0.1", "::1"):
            lines = self.refused(f"--bind-address={address}")
            self.assertIn("route_localnet", lines)
            self.assertIn("--proxy-backend none", lines)
        settings = parse("--bind-address=127.0.0.1", "--proxy-backend=none")
        self.assertEqual("127.0.0.1", settings.bind_address)

    def test_the_proxy_listens_on_all_addresses(self) -> None:
        """Rules redirect to the address at which a client's packet arrived."""
        self.assertIn("0.0.0.0", self.refused("--bind-address=192.0.2.1"))

    def test_the_kernel_carries_by_nftables_alone(self) -> None:
        """The error says what to omit."""
        for name in ("iptables", "none"):
            lines = self.refused("--mode=kernel", f"--proxy-backend={name}")
            self.assertIn(f"leave --proxy-backend {name} out", lines)
        self.assertIs(Mode.KERNEL, parse("--mode=kernel", "--proxy-backend=nftables").mode)

    def test_bad_values(self) -> None:
        """Each error names its flag."""
        for argument in (
            "--mode=fast",
            "--proxy-backend=ipvs",
            "--master=ftp://a",
            "--master=https://",
            "--master=https://ada:hunter2@api",
            "--proxy-port-range=5-4",
            "--proxy-port-range=0-4",
            "--proxy-port-range=1-70000",
            "--proxy-port-range=a",
            "--nodeport-addresses=primary",
            "--cluster-cidr=fd00::%eth0/64",
            "--healthz-bind-address=0.0.0.0:0",
            "--metrics-bind-address=",
            "--udp-timeout=0",
            "--iptables-sync-period=0",
            "--hostname-override=a/b",
        ):
            self.assertIn(argument.partition("=")[0], self.refused(argument), argument)

    def test_syncs_are_not_rarer_than_they_are_frequent(self) -> None:
        """The minimum interval of syncs must not exceed the maximum."""
        lines = self.refused("--iptables-sync-period=1s", "--iptables-min-sync-period=2s")
        self.assertIn("--iptables-min-sync-period", lines)
