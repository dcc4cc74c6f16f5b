"""The command line of the agent, parsed and checked into :class:`Settings`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, TypeVar

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.agent.policy import DEFAULT_META_PORT, NO_DEFAULT, Pattern, parse_pattern
from yurttunnel.agent.settings import ClusterSettings, Settings, StandaloneSettings
from yurttunnel.http.authority import Address, join_authority, parse_address
from yurttunnel.kube.loading import SERVICE_ACCOUNT
from yurttunnel.ops import flags, tunnel_flags
from yurttunnel.ops.default_directories import state_directory
from yurttunnel.ops.diagnose.flags import COMMON_TABLE, bundle_path
from yurttunnel.ops.flag_table import Entry, Flag, Group, Repeated, Switch, flags_in
from yurttunnel.ops.help import Example
from yurttunnel.ops.options import KLOG_FLAGS, KLOG_SWITCHES, CommandOptions, FlagMissing
from yurttunnel.ops.own_addresses import formatted_addresses, own_addresses, source_address
from yurttunnel.pki.identity import Identifiers, parse_identifiers
from yurttunnel.pki.names import BadIdentity, check_cluster_node_name, check_node_name
from yurttunnel.pki.token import JoinToken

__all__ = ["Options", "Settings"]

_Value = TypeVar("_Value")

SERVER_PORT = 10262
API_PORT = 443

KUBELET_CONFIG = Path("/etc/kubernetes/kubelet.conf")
"""kubeadm's path of the kubelet's credentials for the API."""


def _node_ip(text: str) -> Address:
    """Parse the address of a node."""
    address = flags.address(text)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text!r} is not the address of one host")
    return address


def _servers(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the list of servers, without duplicates."""
    entries = [entry for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError("it names no server: write HOST:PORT")
    return tuple(dict.fromkeys(flags.host_port(entry, SERVER_PORT) for entry in entries))


def _count(text: str) -> int:
    """Parse a number of at least one."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise ValueError(f"{text!r} is not a number of servers: give 1 or more")
    return number


def _api_address(text: str) -> str:
    """Parse the address of the API, with or without its scheme."""
    host, port = flags.host_port(text.strip().removeprefix("https://"), API_PORT)
    return f"https://{join_authority(host, port)}"


def _pattern(text: str) -> Pattern | None:
    """Parse a pattern; ``None`` removes the default."""
    return None if text == NO_DEFAULT else parse_pattern(text)


STANDALONE = Switch(
    "standalone", Group.BASICS, "Run without Kubernetes: enrol at the server with a join token."
)

NODE_NAME = Flag(
    "node-name",
    Group.BASICS,
    lambda text: check_node_name(text.strip()),
    "Name of this node, by which callers reach it. [default: $NODE_NAME; with --standalone also"
    " the host name]",
    variable="NODE_NAME",
)

NODE_IP = Flag(
    "node-ip",
    Group.BASICS,
    _node_ip,
    "IP address of this node. The node's names resolve to it, and connections to all its ports"
    " are allowed. [default: $NODE_IP; with --standalone also the address with which this machine"
    " reaches the server, or its only one; callers cannot name the node by such an address]",
    variable="NODE_IP",
)

TUNNELSERVER_ADDR = Flag(
    "tunnelserver-addr",
    Group.BASICS,
    _servers,
    "Comma-separated servers: HOST, HOST:PORT or [IPV6]:PORT; the default port is 10262. Names"
    " are resolved again on every attempt. Required with --standalone. [default: the addresses of"
    " the Service x-tunnel-server-svc and of its annotation x-tunnel-server-external-addr,"
    " followed as they change]",
)

SERVER_CONNECTIONS = Flag(
    "server-connections",
    Group.LIMITS,
    _count,
    "Number of servers to connect to if there are more. [default: all]",
)

KUBE_CONFIG = Flag(
    "kube-config",
    Group.CLUSTER,
    flags.path,
    "Kubeconfig with the address of the Kubernetes API and the credentials for it. [default: the"
    f" service account of the pod if there is one, else {KUBELET_CONFIG}; with --apiserver-addr"
    " always the service account]",
)

APISERVER_ADDR = Flag(
    "apiserver-addr",
    Group.CLUSTER,
    _api_address,
    "Address of the Kubernetes API, HOST:PORT, for a node that cannot reach it at the address in"
    " --kube-config or at the one that pods get.",
)

CERT_DIR = Flag(
    "cert-dir",
    Group.CLUSTER,
    flags.path,
    "Directory for the certificate that the cluster issues and for the last known addresses of"
    " the servers. [default: /var/lib/yurttunnel-agent/pki]",
)

NAMESPACE = Flag(
    "namespace",
    Group.CLUSTER,
    flags.namespace,
    "Namespace of the Service x-tunnel-server-svc. [default: kube-system]",
)

AGENT_IDENTIFIERS = Flag(
    "agent-identifiers",
    Group.TRUST,
    parse_identifiers,
    "Identifiers by which callers reach this agent: KEY=VALUE pairs joined by '&', where KEY is"
    " host, ipv4, ipv6, cidr (each repeatable) or default-route. [default: ipv4=IP&host=NAME or"
    " ipv6=IP&host=NAME]",
)

STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    flags.path,
    "With --standalone: directory for this agent's key and certificates, created with mode 0700."
    " Keep it: if it is lost, the agent has to enrol again. [default:"
    " /var/lib/yurttunnel-agent/state for root, else ~/.local/state/yurttunnel/agent]",
)

JOIN_TOKEN_FILE = Flag(
    "join-token-file",
    Group.BASICS,
    flags.path,
    "With --standalone: file with the join token, a copy of join-token in the server's state"
    " directory. Needed only until the agent is enrolled.",
)

JOIN_TOKEN = Flag(
    "join-token",
    Group.BASICS,
    lambda text: str(JoinToken.parse(text)),
    "With --standalone: the join token. Other users of the machine can see it in the process list"
    " until the agent has started; --join-token-file or the variable YURTTUNNEL_JOIN_TOKEN is"
    " safer.",
    secret=True,
)

RESUME_WINDOW = Flag(
    "resume-window",
    Group.LIMITS,
    flags.resume_window,
    "How long streams survive the loss of the connection to the server; with 0 they end at once.",
    default="30",
)

META_HOST = Flag(
    "meta-host",
    Group.BASICS,
    flags.listening_address,
    "Address that serves /healthz, /readyz, /metrics and /agents. [default: the loopback address"
    " of the family of --node-ip]",
)

META_PORT = Flag(
    "meta-port", Group.BASICS, flags.port, "Port at --meta-host.", default=str(DEFAULT_META_PORT)
)

ALLOW_DESTINATION = Repeated(
    "allow-destination",
    Group.TRUST,
    _pattern,
    "Destination that the agent may connect to, in addition to the default; repeatable. HOST,"
    " HOST:PORT or HOST:FIRST-LAST, where HOST is an address, a network (10.0.0.0/8), a name or"
    " *.DOMAIN (every name below it). IPv6 with a port is written [fd00::1]:443 or [fd00::/8]:443."
    " A name is resolved only if a pattern matches it, and then may resolve to any address except"
    " loopback, link-local and multicast ones, which have to be allowed as addresses. A"
    " destination that is an address needs a pattern of addresses. 0.0.0.0/0 and ::/0 are all"
    " addresses, including loopback. The default allows every port on the node's own addresses"
    " (--node-ip, ipv4 and ipv6 of --agent-identifiers), and on loopback 10250, 10255, 10266 and"
    " 10267. Patterns add to the default, so that allowing one more destination does not cut off"
    " the kubelet; the pattern no-default removes the default. The agent's own --meta-port is"
    " neither part of the default nor of patterns without a port: allow 127.0.0.1:10266 for it.",
)

TABLE: tuple[Entry, ...] = (
    *flags_in(globals()),
    tunnel_flags.DRAIN_TIMEOUT,
    tunnel_flags.TRANSPORT,
    *COMMON_TABLE,
)


DEFAULT_CERT_DIR = Path("/var/lib/yurttunnel-agent/pki")
DEFAULT_NAMESPACE = "kube-system"

_STANDALONE_FLAGS = (STATE_DIR, JOIN_TOKEN_FILE, JOIN_TOKEN)
_CLUSTER_FLAGS = (KUBE_CONFIG, APISERVER_ADDR, CERT_DIR, NAMESPACE)


class Options(CommandOptions[Settings]):
    """Options of ``twist yurttunnel-agent``."""

    invocation = "yurttunnel agent"

    longdesc = """The edge end of the tunnel. It runs on the node, keeps an outgoing TLS connection
    to each server, and opens the connections that the servers request if --allow-destination
    permits them. In a cluster, it gets its certificate from the cluster and finds the servers by
    the Service x-tunnel-server-svc. Without a cluster it enrols once with a join token. Durations
    are in seconds or have units: 30, 30s, 5m, 1h30m."""

    examples = (
        Example(
            "Without a cluster, with a copy of join-token from the server's state directory",
            "--standalone --state-dir /var/lib/yurttunnel-agent --node-name edge-1"
            " --node-ip 192.168.1.20 --tunnelserver-addr tunnel.example.org"
            " --join-token-file join-token",
        ),
        Example(
            "The same, and allow port 9100 of another machine",
            "--standalone --state-dir /var/lib/yurttunnel-agent --node-name edge-1"
            " --node-ip 192.168.1.20 --tunnelserver-addr tunnel.example.org"
            " --allow-destination 192.168.1.30:9100",
        ),
        Example(
            "On a node of a cluster, in a pod or with the kubelet's kubeconfig",
            "--node-name edge-1 --node-ip 192.168.1.20",
        ),
    )

    service_account_token = SERVICE_ACCOUNT / "token"
    """The file that shows that a pod has a service account."""

    ignored_flags = KLOG_FLAGS
    ignored_switches = KLOG_SWITCHES

    table = TABLE

    _log = Logger()

    def make_settings(self) -> Settings:
        bundle_path(self)
        # First, because some values that are missing have a default without a cluster.
        mode = self._standalone() if self.is_given(STANDALONE) else self._cluster()
        node_name, node_ip = self._node_name(), self._node_ip()
        patterns = self.all_values(ALLOW_DESTINATION)
        loopback = "127.0.0.1" if node_ip.version == 4 else "::1"
        return Settings(
            mode=mode,
            node_name=node_name,
            node_ip=node_ip,
            identifiers=self._identifiers(node_name, node_ip),
            servers=self._servers(),
            server_connections=self.optional_value(SERVER_CONNECTIONS, None),
            allowed_destinations=tuple(each for each in patterns if each is not None),
            keep_default_destinations=None not in patterns,
            resume_window=self.value(RESUME_WINDOW),
            drain_timeout=self.value(tunnel_flags.DRAIN_TIMEOUT),
            transport=self.value(tunnel_flags.TRANSPORT),
            meta_host=self.optional_value(META_HOST, loopback),
            meta_port=self.value(META_PORT),
        )

    def _standalone(self) -> StandaloneSettings:
        for flag in _CLUSTER_FLAGS:
            if self[flag.name] is not None:
                raise usage.UsageError(
                    f"--{flag.name} has no effect with --standalone, which uses no Kubernetes:"
                    " leave one of them out"
                )
        if self[JOIN_TOKEN.name] is not None and self[JOIN_TOKEN_FILE.name] is not None:
            raise usage.UsageError("give --join-token-file or --join-token, not both")
        return StandaloneSettings(
            state_dir=state_directory(self, STATE_DIR, "agent", self._environment),
            join_token=self.optional_value(JOIN_TOKEN, None),
            join_token_file=self.optional_value(JOIN_TOKEN_FILE, None),
        )

    def _cluster(self) -> ClusterSettings:
        for flag in _STANDALONE_FLAGS:
            if self[flag.name] is not None:
                raise usage.UsageError(
                    f"--{flag.name} is for --standalone: add that, or leave --{flag.name} out in a"
                    " cluster"
                )
        kube_config = self.optional_value(KUBE_CONFIG, None)
        apiserver_addr = self.optional_value(APISERVER_ADDR, None)
        if kube_config is None and apiserver_addr is None and not self._in_pod():
            kube_config = KUBELET_CONFIG
        return ClusterSettings(
            kube_config=kube_config,
            apiserver_addr=apiserver_addr,
            cert_dir=self.optional_value(CERT_DIR, DEFAULT_CERT_DIR),
            namespace=self.optional_value(NAMESPACE, DEFAULT_NAMESPACE),
        )

    def _servers(self) -> tuple[tuple[str, int], ...]:
        """Return the servers; empty if they are discovered in the cluster."""
        # An argument "--tunnelserver-addr=" of yurttunnel 1.2 means none.
        if not self.is_given(STANDALONE) and not self.is_given(TUNNELSERVER_ADDR):
            return ()
        try:
            return self.value(TUNNELSERVER_ADDR)
        except FlagMissing as missing:
            raise FlagMissing(
                f"{missing}; the server prints the whole command for a node when it is started, and"
                " so does yurttunnel token create there"
            ) from None

    def _in_pod(self) -> bool:
        """Return whether this is a pod with a service account."""
        return bool(
            self._environment.get("KUBERNETES_SERVICE_HOST")
            and self._environment.get("KUBERNETES_SERVICE_PORT")
            and self.service_account_token.is_file()
        )

    def _has_value(self, flag: Flag[Any]) -> bool:
        """Return whether the flag or its variable has a value."""
        return self[flag.name] is not None or bool(self._environment.get(flag.variable))

    def _node_ip(self) -> Address:
        """Return the node's address; without a cluster it may be detected."""
        if not self.is_given(STANDALONE) or self._has_value(NODE_IP):
            return self._required(NODE_IP)
        server_addresses = [parse_address(host) for host, _ in self._servers()]
        found = source_address(server_addresses[0]) or source_address()
        if found is not None:
            return found
        addresses = [address for address in own_addresses() if not address.is_loopback]
        if len(addresses) == 1:
            return addresses[0]
        known = f", and several addresses: {formatted_addresses(addresses)}" if addresses else ""
        raise usage.UsageError(
            "--node-ip is missing: give it, or set NODE_IP; this machine has no route to the"
            f" server now, so its address is not known{known}"
        )

    def _node_name(self) -> str:
        """Return the node's name; in a cluster it is also part of a certificate's subject."""
        if self.is_given(STANDALONE) and not self._has_value(NODE_NAME):
            return self._host_name()
        flag = NODE_NAME
        if not self.is_given(STANDALONE):
            flag = flag._replace(parse=lambda text: check_cluster_node_name(text.strip()))
        return self._required(flag)

    def _required(self, flag: Flag[_Value]) -> _Value:
        """Return a value that is optional without a cluster; an error mentions --standalone."""
        try:
            return self.value(flag)
        except FlagMissing as missing:
            raise FlagMissing(f"{missing}, or add --standalone where there is no cluster") from None

    def _host_name(self) -> str:
        try:
            return check_node_name(socket.gethostname().lower())
        except BadIdentity as reason:
            raise usage.UsageError(
                "--node-name is missing: give it, or set NODE_NAME; the host name is not valid as"
                f" a node name: {reason}"
            ) from None

    def _identifiers(self, node_name: str, node_ip: Address) -> Identifiers:
        """Return the identifiers for callers; warn about those without effect."""
        flag = AGENT_IDENTIFIERS._replace(
            parse=lambda text: parse_identifiers(
                text,
                lambda sentence: self._log.warn(
                    "--agent-identifiers: {sentence}", sentence=sentence
                ),
            ),
        )
        # A detected address may change, so it is not in the certificate.
        addresses = {node_ip} if self._has_value(NODE_IP) else set()
        usual = Identifiers(frozenset({node_name}), frozenset(addresses))
        return self.optional_value(flag, usual)
