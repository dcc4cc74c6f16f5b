"""The command line of the server: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from twisted.python import usage

from yurttunnel.http.authority import join_authority
from yurttunnel.ops import flags
from yurttunnel.ops.options import USE_LOG_FILE, USE_LOG_LEVEL, CommandOptions
from yurttunnel.pki.identity import BadIdentity, check_node_name
from yurttunnel.server.endpoints import Endpoint, TcpEndpoint, TlsEndpoint, parse_endpoint
from yurttunnel.server.forward import Forward, parse_forward
from yurttunnel.tunnel.direct.reactor import known_transports

_NO_API = "this version does not use a Kubernetes API"
_NO_INTERCEPTION = "this version intercepts no traffic: use --connect-endpoint or --forward"

# Of yurttunnel 1.2 and of its logging library.
_IGNORED_FLAGS = {
    "kube-config": _NO_API,
    "cert-dir": "certificates are kept in --state-dir",
    "iptables-sync-period": _NO_INTERCEPTION,
    "dns-sync-period": _NO_INTERCEPTION,
    "secure-port": _NO_INTERCEPTION,
    "insecure-port": _NO_INTERCEPTION,
    "server-count": "agents are told their servers by --tunnelserver-addr",
    "proxy-strategy": "the agent is always chosen by the destination",
    "v": USE_LOG_LEVEL,
    "vmodule": USE_LOG_LEVEL,
    "stderrthreshold": USE_LOG_LEVEL,
    "log_dir": USE_LOG_FILE,
    "log_file": USE_LOG_FILE,
}
_IGNORED_SWITCHES = {
    "enable-iptables": _NO_INTERCEPTION,
    "enable-dns-controller": _NO_INTERCEPTION,
    "egress-selector-enable": "use --connect-endpoint",
    "logtostderr": USE_LOG_FILE,
    "alsologtostderr": USE_LOG_FILE,
}

DEFAULT_RETURN_GRACE = 0.8
"""Seconds: an agent that lives is back sooner, and the streams of a dead one end within 1 s."""

_Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server's command line says; times are in seconds.

    Agents connect to ``bind_address``:``agent_port``; the meta pages are on
    ``meta_address``:``meta_port``. ``certificate_names`` and ``certificate_addresses`` are what
    the server's certificate names beside what it names anyhow. ``revoke_node`` is the name of a
    node when the command is to revoke it and do nothing else.
    """

    state_dir: Path
    bind_address: str
    agent_port: int
    meta_address: str
    meta_port: int
    connect_endpoints: tuple[tuple[str, Endpoint], ...]
    """Each with the flag as it was given, for messages."""
    forwards: tuple[Forward, ...]
    resume_window: float
    return_grace: float
    drain_timeout: float
    transport: str
    """As :func:`~yurttunnel.tunnel.direct.reactor.with_transports` takes it."""
    certificate_names: tuple[str, ...]
    certificate_addresses: tuple[_Address, ...]
    join_token_lifetime: float
    node_certificate_lifetime: float
    revoke_node: str | None


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-server``."""

    longdesc = """The cloud end of the tunnel. It takes in agents on --bind-address port
    --tunnel-agent-connect-port, and carries connections to their nodes: those of HTTP CONNECT
    clients on --connect-endpoint and those of plain TCP clients on --forward. First start:
    "twist yurttunnel-server --standalone --state-dir DIR --forward
    127.0.0.1:9000=NODE/127.0.0.1:80", then give the file DIR/join-token to the agents. Durations
    are seconds or carry units: 30, 30s, 5m, 1h30m."""

    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES

    optFlags = [
        ["standalone", None, "Work without Kubernetes: certificates come from an authority in "
         "--state-dir, nodes are the connected agents. Required: this version has no other mode."],
    ]  # fmt: skip

    optParameters = [
        ["state-dir", None, None, "Directory for the authority, the certificates and the join "
         "token, made with mode 0700. Keep it: without it every agent has to enrol again. "
         "Required."],
        ["bind-address", None, "0.0.0.0", "Address on which agents connect."],
        ["tunnel-agent-connect-port", None, "10262", "Port on which agents connect."],
        ["insecure-bind-address", None, None, "Address on which to serve /healthz, /readyz, "
         "/metrics and /agents. [default: loopback of the family of "
         "--bind-address]"],
        ["meta-port", None, "10265", "Port on which to serve them."],
        ["resume-window", None, "30", "How long streams outlive a connection to their agent "
         "that was lost silently; with 0 they end at once."],
        ["return-grace", None, None, "How long streams outlive a connection that the agent's "
         "machine has closed or reset, as it does when the agent's process dies. At most "
         "--resume-window. [default: 0.8]"],
        ["drain-timeout", None, "30", "How long SIGTERM waits for streams to end."],
        ["transport", None, "direct", "What sends and encrypts: direct, made for this tunnel, or "
         "twisted, Twisted's own, which is slower."],
        ["cert-dns-names", None, None, "Names, separated by commas, that the server's certificate "
         "is to have, by which agents connect."],
        ["cert-ips", None, None, "Addresses, separated by commas, that it is to have."],
        ["join-token-lifetime", None, "24h", "How long a join token can be used."],
        ["node-certificate-lifetime", None, "720h", "How long the certificate of a node is "
         "valid; agents renew theirs in time."],
        ["revoke-node", None, None, "Revoke the certificates of this node in --state-dir and "
         "exit; a server that runs on the same directory ends the node's session."],
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._connect_endpoints: dict[str, Endpoint] = {}
        self._forwards: list[Forward] = []

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

    def make_settings(self) -> Settings:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        bind_address = self.value("bind-address", flags.listening_address)
        resume_window = self.value("resume-window", flags.resume_window)
        settings = Settings(
            state_dir=self.value("state-dir", flags.path),
            bind_address=bind_address,
            agent_port=self.value("tunnel-agent-connect-port", flags.port),
            meta_address=self._meta_address(bind_address),
            meta_port=self.value("meta-port", flags.port),
            connect_endpoints=tuple(self._connect_endpoints.items()),
            forwards=tuple(self._forwards),
            resume_window=resume_window,
            return_grace=self._return_grace(resume_window),
            drain_timeout=self.value("drain-timeout", flags.duration),
            transport=self.value("transport", known_transports),
            certificate_names=self.optional_value("cert-dns-names", _names, ()),
            certificate_addresses=self.optional_value("cert-ips", _addresses, ()),
            join_token_lifetime=self.value("join-token-lifetime", _lifetime),
            node_certificate_lifetime=self.value("node-certificate-lifetime", _lifetime),
            revoke_node=self.optional_value("revoke-node", _node_name, None),
        )
        _check_ports(settings)
        return settings

    def _meta_address(self, bind_address: str) -> str:
        if self["insecure-bind-address"]:
            return self.value("insecure-bind-address", flags.listening_address)
        return "127.0.0.1" if ip_address(bind_address).version == 4 else "::1"

    def _return_grace(self, resume_window: float) -> float:
        if self["return-grace"] is None:
            return min(DEFAULT_RETURN_GRACE, resume_window)
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
        ("--meta-port", settings.meta_address, settings.meta_port),
    ]
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


def _lifetime(text: str) -> float:
    """Parse a duration that must not be zero."""
    seconds = flags.duration(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: give at least one second")
    return seconds


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _names(text: str) -> tuple[str, ...]:
    """Parse the comma list of names."""
    return tuple(dict.fromkeys(flags.host(item) for item in _items(text)))


def _addresses(text: str) -> tuple[_Address, ...]:
    """Parse the comma list of addresses."""
    return tuple(dict.fromkeys(ip_address(flags.listening_address(item)) for item in _items(text)))
