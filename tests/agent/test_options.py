"""The agent's command line."""

from __future__ import annotations

import io
import os
import socket
from contextlib import redirect_stdout
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from twisted.logger import LogLevel
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.agent import options as options_module
from yurttunnel.agent.options import KUBELET_CONFIG, Options, Settings
from yurttunnel.agent.settings import ClusterSettings
from yurttunnel.pki.identity import Identifiers
from yurttunnel.pki.token import BadToken

TOKEN = f"{'a' * 16}.{'b' * 32}.sha256:{'c' * 64}"

REQUIRED = {
    "--state-dir": "/var/lib/agent",
    "--node-name": "edge-1",
    "--node-ip": "10.0.0.5",
    "--tunnelserver-addr": "tunnel.example.org",
}


def parse(*arguments: str, environment: dict[str, str] | None = None) -> Settings:
    """Parse the required flags and ``arguments``, which override them."""
    return Options(environment or {}).settings_of("--standalone", *flags_without(), *arguments)


def flags_without(*names: str) -> list[str]:
    """Return the required flags without ``names``."""
    return [f"{flag}={value}" for flag, value in REQUIRED.items() if flag not in names]


class FoundTests(SynchronousTestCase):
    """Values that are detected on a machine without a cluster if flags are missing."""

    def parse(self, *missing: str, server: str = "127.0.0.1") -> Settings:
        """Parse all flags except these."""
        flags = flags_without(*missing, "--tunnelserver-addr")
        return Options({"HOME": "/home/somebody"}).settings_of(
            "--standalone", f"--tunnelserver-addr={server}", *flags
        )

    def test_name(self) -> None:
        """The name is the machine's, in lower case; an invalid one causes an error."""
        self.patch(socket, "gethostname", lambda: "Edge-7.example")
        self.assertEqual("edge-7.example", self.parse("--node-name").node_name)
        for name in ("localhost", "a_b"):
            self.patch(socket, "gethostname", lambda name=name: name)
            with self.assertRaisesRegex(
                UsageError, "^--node-name is missing: .*host name is not valid"
            ):
                self.parse("--node-name")

    def test_address(self) -> None:
        """The address is the one with the route to the server; callers use the node's name only.

        So the certificate remains valid if the machine's address changes.
        """
        settings = self.parse("--node-ip")
        self.assertEqual("127.0.0.1", str(settings.node_ip))
        self.assertEqual(Identifiers(frozenset({"edge-1"}), frozenset()), settings.identifiers)
        self.assertEqual("::1", str(self.parse("--node-ip", server="[::1]").node_ip))

    def test_no_address(self) -> None:
        """Without a route the only address is used; none, or several, are reported."""
        self.patch(options_module, "source_address", lambda towards=None: None)
        own = {ip_address("127.0.0.1"), ip_address("::1")}
        self.patch(options_module, "own_addresses", lambda: own)
        with self.assertRaisesRegex(
            UsageError, "^--node-ip is missing: .* its address is not known$"
        ):
            self.parse("--node-ip")
        own.add(ip_address("192.0.2.7"))
        self.assertEqual("192.0.2.7", str(self.parse("--node-ip").node_ip))
        own.add(ip_address("10.0.0.1"))
        with self.assertRaisesRegex(
            UsageError, "its address is not known, and several addresses: 10.0.0.1, 192.0.2.7$"
        ):
            self.parse("--node-ip")

    def test_directory(self) -> None:
        """The directory is that of systemd for root, otherwise in the user's home."""
        for user, expected in (
            (0, "/var/lib/yurttunnel-agent/state"),
            (1000, "/home/somebody/.local/state/yurttunnel/agent"),
        ):
            self.patch(os, "geteuid", lambda user=user: user)
            self.assertEqual(expected, str(self.parse("--state-dir").mode.state_dir))


