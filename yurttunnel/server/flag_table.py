"""The flags of the server, but for those of steering and of the audit log."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from yurttunnel.ops import flags
from yurttunnel.ops.diagnose.flags import DIAGNOSE_TABLE
from yurttunnel.ops.flag_table import Entry, Flag, Group, Repeated, Switch
from yurttunnel.ops.options import CONFIG
from yurttunnel.ops.tunnel_flags import DRAIN_TIMEOUT, TRANSPORT
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.names import BadIdentity, check_node_name
from yurttunnel.server.audit_options import AUDIT_TABLE
from yurttunnel.server.endpoints import Endpoint, parse_endpoint
from yurttunnel.server.frontends.admission import parse_permission
from yurttunnel.server.frontends.forward import parse_forward
from yurttunnel.server.steering_options import STEERING_TABLE

"""Processes of one server; each takes some 40 MiB."""

USUAL_CALLERS = ("kube-apiserver-kubelet-client",)
"""What kubeadm calls kube-apiserver's certificate for kubelets (apiserver-kubelet-client.crt)."""

_Address = IPv4Address | IPv6Address


def _connect_endpoint(text: str) -> tuple[str, Endpoint]:
    """Parse an endpoint; the flag as it was given comes with it, for messages."""
    return f"--connect-endpoint {text}", parse_endpoint(text)


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


def _callers(text: str) -> tuple[str, ...]:
    """Parse the comma list of names in certificates, which may be empty."""
    return tuple(dict.fromkeys(flags.items(text)))


def _label(text: str) -> str:
    """Parse a name that has to be one label of DNS, as that of a namespace."""
    name = flags.host(text)
    if "." in name:
        raise ValueError(f"{text!r} is not the name of a namespace")
    return name


def _names(text: str) -> tuple[str, ...]:
    """Parse the comma list of names."""
    return tuple(dict.fromkeys(flags.host(item) for item in flags.items(text)))


def _addresses(text: str) -> tuple[_Address, ...]:
    """Parse the comma list of addresses."""
    return tuple(dict.fromkeys(flags.address(item) for item in flags.items(text)))


STANDALONE = Switch(
    "standalone",
    Group.BASICS,
    "Work without Kubernetes: certificates come from an authority in --state-dir, nodes are"
    " the connected agents.",
)

ACCEPT_COMMON_AGENT_CERTIFICATES = Switch(
    "accept-common-agent-certificates",
    Group.TRUST,
    "Let in agents whose certificate is of yurttunnel 1.2: all of those have the name"
    " tunnel-agent-client, so that one node can pass for another. For the time of a migration"
    " only.",
)

CLEANUP_IPTABLES = Switch(
    "cleanup-iptables",
    Group.STEERING,
    "Remove all firewall rules of the tunnel server from this machine, those of yurttunnel"
    " 1.2 too, and exit.",
)

STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    flags.path,
    "With --standalone: directory for the authority, the certificates and the join token, made"
    " with mode 0700. Keep it: without it every agent has to enrol again. [default:"
    " /var/lib/yurttunnel-server/state for root, else ~/.local/state/yurttunnel/server]",
)

KUBE_CONFIG = Flag(
    "kube-config",
    Group.CLUSTER,
    flags.path,
    "File that says where the Kubernetes API is and who asks. [default: the service account"
    " of the pod]",
)

NAMESPACE = Flag(
    "namespace",
    Group.CLUSTER,
    _label,
    "Where the server's own objects are: its services, its leases and yurt-tunnel-server-cfg.",
    default="kube-system",
)

CERT_DIR = Flag(
    "cert-dir",
    Group.CLUSTER,
    flags.path,
    "Directory for the certificates that the cluster issues.",
    default="/var/lib/yurttunnel-server/pki",
)

CLUSTER_DOMAIN = Flag(
    "cluster-domain",
    Group.CLUSTER,
    flags.host,
    "What the DNS names of services end in.",
    default="cluster.local",
)

