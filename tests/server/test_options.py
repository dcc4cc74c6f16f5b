"""The command line of the server."""

from __future__ import annotations

import io
import os
import sys
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.logged import Logged
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.server.endpoints import TcpEndpoint, UnixEndpoint
from yurttunnel.server.frontends.admission import parse_permission
from yurttunnel.server.frontends.forward import parse_forward
from yurttunnel.server.options import ClusterSettings, Options, Settings, StandaloneSettings
from yurttunnel.server.steering_options import SteeringFlags
from yurttunnel.steering.interception import Match

MINIMUM = ["--standalone", "--state-dir", "S"]


def parse(*arguments):
    """Parse a command line."""
    return Options().settings_of(*MINIMUM, *arguments)


class SettingsTests(SynchronousTestCase):
    """``Options.settings`` has the typed command line."""

    def test_defaults(self):
        """The defaults are those of yurttunnel 1.2 and of the design."""
        self.assertEqual(
            parse(),
            Settings(
                mode=StandaloneSettings(Path("S"), 86400.0, 30 * 86400.0, None),
                cleanup_iptables=False,
                bind_address="0.0.0.0",
                agent_port=10262,
                secure_port=10263,
                insecure_address="127.0.0.1",
                insecure_port=10264,
                meta_port=10265,
                kubelet_verify=KubeletVerification.AUTO,
                kubelet_ca=None,
                response_timeout=60.0,
                middlewares=(),
                connect_endpoints=(),
                connect_permissions=(),
                forwards=(),
                resume_window=30.0,
                return_grace=30.0,
                drain_timeout=30.0,
                transport="direct",
                certificate_names=(),
                certificate_addresses=(),
            ),
        )

    def test_values(self):
        """Every flag reaches the settings."""
        forward = "127.0.0.1:9000=edge-1/127.0.0.1:80"
        permission = "user:0=edge-1/*:80"
        self.assertEqual(
            parse(
                "--bind-address=::1",
                "--tunnel-agent-connect-port=1",
                "--insecure-bind-address=192.0.2.1",
                "--secure-port=4",
                "--insecure-port=5",
                "--meta-port=2",
                "--kubelet-verify=ca",
                "--kubelet-ca=kubelets.crt",
                "--response-timeout=2m",
                "--middleware=audit",
                "--middleware=quota",
                "--connect-endpoint=unix:a",
                "--connect-endpoint=tcp:3",
                f"--allow-connect={permission}",
                f"--forward={forward}",
                "--resume-window=1m",
                "--return-grace=2.5",
                "--drain-timeout=5",
                "--transport=twisted",
                "--cert-dns-names=a.example, b.example",
                "--cert-ips=192.0.2.1,::1",
                "--join-token-lifetime=30m",
                "--node-certificate-lifetime=720h",
                "--revoke-node=edge-1",
                "--cleanup-iptables",
            ),
            Settings(
                mode=StandaloneSettings(Path("S"), 1800.0, 720 * 3600.0, "edge-1"),
                cleanup_iptables=True,
                bind_address="::1",
                agent_port=1,
                secure_port=4,
                insecure_address="192.0.2.1",
                insecure_port=5,
                meta_port=2,
                kubelet_verify=KubeletVerification.CA,
                kubelet_ca=Path("kubelets.crt"),
                response_timeout=120.0,
                middlewares=("audit", "quota"),
                connect_endpoints=(
                    ("--connect-endpoint unix:a", UnixEndpoint("a")),
                    ("--connect-endpoint tcp:3", TcpEndpoint(3)),
                ),
                connect_permissions=(parse_permission(permission),),
                forwards=(parse_forward(forward),),
                resume_window=60.0,
                return_grace=2.5,
                drain_timeout=5.0,
                transport="twisted",
                certificate_names=("a.example", "b.example"),
                certificate_addresses=(ip_address("192.0.2.1"), ip_address("::1")),
            ),
        )

    def test_ports_without_tls_stay_on_this_machine(self):
        """Ports without TLS listen on the loopback address of the family of ``--bind-address``."""
        self.assertEqual(parse("--bind-address=::").insecure_address, "::1")
        self.assertEqual(parse("--bind-address=192.0.2.1").insecure_address, "127.0.0.1")

    def test_return_grace(self):
        """Streams wait for the resume window, unless --return-grace limits it after a reset."""
        self.assertEqual(parse("--resume-window=0").return_grace, 0)
        self.assertEqual(parse("--resume-window=2m").return_grace, 120.0)

    def test_a_cluster_needs_no_flag(self):
        """The flags of a pod of yurttunnel 1.2 suffice, with its names in the cluster."""
        settings = Options().settings_of(
            "--bind-address=192.0.2.1", "--proxy-strategy=destHost", "--v=2"
        )
        self.assertEqual(
            settings.mode,
            ClusterSettings(
                kube_config=None,
                cert_dir=Path("/var/lib/yurttunnel-server/pki"),
                namespace="kube-system",
                cluster_domain="cluster.local",
                allowed_callers=("kube-apiserver-kubelet-client",),
                client_ca=None,
                accept_common_certificates=False,
                steering=SteeringFlags(
                    iptables=True,
                    iptables_period=60.0,
                    match=None,
                    pods=False,
                    passthrough_port=None,
                    passthrough_ports=frozenset(),
                    dns=True,
                    dns_period=1800.0,
                    refuse_unnamed_upgrades=False,
                ),
            ),
        )

    def test_values_of_a_cluster(self):
        """Every flag of the cluster reaches the settings."""
        settings = Options().settings_of(
            "--kube-config=k.conf",
            "--cert-dir=pki",
            "--namespace=edge-system",
            "--cluster-domain=example.internal",
            "--allowed-callers=one, two",
            "--client-ca-file=clients.crt",
            "--accept-common-agent-certificates",
            "--enable-iptables=true",
            "--iptables-sync-period=5m",
            "--intercept-match=cloud-return",
            "--intercept-pods",
            "--passthrough-port=6",
            "--passthrough-ports=10250, 9443",
            "--enable-dns-controller=false",
            "--dns-sync-period=1h",
            "--unnamed-upgrades=refuse",
        )
        self.assertEqual(
            settings.mode,
            ClusterSettings(
                kube_config=Path("k.conf"),
                cert_dir=Path("pki"),
                namespace="edge-system",
                cluster_domain="example.internal",
                allowed_callers=("one", "two"),
                client_ca=Path("clients.crt"),
                accept_common_certificates=True,
                steering=SteeringFlags(
                    iptables=True,
                    iptables_period=300.0,
                    match=Match.CLOUD_RETURN,
                    pods=True,
                    passthrough_port=6,
                    passthrough_ports=frozenset({10250, 9443}),
                    dns=False,
                    dns_period=3600.0,
                    refuse_unnamed_upgrades=True,
                ),
            ),
        )

    def test_steering_in_the_manner_of_go(self):
        """Switches may have a value, and periods have the minimum values of 1.2."""
        settings = Options().settings_of(
            "--enable-iptables",
            "-enable-dns-controller=F",
            "--iptables-sync-period=1",
            "--dns-sync-period=1",
        )
        steering = settings.mode.steering
        self.assertEqual((True, 15.0), (steering.iptables, steering.iptables_period))
        self.assertEqual((False, 30.0), (steering.dns, steering.dns_period))

    def test_pass_through_is_for_kubelets_by_default(self):
        """Only their port, once there is --passthrough-port."""
        settings = Options().settings_of("--passthrough-port=10261")
        self.assertEqual(settings.mode.steering.passthrough_ports, frozenset({10250}))

    def test_settings_need_a_command_line(self):
        """Before parsing there are none."""
        self.assertRaises(RuntimeError, getattr, Options(), "settings")