class ValueTests(SynchronousTestCase):
    """Valid command lines."""

    def test_the_required_flags_suffice(self) -> None:
        """All other flags have the documented default."""
        settings = parse()
        self.assertEqual(settings.node_name, "edge-1")
        self.assertEqual(settings.node_ip, ip_address("10.0.0.5"))
        self.assertEqual(settings.servers, (("tunnel.example.org", 10262),))
        self.assertEqual(settings.mode.state_dir, Path("/var/lib/agent"))
        self.assertEqual((settings.resume_window, settings.drain_timeout), (30.0, 30.0))
        self.assertEqual(settings.transport, "direct")
        self.assertEqual((settings.meta_host, settings.meta_port), ("127.0.0.1", 10266))
        self.assertEqual((settings.allowed_destinations, settings.mode.join_token), ((), None))
        self.assertTrue(settings.keep_default_destinations)
        self.assertEqual(
            settings.identifiers, Identifiers(frozenset({"edge-1"}), frozenset({settings.node_ip}))
        )

    def test_the_metas_default_address_has_the_family_of_the_node(self) -> None:
        """An IPv6-only node may have no 127.0.0.1."""
        self.assertEqual(parse("--node-ip=fd00::5").meta_host, "::1")

    def test_several_servers_are_separated_by_commas(self) -> None:
        """Each server counts once, with its own port or the default."""
        self.assertEqual(
            parse("--tunnelserver-addr", "a:1, [fd00::1]:2,b,a:1,").servers,
            (("a", 1), ("fd00::1", 2), ("b", 10262)),
        )

    def test_name_and_address_come_from_the_environment_unless_given(self) -> None:
        """As in the DaemonSets of yurttunnel."""
        settings = Options({"NODE_NAME": "edge-2", "NODE_IP": "10.0.0.6"}).settings_of(
            "--standalone", *flags_without("--node-name", "--node-ip")
        )
        self.assertEqual(settings.node_name, "edge-2")
        self.assertEqual(settings.node_ip, ip_address("10.0.0.6"))
        self.assertEqual(parse(environment={"NODE_NAME": "edge-2"}).node_name, "edge-1")

    def test_the_transports_can_be_twisteds(self) -> None:
        """Transports are selected by name."""
        self.assertEqual(parse("--transport=twisted").transport, "twisted")

    def test_durations_carry_units(self) -> None:
        """Durations may have units; zero is valid."""
        settings = parse("--resume-window=2m", "--drain-timeout=0")
        self.assertEqual((settings.resume_window, settings.drain_timeout), (120.0, 0.0))

    def test_destinations_add_up_and_the_default_can_be_dropped(self) -> None:
        """The flag is repeatable, in any order."""
        settings = parse("--allow-destination=192.0.2.1:22", "--allow-destination=*.example.org")
        self.assertEqual(len(settings.allowed_destinations), 2)
        self.assertTrue(settings.keep_default_destinations)
        settings = parse("--allow-destination=no-default", "--allow-destination=192.0.2.1:22")
        self.assertEqual(len(settings.allowed_destinations), 1)
        self.assertFalse(settings.keep_default_destinations)

    def test_identifiers_give_own_names_and_addresses(self) -> None:
        """Identifiers resolve to the node, like its name."""
        settings = parse("--agent-identifiers=host=alias.example&ipv4=10.0.0.9")
        self.assertEqual(settings.own_addresses, {ip_address("10.0.0.5"), ip_address("10.0.0.9")})
        names = settings.own_names
        self.assertEqual(names["edge-1"], (ip_address("10.0.0.5"),))
        self.assertEqual(names["alias.example"], (ip_address("10.0.0.5"),))
        self.assertIn(ip_address("::1"), names["localhost"])

    def test_the_join_token_is_read_from_its_file(self) -> None:
        """The join token is read when it is needed: an enrolled agent needs none.

        A byte order mark and the line ends of Windows are ignored.
        """
        path = self.mktemp()
        Path(path).write_bytes(f"\ufeff{TOKEN}\r\n".encode())
        for arguments in (("--join-token-file", path), ("--join-token", f"{TOKEN}\n")):
            mode = parse(*arguments).mode
            self.assertEqual((True, TOKEN), (mode.has_join_token, str(mode.read_join_token())))
        self.assertFalse(parse().mode.has_join_token)

    def test_a_file_without_a_token(self) -> None:
        """The error names the flag, and whether the file is missing, empty or malformed."""
        binary = Path(self.mktemp())
        binary.write_bytes(b"\xff\xfe")
        empty = Path(self.mktemp())
        empty.write_bytes(b"\n")
        for path, words in [
            ("/missing/token", "No such file"),
            (str(binary), "the join token is not of the form"),
            (str(empty), "the join token is not of the form"),
        ]:
            with self.assertRaisesRegex(BadToken, f"^--join-token-file {path}: {words}"):
                parse("--join-token-file", path).mode.read_join_token()

    def test_the_version_is_ours(self) -> None:
        """The version is ours, not Twisted's."""
        printed = io.StringIO()
        with redirect_stdout(printed), self.assertRaises(SystemExit):
            Options({}).parseOptions(["--version"])
        self.assertEqual(printed.getvalue(), f"yurttunnel {version('yurttunnel')}\n")

    def test_the_help_names_every_flag(self) -> None:
        """The help lists every flag."""
        text = Options({}).help().full()
        for flag in ("standalone", "allow-destination", "join-token-file", "no-default"):
            self.assertIn(flag, text)
        self.assertNotIn("--log_dir", text)


