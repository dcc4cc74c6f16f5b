"""The command line of the agent: parsed, checked and turned into :class:`Settings`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.agent.policy import NO_DEFAULT, Address, Pattern, parse_pattern
from yurttunnel.ops import flags
from yurttunnel.ops.options import USE_LOG_FILE, USE_LOG_LEVEL, CommandOptions
from yurttunnel.pki.identity import (
    BadIdentity,
    Identifiers,
    check_node_name,
    parse_identifiers,
)
from yurttunnel.tunnel.direct.reactor import known_transports

SERVER_PORT = 10262
META_PORT = 10266

_NO_API = "the agent of this version does not use a Kubernetes API"

# Of yurttunnel 1.2 and of its logging library.
_IGNORED_FLAGS = {
    "apiserver-addr": _NO_API,
    "kube-config": _NO_API,
    "cert-dir": "certificates are kept in --state-dir",
    "v": USE_LOG_LEVEL,
    "vmodule": USE_LOG_LEVEL,
    "stderrthreshold": USE_LOG_LEVEL,
    "log_dir": USE_LOG_FILE,
    "log_file": USE_LOG_FILE,
}
_IGNORED_SWITCHES = {"logtostderr": USE_LOG_FILE, "alsologtostderr": USE_LOG_FILE}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent's command line says; times are in seconds.

    ``servers`` are ``(host, port)``. ``join_token`` and ``join_token_file`` are both ``None``
    when an agent is started that is enrolled already. ``own_addresses`` are the node ip and the
    addresses among the identifiers. With ``keep_default_destinations`` false the
    ``allowed_destinations`` are all that may be connected to.
    """

    node_name: str
    node_ip: Address
    identifiers: Identifiers
    servers: tuple[tuple[str, int], ...]
    state_dir: Path
    join_token: str | None
    join_token_file: Path | None
    allowed_destinations: tuple[Pattern, ...]
    keep_default_destinations: bool
    resume_window: float
    drain_timeout: float
    transport: str
    """As :func:`~yurttunnel.tunnel.direct.reactor.with_transports` takes it."""
    meta_host: str
    meta_port: int

    def read_join_token(self) -> str:
        """Give the join token, for an agent that is not enrolled.

        Raises ``ValueError``, with what to do, when there is none or it cannot be read.
        """
        if self.join_token is not None:
            return self.join_token.strip()
        if self.join_token_file is None:
            raise ValueError(
                f"node {self.node_name} is not enrolled ({self.state_dir} holds no certificate):"
                " copy the file join-token from the server's state directory here and name it"
                " with --join-token-file"
            )
        try:
            token = self.join_token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as reason:
            words = reason.strerror if isinstance(reason, OSError) else "it is not a join token"
            raise ValueError(f"--join-token-file {self.join_token_file}: {words}") from None
        if not token:
            raise ValueError(f"--join-token-file {self.join_token_file}: it is empty")
        return token

    @property
    def own_addresses(self) -> frozenset[Address]:
        """Give the node's own addresses."""
        return self.identifiers.addresses | {self.node_ip}

    @property
    def own_names(self) -> Mapping[str, Sequence[Address]]:
        """Give the names that mean this node, as ``NodeResolver`` takes them."""
        names: dict[str, Sequence[Address]] = {
            # RFC 6761 section 6.3: never a question for a name server.
            "localhost": (ip_address("127.0.0.1"), ip_address("::1")),
        }
        for name in {self.node_name, *self.identifiers.hosts}:
            names[name.lower().rstrip(".")] = (self.node_ip,)
        return names


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-agent``."""

    longdesc = (
        "The edge end of the tunnel. It runs on the node, connects out to every server of "
        "--tunnelserver-addr, keeps a TLS connection to each, and makes the connections that "
        "the servers ask for, as far as --allow-destination permits. First start: copy the "
        "file join-token from the server's state directory to the node, and run \"twist "
        "yurttunnel-agent --standalone --state-dir DIR --node-name NAME --node-ip IP "
        '--tunnelserver-addr HOST:10262 --join-token-file FILE". Later starts need no token. '
        "Durations are seconds or carry units: 30, 30s, 5m, 1h30m."
    )

    ignored_flags = _IGNORED_FLAGS
    ignored_switches = _IGNORED_SWITCHES

    optFlags = [
        ["standalone", None, "Work without Kubernetes: enrol at the server with a join token. "
         "Required: this version has no other mode."],
    ]  # fmt: skip

    optParameters = [
        ["node-name", None, None, "Name of this node, by which callers reach it. "
         "[default: $NODE_NAME]"],
        ["node-ip", None, None, "Address of this node. The node's names lead to it, and every "
         "port of it may be connected to. [default: $NODE_IP]"],
        ["tunnelserver-addr", None, None, "Servers, separated by commas: HOST, HOST:PORT or "
         "[IPV6]:PORT; the port is 10262 unless given. The agent stays connected to each, and "
         "looks its name up again on every attempt. Required."],
        ["agent-identifiers", None, None, "What callers may name to reach this agent: KEY=VALUE "
         "joined by '&', where KEY is host, ipv4, ipv6, cidr (each may be repeated) or "
         "default-route. [default: ipv4=IP&host=NAME or ipv6=IP&host=NAME]"],
        ["state-dir", None, None, "Directory for this agent's key and certificates, made with "
         "mode 0700. Keep it: without it the agent has to enrol again. Required."],
        ["join-token-file", None, None, "File with the join token, as the server wrote it to "
         "join-token in its state directory. Needed only until the agent is enrolled."],
        ["join-token", None, None, "The join token itself. Other users of the machine can see it "
         "in the list of processes: prefer --join-token-file."],
        ["resume-window", None, "30", "How long streams outlive a lost connection to the "
         "server; with 0 they end at once."],
        ["drain-timeout", None, "30", "How long SIGTERM waits for streams to end."],
        ["transport", None, "direct", "What sends and encrypts: direct, made for this tunnel, or "
         "twisted, Twisted's own, which is slower."],
        ["meta-host", None, None, "Address on which to serve /healthz, /readyz, /metrics and "
         "/agents. [default: loopback of the family of --node-ip]"],
        ["meta-port", None, str(META_PORT), "Port on which to serve them."],
    ]  # fmt: skip

    _log = Logger()

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__(environment)
        self._patterns: list[Pattern] = []
        self._keep_default = True

    def opt_allow_destination(self, pattern: str) -> None:
        """What the agent may connect to, beside the default; repeatable. HOST, HOST:PORT or
        HOST:FIRST-LAST, where HOST is an address, a network (10.0.0.0/8), a name or *.DOMAIN
        (every name below it). IPv6 with a port is written [fd00::1]:443 or [fd00::/8]:443. A name
        is looked up only when a pattern names it, and then leads anywhere but to loopback,
        link-local and multicast addresses, which have to be allowed as addresses. An address
        needs a pattern of addresses. 0.0.0.0/0 and ::/0 are every address, loopback included.
        Default: every port of the node's own addresses (--node-ip, ipv4 and ipv6 of
        --agent-identifiers), and on loopback 10250, 10255, 10266 and 10267. Patterns add to the
        default, so that allowing one more target does not cut off the kubelet; the pattern
        no-default takes it away and leaves the other patterns alone.
        """
        if pattern == NO_DEFAULT:
            self._keep_default = False
            return
        try:
            self._patterns.append(parse_pattern(pattern))
        except ValueError as reason:
            raise usage.UsageError(f"--allow-destination: {reason}") from None

    def make_settings(self) -> Settings:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        node_name = self.value("node-name", _node_name, "NODE_NAME")
        node_ip = self.value("node-ip", _node_ip, "NODE_IP")
        identifiers = Identifiers(frozenset({node_name}), frozenset({node_ip}))
        identifiers = self.optional_value("agent-identifiers", self._parse_identifiers, identifiers)
        if self["join-token"] is not None and self["join-token-file"] is not None:
            raise usage.UsageError("give --join-token-file or --join-token, not both")
        loopback = "127.0.0.1" if node_ip.version == 4 else "::1"
        return Settings(
            node_name=node_name,
            node_ip=node_ip,
            identifiers=identifiers,
            servers=self.value("tunnelserver-addr", _servers),
            state_dir=self.value("state-dir", flags.path),
            join_token=self["join-token"],
            join_token_file=self.optional_value("join-token-file", flags.path, None),
            allowed_destinations=tuple(self._patterns),
            keep_default_destinations=self._keep_default,
            resume_window=self.value("resume-window", flags.resume_window),
            drain_timeout=self.value("drain-timeout", flags.duration),
            transport=self.value("transport", known_transports),
            meta_host=self.optional_value("meta-host", flags.listening_address, loopback),
            meta_port=self.value("meta-port", flags.port),
        )

    def _parse_identifiers(self, text: str) -> Identifiers:
        """Parse identifiers, with a warning for those that have no effect."""
        return parse_identifiers(
            text,
            lambda sentence: self._log.warn("--agent-identifiers: {sentence}", sentence=sentence),
        )


def _node_name(text: str) -> str:
    """Parse the name of a node, which has to be one that a certificate can carry."""
    try:
        return check_node_name(text.strip())
    except BadIdentity as reason:
        raise ValueError(str(reason)) from None


def _node_ip(text: str) -> Address:
    """Parse the address of a node."""
    try:
        address = ip_address(flags.host(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text!r} is not the address of one host")
    return address


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the list of servers, each once."""
    entries = [entry for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError("it names no server: write HOST:PORT")
    return tuple(dict.fromkeys(flags.host_port(entry, SERVER_PORT) for entry in entries))