ALLOWED_CALLERS = Flag(
    "allowed-callers",
    Group.TRUST,
    _callers,
    "Names, separated by commas, that kube-apiserver has in its certificate for kubelets. It"
    " speaks for others: the connection tells the node, no field does. Others, and those with"
    " a bearer token, choose by fields and may do what the cluster allows them to"
    " (nodes/proxy).",
    default=",".join(USUAL_CALLERS),
)

CLIENT_CA_FILE = Flag(
    "client-ca-file",
    Group.TRUST,
    flags.path,
    "File of further authorities that certificates of callers on --secure-port may be from.",
)

BIND_ADDRESS = Flag(
    "bind-address",
    Group.BASICS,
    flags.listening_address,
    "Address of --tunnel-agent-connect-port and --secure-port. [default: 0.0.0.0, or :: on a"
    " machine that has addresses of IPv6 only]",
)

TUNNEL_AGENT_CONNECT_PORT = Flag(
    "tunnel-agent-connect-port",
    Group.BASICS,
    flags.port,
    "Port on which agents connect.",
    default="10262",
)

SECURE_PORT = Flag(
    "secure-port",
    Group.BASICS,
    flags.port,
    "HTTPS port for requests to kubelets. Callers need a certificate of the server's"
    " authority, as client.crt in --state-dir, and name the kubelet as they would without a"
    " tunnel, by the Host field, or by X-Tunnel-Proxy-Dest.",
    default="10263",
)

INSECURE_BIND_ADDRESS = Flag(
    "insecure-bind-address",
    Group.BASICS,
    flags.listening_address,
    "Address of --insecure-port and --meta-port. [default: loopback of the family of"
    " --bind-address]",
)

INSECURE_PORT = Flag(
    "insecure-port",
    Group.BASICS,
    flags.port,
    "The same as --secure-port without TLS, on either side, and for everybody who can connect.",
    default="10264",
)

META_PORT = Flag(
    "meta-port",
    Group.BASICS,
    flags.port,
    "Port on which to serve /healthz, /readyz, /metrics and /agents.",
    default="10265",
)

KUBELET_VERIFY = Flag(
    "kubelet-verify",
    Group.TRUST,
    flags.member(KubeletVerification),
    "What is asked of kubelets' certificates: ca, to be of --kubelet-ca and for the host that"
    " is dialed or the node; auto, the same of those that are of --kubelet-ca, while others"
    " are accepted with a warning; skip, nothing.",
    default="auto",
)

KUBELET_CA = Flag(
    "kubelet-ca",
    Group.TRUST,
    flags.path,
    "File of the authorities that sign kubelets' certificates, or of such certificates"
    " themselves; read again when it changes. [default: the server's own authority]",
)

RESPONSE_TIMEOUT = Flag(
    "response-timeout",
    Group.LIMITS,
    flags.duration,
    "How long a kubelet may take to begin its answer, 0 for ever; requests with follow or"
    " watch in their query are exempt.",
    default="60",
)

RESUME_WINDOW = Flag(
    "resume-window",
    Group.LIMITS,
    flags.resume_window,
    "How long streams outlive the connection to their agent, whatever has ended it; with 0"
    " they end at once. A new process of the agent ends them sooner.",
    default="30",
)

RETURN_GRACE = Flag(
    "return-grace",
    Group.LIMITS,
    flags.duration,
    "How long they outlive one that was closed or reset while it was healthy, which is what"
    " the death of the agent's process looks like, but also a firewall or load balancer that"
    " is restarted. At most --resume-window, which is the default; less has callers know"
    " sooner of an agent that does not return.",
)

CERT_DNS_NAMES = Flag(
    "cert-dns-names",
    Group.TRUST,
    _names,
    "Names, separated by commas, that the server's certificate is to have, by which agents"
    " connect.",
)

CERT_IPS = Flag(
    "cert-ips",
    Group.TRUST,
    _addresses,
    "Addresses, separated by commas, that it is to have.",
)

JOIN_TOKEN_LIFETIME = Flag(
    "join-token-lifetime",
    Group.TRUST,
    _lifetime,
    "With --standalone: how long a join token can be used. [default: 24h]",
)