class ErrorTests(SynchronousTestCase):
    """Every error is one line that names the flag."""

    def assert_refused(self, words, *arguments):
        """Check that the command line is rejected with ``words`` in one line."""
        error = self.assertRaises(UsageError, Options().parseOptions, list(arguments))
        self.assertIn(words, str(error))
        self.assertNotIn("\n", str(error))

    def test_the_mode(self):
        """Flags of one mode are rejected in the other, with what to do."""
        self.assert_refused("--state-dir is for --standalone: add that", "--state-dir", "S")
        self.assert_refused("--revoke-node is for --standalone", "--revoke-node", "edge-1")
        self.assert_refused("--kube-config has no effect with", *MINIMUM, "--kube-config=k")

    def test_steering(self):
        """Contradictory flags are rejected."""
        for flag in (
            "--intercept-pods",
            "--intercept-match=edge-set",
            "--passthrough-port=1",
            "--unnamed-upgrades=pod",
            "--enable-iptables",
            "--enable-dns-controller=true",
        ):
            self.assert_refused("has no effect with --standalone", *MINIMUM, flag)
        for flag in ("--intercept-pods", "--intercept-match=edge-set"):
            self.assert_refused(
                "has no effect with --enable-iptables=false", "--enable-iptables=false", flag
            )
        self.assert_refused("--passthrough-port: add it", "--passthrough-ports=10250")
        self.assert_refused(
            "use the same port 0.0.0.0:10262", "--passthrough-port=10262", "--bind-address=0.0.0.0"
        )

    def test_the_state_directory(self):
        """The default is the usual directory, which is in the home unless for root."""
        self.patch(os, "geteuid", lambda: 1000)
        for environment, expected in (
            ({"HOME": "/home/me"}, "/home/me/.local/state/yurttunnel/server"),
            ({"HOME": "/home/me", "XDG_STATE_HOME": "/s"}, "/s/yurttunnel/server"),
        ):
            settings = Options(environment).settings_of("--standalone")
            self.assertEqual(expected, str(settings.mode.state_dir))
        with self.assertRaisesRegex(UsageError, "^--state-dir is missing: .*no home directory"):
            Options({}).parseOptions(["--standalone"])
        self.assert_refused("--state-dir: it is empty", "--standalone", "--state-dir=")

    def test_values(self):
        """Each flag rejects invalid values."""
        for flag, *values in (
            ("bind-address", "", "host", "1.2.3"),
            ("insecure-bind-address", "host"),
            ("tunnel-agent-connect-port", "0", "65536", "http"),
            ("meta-port", "-1"),
            ("secure-port", "", "https"),
            ("insecure-port", "0"),
            ("kubelet-verify", "", "yes", "AUTO"),
            ("kubelet-ca", ""),
            ("response-timeout", "never"),
            ("resume-window", "-1", "soon", ""),
            ("return-grace", "x", "31"),
            ("drain-timeout", "1 week"),
            ("transport", "", "uvloop"),
            ("cert-dns-names", "a b"),
            ("cert-ips", "a.example"),
            ("join-token-lifetime", "0"),
            ("node-certificate-lifetime", "0s"),
            ("revoke-node", "Edge_1", ""),
            ("connect-endpoint", "9000"),
            ("allow-connect", "", "root", "user:root=*/*:*"),
            ("forward", "9000"),
        ):
            for value in values:
                self.assert_refused(f"--{flag}: ", *MINIMUM, f"--{flag}={value}")
        for flag, *values in (
            ("kube-config", ""),
            ("cert-dir", ""),
            ("namespace", "", "a.b", "a b"),
            ("cluster-domain", "", "a b"),
            ("client-ca-file", ""),
            ("enable-iptables", "yes", ""),
            ("iptables-sync-period", "soon"),
            ("intercept-match", "all"),
            ("passthrough-port", "0", "http"),
            ("enable-dns-controller", "2"),
            ("dns-sync-period", "-1"),
            ("unnamed-upgrades", "", "Pod", "allow"),
        ):
            for value in values:
                self.assert_refused(f"--{flag}: ", f"--{flag}={value}")

    def test_permissions_for_nobody(self):
        """Permissions without an endpoint are rejected: no caller could use them."""
        self.assert_refused(
            "--allow-connect has no effect without --connect-endpoint: add one",
            *MINIMUM,
            "--allow-connect=user:0=*/*:*",
        )

    def test_unknown_flags_and_arguments(self):
        """Unknown flags and arguments are quoted."""
        self.assert_refused("quic-port", *MINIMUM, "--quic-port=1")
        self.assert_refused("unexpected argument 'start'", *MINIMUM, "start")

    def test_one_port_for_two_purposes(self):
        """Both flags of a port in two uses are named."""
        self.assert_refused(
            "--meta-port and --forward 10265=a/b:1 use the same port 127.0.0.1:10265",
            *MINIMUM,
            "--forward=10265=a/b:1",
        )
        self.assert_refused(
            "use the same port 127.0.0.1:7",
            *MINIMUM,
            "--connect-endpoint=tcp:7",
            "--connect-endpoint=ssl:7",
        )
        self.assert_refused(
            "--tunnel-agent-connect-port and --meta-port use the same port 127.0.0.1:1",
            *MINIMUM,
            "--bind-address=127.0.0.1",
            "--tunnel-agent-connect-port=1",
            "--meta-port=1",
        )
        self.assert_refused(
            "is given twice", *MINIMUM, "--connect-endpoint=unix:a", "--connect-endpoint=unix:a"
        )
        self.assert_refused(
            "--tunnel-agent-connect-port and --secure-port use the same port 0.0.0.0:10262",
            *MINIMUM,
            "--secure-port=10262",
        )
        self.assert_refused(
            "--insecure-port and --meta-port use the same port 127.0.0.1:7",
            *MINIMUM,
            "--insecure-port=7",
            "--meta-port=7",
        )

    def test_flags_that_contradict_each_other(self):
        """Contradictory flags are both named, with the remedy."""
        self.assert_refused(
            "--kubelet-ca has no effect with --kubelet-verify skip: leave one of them out",
            *MINIMUM,
            "--kubelet-ca=kubelets.crt",
            "--kubelet-verify=skip",
        )

    def test_a_middleware_twice(self):
        """A middleware that is given twice is named."""
        self.assert_refused(
            "--middleware audit is given twice",
            *MINIMUM,
            "--middleware=audit",
            "--middleware=audit",
        )


