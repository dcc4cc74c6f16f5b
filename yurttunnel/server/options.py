"""The command line of the server, parsed and checked into :class:`Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from twisted.python import usage

from yurttunnel.http.authority import join_authority
from yurttunnel.ops import tunnel_flags
from yurttunnel.ops.default_directories import state_directory
from yurttunnel.ops.diagnose.flags import bundle_path
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import KLOG_FLAGS, KLOG_SWITCHES, CommandOptions
from yurttunnel.ops.own_addresses import loopback_address, unspecified_address
from yurttunnel.pki.authority import DEFAULT_NODE_LIFETIME
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.token import DEFAULT_TOKEN_LIFETIME
from yurttunnel.server import flag_table
from yurttunnel.server.audit_options import audit_settings
from yurttunnel.server.audit_sinks import AuditSettings
from yurttunnel.server.endpoints import Endpoint, TcpEndpoint, TlsEndpoint
from yurttunnel.server.frontends.admission import Permission
from yurttunnel.server.frontends.forward import Forward
from yurttunnel.server.steering_options import SteeringFlags, refuse_steering, steering_flags

# Flags of yurttunnel 1.2 and of its logging library.
_IGNORED_FLAGS = {
    "server-count": "servers report their number to agents",
    "proxy-strategy": "the agent is always chosen by the destination",
    **KLOG_FLAGS,
}
_IGNORED_SWITCHES = {"egress-selector-enable": "use --connect-endpoint", **KLOG_SWITCHES}

_STANDALONE_FLAGS = (
    flag_table.STATE_DIR,
    flag_table.JOIN_TOKEN_LIFETIME,
    flag_table.NODE_CERTIFICATE_LIFETIME,
    flag_table.REVOKE_NODE,
)

_Address = IPv4Address | IPv6Address


class StandaloneSettings(NamedTuple):
    """The settings of ``--standalone``; times are in seconds.

    ``revoke_node`` is the name of a node if the command is to revoke it and exit.
    """

    state_dir: Path
    join_token_lifetime: float
    node_certificate_lifetime: float
    revoke_node: str | None


class ClusterSettings(NamedTuple):
    """The settings of a cluster.

    ``kube_config`` is ``None`` in a pod. ``namespace`` is that of the server's own objects. Callers
    of 10263 may have a certificate of ``client_ca``, in addition to the cluster's authority, and
    need no other permission if its name is in ``allowed_callers``.
    """

    kube_config: Path | None
    cert_dir: Path
    namespace: str
    cluster_domain: str
    allowed_callers: tuple[str, ...]
    client_ca: Path | None
    accept_common_certificates: bool
    steering: SteeringFlags


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the server; times are in seconds.

    ``cleanup_iptables`` is whether the command is to remove firewall rules and exit.

    ``mode`` has the settings of the standalone mode or of the cluster. Agents connect to
    ``bind_address``:``agent_port``, callers of kubelets to ``bind_address``:``secure_port`` and,
    without TLS, ``insecure_address``:``insecure_port``; the meta pages are on
    ``insecure_address``:``meta_port``. ``kubelet_ca`` is ``None`` if kubelets are verified by the
    embedded authority, or that of the cluster. ``certificate_names`` and ``certificate_addresses``
    are added to the server's certificate. ``audit`` is the destination of the audit log, ``None``
    without one.
    """

    mode: StandaloneSettings | ClusterSettings
    cleanup_iptables: bool
    bind_address: str
    agent_port: int
    secure_port: int
    insecure_address: str
    insecure_port: int
    meta_port: int
    kubelet_verify: KubeletVerification
    kubelet_ca: Path | None
    response_timeout: float
    middlewares: tuple[str, ...]
    connect_endpoints: tuple[tuple[str, Endpoint], ...]
    """Each with the flag as given, for messages."""
    connect_permissions: tuple[Permission, ...]
    """The permissions of their callers, if not everything is permitted."""
    forwards: tuple[Forward, ...]
    resume_window: float
    return_grace: float
    drain_timeout: float
    transport: str
    """As in :func:`~yurttunnel.tunnel.direct.reactor.with_transports`."""
    certificate_names: tuple[str, ...]
    certificate_addresses: tuple[_Address, ...]
    audit: AuditSettings | None = None
    prints_startup_message: bool = True
    """Whether a server without a cluster prints the next steps once it is ready."""


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-server``."""

    invocation = "yurttunnel server"

    longdesc = """The cloud end of the tunnel. It accepts agents on --tunnel-agent-connect-port and
    forwards connections to their nodes: HTTP requests to kubelets on --secure-port and
    --insecure-port, HTTP CONNECT on --connect-endpoint, and plain TCP on --forward. Durations are
    in seconds or have units: 30, 30s, 5m, 1h30m."""

    examples = (
        Example(
            "Without a cluster, with port 80 of node edge-1 as port 9000 here; agents need a copy"
            " of join-token from the state directory",
            "--standalone --state-dir /var/lib/yurttunnel-server"
            " --forward 9000=edge-1/127.0.0.1:80",
        ),
        Example(
            "The same for HTTP CONNECT clients, which name node and port in each request",
            "--standalone --state-dir /var/lib/yurttunnel-server --connect-endpoint tcp:8080",
        ),
        Example("In a pod of a cluster"),
    )

    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES

    table = flag_table.TABLE

    def make_settings(self) -> Settings:
        bundle_path(self)
        bind_address = self.optional_value(flag_table.BIND_ADDRESS, unspecified_address())
        resume_window = self.value(flag_table.RESUME_WINDOW)
        settings = Settings(
            mode=self._standalone() if self.is_given(flag_table.STANDALONE) else self._cluster(),
            cleanup_iptables=self.is_given(flag_table.CLEANUP_IPTABLES),
            bind_address=bind_address,
            agent_port=self.value(flag_table.TUNNEL_AGENT_CONNECT_PORT),
            secure_port=self.value(flag_table.SECURE_PORT),
            insecure_address=self._insecure_address(bind_address),
            insecure_port=self.value(flag_table.INSECURE_PORT),
            meta_port=self.value(flag_table.META_PORT),
            kubelet_verify=self.value(flag_table.KUBELET_VERIFY),
            kubelet_ca=self.optional_value(flag_table.KUBELET_CA, None),
            response_timeout=self.value(flag_table.RESPONSE_TIMEOUT),
            middlewares=self.all_values(flag_table.MIDDLEWARE),
            connect_endpoints=self.all_values(flag_table.CONNECT_ENDPOINT),
            connect_permissions=self.all_values(flag_table.ALLOW_CONNECT),
            forwards=self.all_values(flag_table.FORWARD),
            resume_window=resume_window,
            return_grace=self._return_grace(resume_window),
            drain_timeout=self.value(tunnel_flags.DRAIN_TIMEOUT),
            transport=self.value(tunnel_flags.TRANSPORT),
            certificate_names=self.optional_value(flag_table.CERT_DNS_NAMES, ()),
            certificate_addresses=self.optional_value(flag_table.CERT_IPS, ()),
            audit=audit_settings(self),
        )
        _check_ports(settings)
        if settings.connect_permissions and not settings.connect_endpoints:
            raise usage.UsageError(
                "--allow-connect has no effect without --connect-endpoint: add one, or leave it out"
            )
        if settings.kubelet_ca and settings.kubelet_verify is KubeletVerification.SKIP:
            raise usage.UsageError(
                "--kubelet-ca has no effect with --kubelet-verify skip: leave one of them out"
            )
        return settings

    def _standalone(self) -> StandaloneSettings:
        refuse_steering(self)
        for flag in (flag_table.KUBE_CONFIG, flag_table.CLIENT_CA_FILE):
            if self[flag.name] is not None:
                raise usage.UsageError(
                    f"--{flag.name} has no effect with --standalone, which uses no Kubernetes:"
                    " leave one of them out"
                )
        return StandaloneSettings(
            state_dir=state_directory(self, flag_table.STATE_DIR, "server", self._environment),
            join_token_lifetime=self.optional_value(
                flag_table.JOIN_TOKEN_LIFETIME, DEFAULT_TOKEN_LIFETIME
            ),
            node_certificate_lifetime=self.optional_value(
                flag_table.NODE_CERTIFICATE_LIFETIME, DEFAULT_NODE_LIFETIME
            ),
            revoke_node=self.optional_value(flag_table.REVOKE_NODE, None),
        )

    def _cluster(self) -> ClusterSettings:
        for flag in _STANDALONE_FLAGS:
            if self[flag.name] is not None:
                raise usage.UsageError(
                    f"--{flag.name} is for --standalone: add that, or leave --{flag.name} out in a"
                    " cluster"
                )
        return ClusterSettings(
            kube_config=self.optional_value(flag_table.KUBE_CONFIG, None),
            cert_dir=self.value(flag_table.CERT_DIR),
            namespace=self.value(flag_table.NAMESPACE),
            cluster_domain=self.value(flag_table.CLUSTER_DOMAIN),
            allowed_callers=self.value(flag_table.ALLOWED_CALLERS),
            client_ca=self.optional_value(flag_table.CLIENT_CA_FILE, None),
            accept_common_certificates=self.is_given(flag_table.ACCEPT_COMMON_AGENT_CERTIFICATES),
            steering=steering_flags(self),
        )

    def _insecure_address(self, bind_address: str) -> str:
        if self.is_given(flag_table.INSECURE_BIND_ADDRESS):
            return self.value(flag_table.INSECURE_BIND_ADDRESS)
        if not self.is_given(flag_table.BIND_ADDRESS):
            return loopback_address()
        return "127.0.0.1" if ip_address(bind_address).version == 4 else "::1"

    def _return_grace(self, resume_window: float) -> float:
        if self[flag_table.RETURN_GRACE.name] is None:
            return resume_window
        grace = self.value(flag_table.RETURN_GRACE)
        if grace > resume_window:
            raise usage.UsageError(
                f"--return-grace: {grace:g} s is longer than --resume-window ({resume_window:g}"
                " s): lower the first or raise the second"
            )
        return grace


def _check_ports(settings: Settings) -> None:
    """Reject flags with the same address and port."""
    desired = [
        ("--tunnel-agent-connect-port", settings.bind_address, settings.agent_port),
        ("--secure-port", settings.bind_address, settings.secure_port),
        ("--insecure-port", settings.insecure_address, settings.insecure_port),
        ("--meta-port", settings.insecure_address, settings.meta_port),
    ]
    if isinstance(settings.mode, ClusterSettings):
        passthrough = settings.mode.steering.passthrough_port
        if passthrough is not None:
            desired.append(("--passthrough-port", settings.bind_address, passthrough))
    for flag, endpoint in settings.connect_endpoints:
        if isinstance(endpoint, TcpEndpoint | TlsEndpoint):
            desired.append((flag, endpoint.interface, endpoint.port))
    desired += [
        (forward.flag, forward.listen_host, forward.listen_port) for forward in settings.forwards
    ]
    flag_of: dict[tuple[str, int], str] = {}
    for flag, host, port in desired:
        first = flag_of.setdefault((host, port), flag)
        if first is not flag:
            where = join_authority(host, port)
            raise usage.UsageError(
                f"{first} and {flag} use the same port {where}: choose another port"
            )
