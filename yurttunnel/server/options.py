"""The command line of the server: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeVar

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.http.authority import join_authority
from yurttunnel.ops import flags
from yurttunnel.pki.identity import BadIdentity, check_node_name
from yurttunnel.server.endpoints import Endpoint, TcpEndpoint, TlsEndpoint, parse_endpoint
from yurttunnel.server.forward import Forward, parse_forward
from yurttunnel.tunnel.direct.reactor import known_transports

_NO_API = "this version does not use a Kubernetes API"
_NO_INTERCEPTION = "this version intercepts no traffic: use --connect-endpoint or --forward"
_LOG_LEVEL = "use twist's --log-level"
_LOG_FILE = "use twist's --log-file"

# Flags of yurttunnel 1.2 (reference section 2.1) and of its logging library that existing
# manifests carry and that mean nothing here.
_IGNORED_FLAGS = {
    "kube-config": _NO_API,
    "cert-dir": "certificates are kept in --state-dir",
    "iptables-sync-period": _NO_INTERCEPTION,
    "dns-sync-period": _NO_INTERCEPTION,
    "secure-port": _NO_INTERCEPTION,
    "insecure-port": _NO_INTERCEPTION,
    "server-count": "agents are told their servers by --tunnelserver-addr",
    "proxy-strategy": "the agent is always chosen by the destination",
    "v": _LOG_LEVEL,
    "vmodule": _LOG_LEVEL,
    "stderrthreshold": _LOG_LEVEL,
    "log_dir": _LOG_FILE,
    "log_file": _LOG_FILE,
}
# Switches in the manner of Go: they carry a value behind "=" or none at all, which getopt cannot
# express.
_IGNORED_SWITCHES = {
    "enable-iptables": _NO_INTERCEPTION,
    "enable-dns-controller": _NO_INTERCEPTION,
    "egress-selector-enable": "use --connect-endpoint",
    "logtostderr": _LOG_FILE,
    "alsologtostderr": _LOG_FILE,
}

DEFAULT_RETURN_GRACE = 0.8
"""Seconds: an agent that lives is back sooner, and the streams of a dead one end within 1 s."""

_Address = IPv4Address | IPv6Address
_Parsed = TypeVar("_Parsed")


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


class Options(usage.Options):
    """Options of ``twist yurttunnel-server``; after parsing, :attr:`settings` has them typed."""

    synopsis = "[options]"

    longdesc = """The cloud end of the tunnel. It takes in agents on --bind-address port
    --tunnel-agent-connect-port, and carries connections to their nodes: those of HTTP CONNECT
    clients on --connect-endpoint and those of plain TCP clients on --forward. First start:
    "twist yurttunnel-server --standalone --state-dir DIR --forward
    127.0.0.1:9000=NODE/127.0.0.1:80", then give the file DIR/join-token to the agents. Durations
    are seconds or carry units: 30, 30s, 5m, 1h30m. Other flags of yurttunnel 1.2 are accepted and
    ignored with a warning."""

    optFlags = [
        ["standalone", None, "Work without Kubernetes: certificates come from an authority in "
         "--state-dir, nodes are the connected agents. Required: this version has no other mode."],
    ]  # fmt: skip

    # Coerce functions are not used: their errors would not name the flag, and they are not
    # applied to defaults. postOptions parses instead.
    optParameters = [
        ["state-dir", None, None, "Directory for the authority, the certificates and the join "
         "token, made with mode 0700. Keep it: without it every agent has to enrol again. "
         "Required."],
        ["bind-address", None, "0.0.0.0", "Address on which agents connect."],
        ["tunnel-agent-connect-port", None, "10262", "Port on which agents connect."],
        ["insecure-bind-address", None, "", "Address on which to serve /healthz, /readyz, "
         "/metrics, /agents and a status page. [default: loopback of the family of "
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
        ["cert-dns-names", None, "", "Names, separated by commas, that the server's certificate "
         "is to have, by which agents connect."],
        ["cert-ips", None, "", "Addresses, separated by commas, that it is to have."],
        ["join-token-lifetime", None, "24h", "How long a join token can be used."],
        ["node-certificate-lifetime", None, "720h", "How long the certificate of a node is "
         "valid; agents renew theirs in time."],
        ["revoke-node", None, None, "Revoke the certificates of this node in --state-dir and "
         "exit; a server that runs on the same directory ends the node's session."],
        *([name, None, None, f"Ignored: {instead}."] for name, instead in _IGNORED_FLAGS.items()),
    ]  # fmt: skip

    _log = Logger()

    def __init__(self) -> None:
        super().__init__()
        self._connect_endpoints: dict[str, Endpoint] = {}
        self._forwards: list[Forward] = []
        self._ignored_switches: list[str] = []
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """Give what the command line says; only after ``parseOptions`` has succeeded."""
        if self._settings is None:
            raise RuntimeError("the command line has not been parsed")
        return self._settings

    def opt_connect_endpoint(self, endpoint: str) -> None:
        """Serve HTTP CONNECT clients on this endpoint; repeatable. unix:PATH (mode 0660; another
        one with :mode=600), tcp:PORT (loopback; another address with :interface=ADDRESS), ssl:PORT
        (callers need a certificate of the server's authority, as client.crt in --state-dir; or
        give :privateKey=FILE:certKey=FILE:caCerts=FILE), or any other endpoint string of Twisted.
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

    def opt_version(self) -> None:
        """Print the version of yurttunnel and exit."""
        print(f"yurttunnel {version('yurttunnel')}")
        raise SystemExit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse ``options``, without the switches that mean nothing here."""
        kept = []
        for argument in sys.argv[1:] if options is None else options:
            name = argument.lstrip("-").partition("=")[0]
            if argument.startswith("-") and name in _IGNORED_SWITCHES:
                self._ignored_switches.append(name)
            else:
                kept.append(argument)
        super().parseOptions(kept)

    def parseArgs(self, *arguments: str) -> None:
        """Refuse arguments that belong to no flag."""
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}: it belongs to no flag")

    def postOptions(self) -> None:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        if not self["standalone"]:
            raise usage.UsageError(
                "add --standalone: this version has only the standalone mode, which needs no"
                " Kubernetes"
            )
        bind_address = self._parse("bind-address", _listening_address)
        resume_window = self._parse("resume-window", flags.resume_window)
        self._settings = Settings(
            state_dir=self._parse("state-dir", _path),
            bind_address=bind_address,
            agent_port=self._parse("tunnel-agent-connect-port", flags.port),
            meta_address=self._meta_address(bind_address),
            meta_port=self._parse("meta-port", flags.port),
            connect_endpoints=tuple(self._connect_endpoints.items()),
            forwards=tuple(self._forwards),
            resume_window=resume_window,
            return_grace=self._return_grace(resume_window),
            drain_timeout=self._parse("drain-timeout", flags.duration),
            transport=self._parse("transport", known_transports),
            certificate_names=self._parse("cert-dns-names", _names),
            certificate_addresses=self._parse("cert-ips", _addresses),
            join_token_lifetime=self._parse("join-token-lifetime", _lifetime),
            node_certificate_lifetime=self._parse("node-certificate-lifetime", _lifetime),
            revoke_node=(
                None if self["revoke-node"] is None else self._parse("revoke-node", _node_name)
            ),
        )
        _check_ports(self._settings)
        self._warn_of_ignored()

    def _parse(self, flag: str, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Parse the value of ``flag``."""
        text = self[flag]
        if text is None:
            raise usage.UsageError(f"--{flag} is missing: give it")
        try:
            return parse(text)
        except ValueError as reason:
            raise usage.UsageError(f"--{flag}: {reason}") from None

    def _meta_address(self, bind_address: str) -> str:
        if self["insecure-bind-address"]:
            return self._parse("insecure-bind-address", _listening_address)
        return "127.0.0.1" if ip_address(bind_address).version == 4 else "::1"

    def _return_grace(self, resume_window: float) -> float:
        if self["return-grace"] is None:
            return min(DEFAULT_RETURN_GRACE, resume_window)
        grace = self._parse("return-grace", flags.duration)
        if grace > resume_window:
            raise usage.UsageError(
                f"--return-grace: {grace:g} s is longer than --resume-window ({resume_window:g} s):"
                " lower the one or raise the other"
            )
        return grace

    def _warn_of_ignored(self) -> None:
        """Tell the operator which of the given flags do nothing, and what does instead."""
        ignored = {name: _IGNORED_SWITCHES[name] for name in self._ignored_switches}
        ignored |= {name: why for name, why in _IGNORED_FLAGS.items() if self[name] is not None}
        for name, instead in ignored.items():
            self._log.warn("--{flag} is ignored: {instead}", flag=name, instead=instead)


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


def _listening_address(text: str) -> str:
    """Parse an address to listen on; unspecified means every interface."""
    try:
        return str(ip_address(flags.host(text)))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def _node_name(text: str) -> str:
    """Parse the name of a node."""
    try:
        return check_node_name(text)
    except BadIdentity as reason:
        raise ValueError(str(reason)) from None


def _path(text: str) -> Path:
    """Parse a path that must not be empty: an empty one would mean the current directory."""
    if not text:
        raise ValueError("it is empty: write a path")
    return Path(text)


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
    return tuple(dict.fromkeys(ip_address(_listening_address(item)) for item in _items(text)))