NODE_CERTIFICATE_LIFETIME = Flag(
    "node-certificate-lifetime",
    Group.TRUST,
    _lifetime,
    "With --standalone: how long the certificate of a node is valid; agents renew theirs in"
    " time. [default: 720h]",
)

REVOKE_NODE = Flag(
    "revoke-node",
    Group.TRUST,
    _node_name,
    "With --standalone: revoke the certificates of this node in --state-dir and exit; a"
    " server that runs on the same directory ends the node's session.",
)

CONNECT_ENDPOINT = Repeated(
    "connect-endpoint",
    Group.BASICS,
    _connect_endpoint,
    "Serve HTTP CONNECT clients on this endpoint; repeatable. unix:PATH (mode 0660; another"
    " one with :mode=600), tcp:PORT or tcp6:PORT (loopback; another address with"
    " :interface=ADDRESS, of IPv6 :interface=[ADDRESS]), ssl:PORT (callers need a certificate of"
    " the server's authority, as client.crt in --state-dir; or give"
    " :privateKey=FILE:certKey=FILE:caCerts=FILE), or systemd:domain=UNIX:name=NAME for a socket"
    " that systemd has opened.",
    once_each=True,
)

FORWARD = Repeated(
    "forward",
    Group.BASICS,
    parse_forward,
    "Carry TCP connections to a target behind an agent: LISTEN=NODE/HOST:PORT, as"
    " 127.0.0.1:9000=edge-1/127.0.0.1:80; repeatable. LISTEN is ADDRESS:PORT; PORT alone is a"
    " port of the loopback address. IPv6 addresses stand in brackets. The agent must allow"
    " the target (its --allow-destination).",
)

ALLOW_CONNECT = Repeated(
    "allow-connect",
    Group.TRUST,
    parse_permission,
    "Let callers of --connect-endpoint reach only what such a permission names; repeatable."
    " certificate:NAME=NODE/HOST:PORT is for who has a certificate with this common name"
    " (ssl:), user:UID=NODE/HOST:PORT for who runs as this user (unix:),"
    " address:ADDRESS=NODE/HOST:PORT for who connects from there (tcp:). NODE, HOST and PORT"
    " may be *, NODE is the name of the node. Without any, whoever can connect reaches every"
    " node.",
)

MIDDLEWARE = Repeated(
    "middleware",
    Group.OPERATION,
    str,
    "Have the middleware NAME, a plugin that is installed beside this package, see all"
    " requests to kubelets, and the calls of other entries if it wants to; repeatable, the"
    " first sees a request first. How to write one is in docs/middlewares.md.",
    once_each=True,
)

TABLE: tuple[Entry, ...] = (
    STANDALONE,
    STATE_DIR,
    FORWARD,
    CONNECT_ENDPOINT,
    BIND_ADDRESS,
    TUNNEL_AGENT_CONNECT_PORT,
    SECURE_PORT,
    INSECURE_BIND_ADDRESS,
    INSECURE_PORT,
    META_PORT,
    ACCEPT_COMMON_AGENT_CERTIFICATES,
    CLEANUP_IPTABLES,
    KUBE_CONFIG,
    NAMESPACE,
    CERT_DIR,
    CLUSTER_DOMAIN,
    ALLOWED_CALLERS,
    CLIENT_CA_FILE,
    KUBELET_VERIFY,
    KUBELET_CA,
    RESPONSE_TIMEOUT,
    RESUME_WINDOW,
    RETURN_GRACE,
    DRAIN_TIMEOUT,
    TRANSPORT,
    CERT_DNS_NAMES,
    CERT_IPS,
    JOIN_TOKEN_LIFETIME,
    NODE_CERTIFICATE_LIFETIME,
    REVOKE_NODE,
    ALLOW_CONNECT,
    MIDDLEWARE,
    *AUDIT_TABLE,
    *STEERING_TABLE,
    CONFIG,
    *DIAGNOSE_TABLE,
)