def parse_cluster(
    *arguments: str, environment: dict[str, str] | None = None, token: str = "/missing/token"
) -> Settings:
    """Parse the flags of an agent in a cluster; ``token`` is the path of a pod's token."""
    options = Options({"NODE_NAME": "edge-1", "NODE_IP": "10.0.0.5", **(environment or {})})
    options.service_account_token = Path(token)
    options.parseOptions(list(arguments))
    return options.settings


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class ClusterTests(SynchronousTestCase):
    """Command lines without ``--standalone``."""

    def mode(self, *arguments: str, **more: Any) -> ClusterSettings:
        """Return the settings of the cluster."""
        mode = parse_cluster(*arguments, **more).mode
        self.assertIsInstance(mode, ClusterSettings)
        return mode

    def token(self) -> str:
        """Create a service account's token."""
        path = self.mktemp()
        Path(path).write_text("token")
        return path

    def test_no_flag_is_required(self) -> None:
        """The variables of the DaemonSet suffice."""
        settings = parse_cluster()
        self.assertEqual((settings.node_name, settings.servers), ("edge-1", ()))
        self.assertIsNone(settings.server_connections)
        self.assertEqual(
            settings.mode,
            ClusterSettings(
                kube_config=Path("/etc/kubernetes/kubelet.conf"),
                apiserver_addr=None,
                cert_dir=Path("/var/lib/yurttunnel-agent/pki"),
                namespace="kube-system",
            ),
        )

    def test_a_pod_with_a_service_account(self) -> None:
        """Without a token, or outside a pod, the kubelet's kubeconfig is used."""
        self.assertIsNone(self.mode(environment=IN_POD, token=self.token()).kube_config)
        self.assertEqual(self.mode(environment=IN_POD).kube_config, KUBELET_CONFIG)
        self.assertEqual(self.mode(token=self.token()).kube_config, KUBELET_CONFIG)

    def test_a_kube_config_wins(self) -> None:
        """--kube-config overrides the service account; a given address overrides its own."""
        flag = "--kube-config=/etc/agent.conf"
        for arguments, address in [
            ([flag], None),
            ([flag, "--apiserver-addr=10.0.0.1:6443"], "https://10.0.0.1:6443"),
        ]:
            mode = self.mode(*arguments, environment=IN_POD, token=self.token())
            self.assertEqual(mode.kube_config, Path("/etc/agent.conf"))
            self.assertEqual(mode.apiserver_addr, address)

    def test_the_address_of_the_api(self) -> None:
        """The API's address is for the service account, and may have a scheme."""
        for given, meant in [
            ("10.0.0.1:6443", "https://10.0.0.1:6443"),
            ("https://api.example", "https://api.example:443"),
            ("[fd00::1]:6443", "https://[fd00::1]:6443"),
        ]:
            mode = self.mode(f"--apiserver-addr={given}")
            self.assertEqual((mode.kube_config, mode.apiserver_addr), (None, meant))

    def test_other_values(self) -> None:
        """Other values are used as given."""
        settings = parse_cluster(
            "--cert-dir=/pki", "--namespace=tunnel", "--server-connections=2",
            "--tunnelserver-addr=a:1,b",
        )  # fmt: skip
        self.assertEqual(settings.mode.cert_dir, Path("/pki"))
        self.assertEqual(settings.mode.namespace, "tunnel")
        self.assertEqual(settings.server_connections, 2)
        self.assertEqual(settings.servers, (("a", 1), ("b", 10262)))

    def test_an_empty_server_address_means_none(self) -> None:
        """An empty server address means none, as in manifests of yurttunnel 1.2."""
        self.assertEqual(parse_cluster("--tunnelserver-addr=").servers, ())

    def test_node_names_may_be_as_long_as_kubernetes_has_them(self) -> None:
        """Long node names are allowed in a cluster only: elsewhere they are the whole common name
        of a certificate.
        """
        name = "n" * 60 + ".example"
        self.assertEqual(parse_cluster(f"--node-name={name}").node_name, name)
        with self.assertRaisesRegex(UsageError, "^--node-name: "):
            parse(f"--node-name={name}")

    def test_flags_of_the_other_mode_are_refused(self) -> None:
        """Flags of the other mode are rejected, with what to do."""
        for flag in ("state-dir", "join-token-file", "join-token"):
            with self.assertRaisesRegex(UsageError, f"^--{flag} is for --standalone"):
                parse_cluster(f"--{flag}=x")
        for flag in ("kube-config", "apiserver-addr", "cert-dir", "namespace"):
            with self.assertRaisesRegex(UsageError, f"^--{flag} has no effect with --standalone"):
                parse(f"--{flag}=x")
        # Checked before missing flags, which may have a default without a cluster.
        with self.assertRaisesRegex(UsageError, "^--join-token-file is for --standalone: add that"):
            Options({}).parseOptions(["--tunnelserver-addr=a", "--join-token-file=x"])

    def test_bad_values_are_refused_with_the_flag_and_the_reason(self) -> None:
        """In one line."""
        for flag, value in [
            ("--kube-config", ""),
            ("--apiserver-addr", "http://a:1"),
            ("--apiserver-addr", "a:0"),
            ("--cert-dir", ""),
            ("--namespace", "a.b"),
            ("--namespace", "::1"),
            ("--server-connections", "0"),
            ("--server-connections", "-1"),
            ("--server-connections", "all"),
            ("--tunnelserver-addr", ","),
            ("--node-name", "Edge"),
        ]:
            with self.assertRaises(UsageError, msg=f"{flag}={value}") as caught:
                parse_cluster(f"{flag}={value}")
            self.assertTrue(str(caught.exception).startswith(f"{flag}: "), str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))


