"""The command line of the server: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from twisted.python import usage

from yurttunnel.http.authority import join_authority
from yurttunnel.ops import flags
from yurttunnel.ops.audit_sinks import AuditSettings
from yurttunnel.ops.diagnose.flags import DIAGNOSE_FLAGS, DIAGNOSE_SWITCHES, bundle_path
from yurttunnel.ops.options import USE_LOG_FILE, USE_LOG_LEVEL, CommandOptions
from yurttunnel.pki.authority import DEFAULT_NODE_LIFETIME
from yurttunnel.pki.identity import BadIdentity, check_node_name
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.token import DEFAULT_TOKEN_LIFETIME
from yurttunnel.server.audit_options import AUDIT_FLAGS, audit_settings
from yurttunnel.server.endpoints import Endpoint, TcpEndpoint, TlsEndpoint, parse_endpoint
from yurttunnel.server.frontends.admission import Permission, parse_permission
from yurttunnel.server.frontends.forward import Forward, parse_forward
from yurttunnel.server.steering_options import (
    STEERING_FLAGS,
    STEERING_SWITCHES,
    SteeringFlags,
    refuse_steering,
    steering_flags,
)
from yurttunnel.tunnel.direct.reactor import known_transports

# Of yurttunnel 1.2 and of its logging library.
_IGNORED_FLAGS = {
    "server-count": "agents are told how many servers there are",
    "proxy-strategy": "the agent is always chosen by the destination",
    "vmodule": USE_LOG_LEVEL,
    "stderrthreshold": USE_LOG_LEVEL,
    "log_dir": USE_LOG_FILE,
    "log_file": USE_LOG_FILE,
}
_IGNORED_SWITCHES = {
    "egress-selector-enable": "use --connect-endpoint",
    "logtostderr": USE_LOG_FILE,
    "alsologtostderr": USE_LOG_FILE,
}

_STANDALONE_FLAGS = (
    "state-dir",
    "join-token-lifetime",
    "node-certificate-lifetime",
    "revoke-node",
)

MAX_WORKERS = 64
"""Processes of one server; each takes some 40 MiB."""

_Address = IPv4Address | IPv6Address


ALLOWED_CALLERS = ("kube-apiserver-kubelet-client",)
"""What kubeadm calls kube-apiserver's certificate for kubelets (apiserver-kubelet-client.crt)."""


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """What is particular to ``--standalone``; times are in seconds.

    ``revoke_node`` is the name of a node when the command is to revoke it and do nothing else.
    """

    state_dir: Path
    join_token_lifetime: float
    node_certificate_lifetime: float
    revoke_node: str | None


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What is particular to a cluster.

    ``kube_config`` is ``None`` in a pod. ``namespace`` is where the server's own objects are.
    Callers of 10263 may have a certificate of ``client_ca``, beside the cluster's authority, and
    need no other permission when it is for one of ``allowed_callers``.
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
    """What the server's command line says; times are in seconds.

    ``cleanup_iptables`` says that the command is to remove firewall rules and do nothing else.

    ``mode`` says whether there is a cluster, and has what is particular to it. Agents connect to
    ``bind_address``:``agent_port``, callers that are to reach kubelets to
    ``bind_address``:``secure_port`` and, without TLS, ``insecure_address``:``insecure_port``;
    the meta pages are on ``insecure_address``:``meta_port``. ``kubelet_ca`` is ``None`` where
    kubelets are verified by the embedded authority, or that of the cluster.
    ``certificate_names`` and ``certificate_addresses`` are what the server's certificate names
    beside what it names anyhow. ``audit`` is where the audit log goes, ``None`` without one.
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
    """Each with the flag as it was given, for messages."""
    connect_permissions: tuple[Permission, ...]
    """Of those who connect to one of them, if not all may reach everything."""
    forwards: tuple[Forward, ...]
    resume_window: float
    return_grace: float
    drain_timeout: float
    transport: str
    """As :func:`~yurttunnel.tunnel.direct.reactor.with_transports` takes it."""
    certificate_names: tuple[str, ...]
    certificate_addresses: tuple[_Address, ...]
    audit: AuditSettings | None = None
    workers: int = 1
    """How many processes carry sessions, this one included."""


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-server``."""

    longdesc = """The cloud end of the tunnel. It takes in agents on --bind-address port
    --tunnel-agent-connect-port, and carries connections to their nodes: HTTP requests for
    kubelets that come to --secure-port and --insecure-port, HTTP CONNECT clients on
    --connect-endpoint and plain TCP clients on --forward. In a pod of a cluster it needs no flag.
    Without a cluster: "twist yurttunnel-server --standalone --state-dir DIR --forward
    127.0.0.1:9000=NODE/127.0.0.1:80", then give the file DIR/join-token to the agents. Durations
    are seconds or carry units: 30, 30s, 5m, 1h30m."""

    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES
    switches = STEERING_SWITCHES

    optFlags = [
        ["standalone", None, "Work without Kubernetes: certificates come from an authority in "
         "--state-dir, nodes are the connected agents."],
        ["accept-common-agent-certificates", None, "Let in agents whose certificate is of "
         "yurttunnel 1.2: all of those have the name tunnel-agent-client, so that one node can "
         "pass for another. For the time of a migration only."],
        ["intercept-pods", None, "With --enable-iptables: the same for connections that come "
         "through this machine from elsewhere, such as those of its pods."],
        ["cleanup-iptables", None, "Remove all firewall rules of the tunnel server from this "
         "machine, those of yurttunnel 1.2 too, and exit."],
        *DIAGNOSE_SWITCHES,
    ]  # fmt: skip

    optParameters = [
        ["state-dir", None, None, "With --standalone, and required then: directory for the "
         "authority, the certificates and the join token, made with mode 0700. Keep it: without "
         "it every agent has to enrol again."],
        ["kube-config", None, None, "File that says where the Kubernetes API is and who asks. "
         "[default: the service account of the pod]"],
        ["namespace", None, "kube-system", "Where the server's own objects are: its services, "
         "its leases and yurt-tunnel-server-cfg."],
        ["cert-dir", None, "/var/lib/yurttunnel-server/pki", "Directory for the certificates that "
         "the cluster issues."],
        ["cluster-domain", None, "cluster.local", "What the DNS names of services end in."],
        ["allowed-callers", None, ",".join(ALLOWED_CALLERS), "Names, separated by commas, that "
         "kube-apiserver has in its certificate for kubelets. It speaks for others: the connection "
         "tells the node, no field does. Others, and those with a bearer token, choose by fields "
         "and may do what the cluster allows them to (nodes/proxy)."],
        ["client-ca-file", None, None, "File of further authorities that certificates of callers "
         "on --secure-port may be from."],
        ["bind-address", None, "0.0.0.0", "Address of --tunnel-agent-connect-port and "
         "--secure-port."],
        ["tunnel-agent-connect-port", None, "10262", "Port on which agents connect."],
        ["secure-port", None, "10263", "HTTPS port for requests to kubelets. Callers need a "
         "certificate of the server's authority, as client.crt in --state-dir, and name the "
         "kubelet as they would without a tunnel, by the Host field, or by "
         "X-Tunnel-Proxy-Dest."],
        ["insecure-bind-address", None, None, "Address of --insecure-port and --meta-port. "
         "[default: loopback of the family of --bind-address]"],
        ["insecure-port", None, "10264", "The same as --secure-port without TLS, on either side, "
         "and for everybody who can connect."],
        ["meta-port", None, "10265", "Port on which to serve /healthz, /readyz, /metrics and "
         "/agents."],
        ["kubelet-verify", None, "auto", "What is asked of kubelets' certificates: ca, to be of "
         "--kubelet-ca and for the host that is dialed or the node; auto, the same of those that "
         "are of --kubelet-ca, while others are accepted with a warning; skip, nothing."],
        ["kubelet-ca", None, None, "File of the authorities that sign kubelets' certificates, or "
         "of such certificates themselves; read again when it changes. [default: the server's own "
         "authority]"],
        ["response-timeout", None, "60", "How long a kubelet may take to begin its answer, 0 for "
         "ever; requests with follow or watch in their query are exempt."],
        ["resume-window", None, "30", "How long streams outlive the connection to their agent, "
         "whatever has ended it; with 0 they end at once. A new process of the agent ends them "
         "sooner."],
        ["return-grace", None, None, "How long they outlive one that was closed or reset while "
         "it was in order, which is what the death of the agent's process looks like, but also a "
         "firewall or load balancer that is restarted. At most --resume-window, which is the "
         "default; less has callers know sooner of an agent that does not return."],
        ["drain-timeout", None, "30", "How long SIGTERM waits for streams to end."],
        ["transport", None, "direct", "What sends and encrypts: direct, made for this tunnel, or "
         "twisted, Twisted's own, which is slower."],
        ["workers", None, "1", "How many processes share the nodes, to use as many processors. "
         "The first one, which does all the rest, starts the others."],
        ["cert-dns-names", None, None, "Names, separated by commas, that the server's certificate "
         "is to have, by which agents connect."],
        ["cert-ips", None, None, "Addresses, separated by commas, that it is to have."],
        ["join-token-lifetime", None, None, "With --standalone: how long a join token can be "
         "used. [default: 24h]"],
        ["node-certificate-lifetime", None, None, "With --standalone: how long the certificate "
         "of a node is valid; agents renew theirs in time. [default: 720h]"],
        ["revoke-node", None, None, "With --standalone: revoke the certificates of this node in "
         "--state-dir and exit; a server that runs on the same directory ends the node's "
         "session."],
        *AUDIT_FLAGS,
        *STEERING_FLAGS,
        *DIAGNOSE_FLAGS,
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._connect_endpoints: dict[str, Endpoint] = {}
        self._connect_permissions: list[Permission] = []
        self._forwards: list[Forward] = []
        self._middlewares: list[str] = []

    def opt_connect_endpoint(self, endpoint: str) -> None:
        """Serve HTTP CONNECT clients on this endpoint; repeatable. unix:PATH (mode 0660; another
        one with :mode=600), tcp:PORT or tcp6:PORT (loopback; another address with
        :interface=ADDRESS), ssl:PORT (callers need a certificate of the server's authority, as
        client.crt in --state-dir; or give :privateKey=FILE:certKey=FILE:caCerts=FILE), or
        systemd:domain=UNIX:name=NAME for a socket that systemd has opened.
        """
        flag = f"--connect-endpoint {endpoint}"
        if flag in self._connect_endpoints:
            raise usage.UsageError(f"{flag} is given twice")
        try:
            self._connect_endpoints[flag] = parse_endpoint(endpoint)
        except ValueError as reason:
            raise usage.UsageError(f"--connect-endpoint: {reason}") from None

    def opt_allow_connect(self, permission: str) -> None:
        """Let callers of --connect-endpoint reach only what such a permission names; repeatable.
        certificate:NAME=NODE/HOST:PORT is for who has a certificate with this common name (ssl:),
        user:UID=NODE/HOST:PORT for who runs as this user (unix:), address:ADDRESS=NODE/HOST:PORT
        for who connects from there (tcp:). NODE, HOST and PORT may be *, NODE is the name of the
        node. Without any, whoever can connect reaches every node.
        """
        try:
            self._connect_permissions.append(parse_permission(permission))
        except ValueError as reason:
            raise usage.UsageError(f"--allow-connect: {reason}") from None

    def opt_forward(self, forward: str) -> None:
        """Carry TCP connections to a target behind an agent: LISTEN=NODE/HOST:PORT, as
        127.0.0.1:9000=edge-1/127.0.0.1:80; repeatable. LISTEN is ADDRESS:PORT; PORT alone is a
        port of the loopback address. IPv6 addresses stand in brackets. The agent must allow the
        target (its --allow-destination).
        """
        try:
            self._forwards.append(parse_forward(forward))
        except ValueError as reason:
            raise usage.UsageError(f"--forward: {reason}") from None

    def opt_middleware(self, name: str) -> None:
        """Have the middleware NAME, a plugin that is installed beside this package, see all
        requests to kubelets; repeatable, the first sees a request first. How to write one is in
        docs/middlewares.md.
        """
        if name in self._middlewares:
            raise usage.UsageError(f"--middleware {name} is given twice")
        self._middlewares.append(name)

    def make_settings(self) -> Settings:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        self.bundle = bundle_path(self)
        bind_address = self.value("bind-address", flags.listening_address)
        resume_window = self.value("resume-window", flags.resume_window)
        settings = Settings(
            mode=self._standalone() if self["standalone"] else self._cluster(),
            cleanup_iptables=bool(self["cleanup-iptables"]),
            bind_address=bind_address,
            agent_port=self.value("tunnel-agent-connect-port", flags.port),
            secure_port=self.value("secure-port", flags.port),
            insecure_address=self._insecure_address(bind_address),
            insecure_port=self.value("insecure-port", flags.port),
            meta_port=self.value("meta-port", flags.port),
            kubelet_verify=self.value("kubelet-verify", _verification),
            kubelet_ca=self.optional_value("kubelet-ca", flags.path, None),
            response_timeout=self.value("response-timeout", flags.duration),
            middlewares=tuple(self._middlewares),
            connect_endpoints=tuple(self._connect_endpoints.items()),
            connect_permissions=tuple(self._connect_permissions),
            forwards=tuple(self._forwards),
            resume_window=resume_window,
            return_grace=self._return_grace(resume_window),
            drain_timeout=self.value("drain-timeout", flags.duration),
            transport=self.value("transport", known_transports),
            workers=self.value("workers", _workers),
            certificate_names=self.optional_value("cert-dns-names", _names, ()),
            certificate_addresses=self.optional_value("cert-ips", _addresses, ()),
            audit=audit_settings(self),
        )
        _check_ports(settings)
        if settings.workers > 1 and settings.transport != "direct":
            raise usage.UsageError(
                "--workers needs --transport direct, whose connections can be passed on: leave one"
                " of the two flags out"
            )
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
        for flag in ("kube-config", "client-ca-file"):
            if self[flag] is not None:
                raise usage.UsageError(
                    f"--{flag} has no effect with --standalone, which uses no Kubernetes: leave"
                    " one of them out"
                )
        return StandaloneSettings(
            state_dir=self.value("state-dir", flags.path),
            join_token_lifetime=self.optional_value(
                "join-token-lifetime", _lifetime, DEFAULT_TOKEN_LIFETIME
            ),
            node_certificate_lifetime=self.optional_value(
                "node-certificate-lifetime", _lifetime, DEFAULT_NODE_LIFETIME
            ),
            revoke_node=self.optional_value("revoke-node", _node_name, None),
        )

    def _cluster(self) -> ClusterSettings:
        for flag in (
            "state-dir",
            "join-token-lifetime",
            "node-certificate-lifetime",
            "revoke-node",
        ):
            if self[flag] is not None:
                raise usage.UsageError(
                    f"--{flag} is for --standalone: add that, or leave --{flag} out in a cluster"
                )
        return ClusterSettings(
            kube_config=self.optional_value("kube-config", flags.path, None),
            cert_dir=self.value("cert-dir", flags.path),
            namespace=self.value("namespace", _label),
            cluster_domain=self.value("cluster-domain", flags.host),
            allowed_callers=self.value("allowed-callers", _callers),
            client_ca=self.optional_value("client-ca-file", flags.path, None),
            accept_common_certificates=bool(self["accept-common-agent-certificates"]),
            steering=steering_flags(self),
        )

    def _insecure_address(self, bind_address: str) -> str:
        if self["insecure-bind-address"]:
            return self.value("insecure-bind-address", flags.listening_address)
        return "127.0.0.1" if ip_address(bind_address).version == 4 else "::1"

    def _return_grace(self, resume_window: float) -> float:
        if self["return-grace"] is None:
            return resume_window
        grace = self.value("return-grace", flags.duration)
        if grace > resume_window:
            raise usage.UsageError(
                f"--return-grace: {grace:g} s is longer than --resume-window ({resume_window:g} s):"
                " lower the one or raise the other"
            )
        return grace


def _check_ports(settings: Settings) -> None:
    """Refuse flags that want the same address and port."""
    wanted = [
        ("--tunnel-agent-connect-port", settings.bind_address, settings.agent_port),
        ("--secure-port", settings.bind_address, settings.secure_port),
        ("--insecure-port", settings.insecure_address, settings.insecure_port),
        ("--meta-port", settings.insecure_address, settings.meta_port),
    ]
    if isinstance(settings.mode, ClusterSettings):
        passthrough = settings.mode.steering.passthrough_port
        if passthrough is not None:
            wanted.append(("--passthrough-port", settings.bind_address, passthrough))
    for flag, endpoint in settings.connect_endpoints:
        if isinstance(endpoint, TcpEndpoint | TlsEndpoint):
            wanted.append((flag, endpoint.interface, endpoint.port))
    wanted += [
        (f"--forward {forward.text}", forward.listen_host, forward.listen_port)
        for forward in settings.forwards
    ]
    flag_of: dict[tuple[str, int], str] = {}
    for flag, host, port in wanted:
        first = flag_of.setdefault((host, port), flag)
        if first is not flag:
            where = join_authority(host, port)
            raise usage.UsageError(f"{first} and {flag} both want {where}: choose another port")


def _node_name(text: str) -> str:
    """Parse the name of a node."""
    try:
        return check_node_name(text)
    except BadIdentity as reason:
        raise ValueError(str(reason)) from None


def _workers(text: str) -> int:
    """Parse how many processes there are to be."""
    if not re.fullmatch("[0-9]{1,3}", text, re.ASCII) or not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError(f"{text!r} is not a number from 1 to {MAX_WORKERS}")
    return int(text)


def _verification(text: str) -> KubeletVerification:
    """Parse a way to verify kubelets."""
    try:
        return KubeletVerification(text)
    except ValueError:
        known = ", ".join(each.value for each in KubeletVerification)
        raise ValueError(f"{text!r} is none of these: {known}") from None


def _lifetime(text: str) -> float:
    """Parse a duration that must not be zero."""
    seconds = flags.duration(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: give at least one second")
    return seconds


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _callers(text: str) -> tuple[str, ...]:
    """Parse the comma list of names in certificates, which may be empty."""
    return tuple(dict.fromkeys(_items(text)))


def _label(text: str) -> str:
    """Parse a name that has to be one label of DNS, as that of a namespace."""
    name = flags.host(text)
    if "." in name:
        raise ValueError(f"{text!r} is not the name of a namespace")
    return name


def _names(text: str) -> tuple[str, ...]:
    """Parse the comma list of names."""
    return tuple(dict.fromkeys(flags.host(item) for item in _items(text)))


def _addresses(text: str) -> tuple[_Address, ...]:
    """Parse the comma list of addresses."""
    return tuple(dict.fromkeys(flags.address(item) for item in _items(text)))