class CompatibilityTests(SynchronousTestCase):
    """Command lines of yurttunnel 1.2 work."""

    def setUp(self):
        """Observe the log."""
        self.logged = Logged(self)

    def warned(self):
        """Return the flags in the warnings."""
        return [event["flag"] for event in self.logged.events if "flag" in event]

    def test_flags_without_a_meaning_are_ignored_with_a_warning(self):
        """Each is named; Go's switches come with a value or alone."""
        parse(
            "--egress-selector-enable=false",
            "--server-count=1",
            "--proxy-strategy=destHost",
            "--v=2",
            "--logtostderr",
        )
        self.assertEqual(
            sorted(self.warned()),
            [
                "egress-selector-enable",
                "logtostderr",
                "proxy-strategy",
                "server-count",
            ],
        )

    def test_absent_flags_cause_no_warning(self):
        """The minimal command line causes none."""
        parse()
        self.assertEqual(self.warned(), [])

    def test_version(self):
        """``--version`` prints our version and ends with status 0."""
        output = io.StringIO()
        self.patch(sys, "stdout", output)
        error = self.assertRaises(SystemExit, Options().parseOptions, ["--version"])
        self.assertEqual(error.code, 0)
        self.assertEqual(output.getvalue(), f"yurttunnel {version('yurttunnel')}\n")

    def test_help_names_every_flag(self):
        """``--help-all`` includes the repeatable flags."""
        text = Options().help().full()
        for flag in (
            "--connect-endpoint=",
            "--forward=",
            "--middleware=",
            "--kubelet-verify=",
            "--revoke-node=",
            "--return-grace=",
        ):
            self.assertIn(flag, text)

    def test_help_is_tidy(self):
        """No empty defaults, no gaps in sentences, and ignored flags are only listed."""
        text = Options().help().full(1000)
        self.assertNotIn("[default: ]", text)
        self.assertNotRegex(text, r"\S {2,}[a-z]")
        self.assertNotIn("--server-count", text)
        self.assertIn("docs/middlewares.md", text)
        self.assertIn(
            "ignored with a warning: add_dir_header, alsologtostderr, egress-selector-enable, ",
            text,
        )

    def test_values_of_ignored_flags_are_ignored_too(self):
        """After "=" or as the next argument; in Go one hyphen is equivalent to two."""
        parse("--stderrthreshold", "1", "-vmodule=a=1", "--log_dir", "x", "--logtostderr")
        self.assertEqual(self.warned(), ["stderrthreshold", "vmodule", "log_dir", "logtostderr"])