class ErrorTests(SynchronousTestCase):
    """Invalid command lines."""

    def test_bad_values_are_refused_with_the_flag_and_the_reason(self) -> None:
        """In one line."""
        for flag, value in [
            ("--node-name", "10_0"),
            ("--node-name", ""),
            ("--node-name", "Edge"),
            ("--node-ip", "edge-1"),
            ("--node-ip", "0.0.0.0"),
            ("--tunnelserver-addr", ","),
            ("--tunnelserver-addr", "a:0"),
            ("--tunnelserver-addr", "https://a:1"),
            ("--allow-destination", "10.0.0.5/24"),
            ("--agent-identifiers", "nonsense"),
            ("--resume-window", "soon"),
            ("--resume-window", "-1"),
            ("--drain-timeout", "1x"),
            ("--transport", "uvloop"),
            ("--meta-host", "example.org"),
            ("--meta-port", "65536"),
            ("--state-dir", ""),
            ("--join-token-file", ""),
            ("--join-token", "id.secret"),
            ("--join-token", ""),
        ]:
            with self.assertRaises(UsageError, msg=f"{flag}={value}") as caught:
                parse(f"{flag}={value}")
            self.assertTrue(str(caught.exception).startswith(f"{flag}: "), str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))

    def test_a_bad_environment_variable_is_named(self) -> None:
        """The error names the variable, because the operator did not use the flag."""
        options = Options({"NODE_IP": "here"})
        with self.assertRaisesRegex(UsageError, r"^\$NODE_IP \(or --node-ip\): 'here'"):
            options.parseOptions(["--standalone", *flags_without("--node-ip")])

    def test_each_required_flag_is_missed(self) -> None:
        """The error names the missing flag, and the variable that can replace it."""
        sentence = (
            "^--tunnelserver-addr is missing: give it; the server prints the whole command for a"
            " node when it is started, and so does yurttunnel token create there$"
        )
        with self.assertRaisesRegex(UsageError, sentence):
            Options({}).parseOptions(["--standalone", *flags_without("--tunnelserver-addr")])
        with self.assertRaisesRegex(UsageError, "^--node-name is missing: .*set NODE_NAME"):
            Options({}).parseOptions([])
        with self.assertRaisesRegex(UsageError, "^--node-ip is missing: .*set NODE_IP"):
            Options({}).parseOptions(["--node-name=edge-1"])

    def test_without_a_cluster(self) -> None:
        """Errors for a missing name, address or server mention --standalone."""
        for flag, given in (("NAME", ()), ("IP", ("--node-name=edge-1",))):
            events = str(self.assertRaises(UsageError, Options({}).parseOptions, given))
            self.assertEqual(
                f"--node-{flag.lower()} is missing: give it or set NODE_{flag}, or add --standalone"
                " where there is no cluster",
                events,
            )

    def test_two_tokens_are_refused(self) -> None:
        """Two tokens are ambiguous, and rejected."""
        with self.assertRaisesRegex(UsageError, "not both"):
            parse("--join-token=t", "--join-token-file=f")

    def test_server_connections_are_for_both_modes(self) -> None:
        """The default is all servers, in both modes."""
        self.assertIsNone(parse().server_connections)
        self.assertEqual(parse("--server-connections=1").server_connections, 1)

    def test_arguments_of_no_flag_are_refused(self) -> None:
        """Arguments without a flag are rejected."""
        with self.assertRaisesRegex(UsageError, "'edge-1'"):
            parse("edge-1")

    def test_flags_that_mean_nothing_here_are_accepted_with_a_warning(self) -> None:
        """Obsolete flags are accepted with a warning, so that manifests of yurttunnel 1.2 work."""
        warnings = Logged(self, "yurttunnel", level=LogLevel.warn)
        parse(
            "--vmodule=client=2",
            "--logtostderr=true",
            "--alsologtostderr",
            "--agent-identifiers=host=edge-1&uid=1",
        )
        for flag in (
            "--vmodule is",
            "--logtostderr is",
            "--alsologtostderr is",
            "--agent-identifiers: ",
        ):
            self.assertEqual(len([text for text in warnings if text.startswith(flag)]), 1, flag)
        self.assertEqual(len(warnings), 4)
