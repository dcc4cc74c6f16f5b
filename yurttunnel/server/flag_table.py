"""The flags of the server, except those of steering and of the audit log."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from yurttunnel.ops import flags, tunnel_flags
from yurttunnel.ops.diagnose.flags import COMMON_TABLE
from yurttunnel.ops.flag_table import Entry, Flag, Group, Repeated, Switch, flags_in
from yurttunnel.pki.kubelets import KubeletVerification
from yurttunnel.pki.names import check_node_name
from yurttunnel.server.audit_options import AUDIT_TABLE
from yurttunnel.server.endpoints import Endpoint, parse_endpoint
from yurttunnel.server.frontends.admission import parse_permission
from yurttunnel.server.frontends.forward import parse_forward
from yurttunnel.server.steering_options import STEERING_TABLE

DEFAULT_ALLOWED_CALLERS = ("kube-apiserver-kubelet-client",)
"""kubeadm's name for kube-apiserver's certificate for kubelets (apiserver-kubelet-client.crt)."""

_Address = IPv4Address | IPv6Address


def _connect_endpoint(text: str) -> tuple[str, Endpoint]:
    """Parse an endpoint; return it after the flag as given, for messages."""
    return f"--connect-endpoint {text}", parse_endpoint(text)


def _lifetime(text: str) -> float:
    """Parse a duration of at least one second."""
    seconds = flags.duration(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: give at least one second")
    return seconds


def _names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names."""
    return tuple(dict.fromkeys(flags.host(item) for item in flags.items(text)))


def _addresses(text: str) -> tuple[_Address, ...]:
    """Parse a comma-separated list of addresses."""
    return tuple(dict.fromkeys(flags.address(item) for item in flags.items(text)))


STANDALONE = Switch(
    "standalone",
    Group.BASICS,
    "Run without Kubernetes: certificates are issued by an authority in --state-dir, and the"
    " nodes are the connected agents.",
)

STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    flags.path,
    "With --standalone: directory for the authority, the certificates and the join token, created"
    " with mode 0700. Keep it: if it is lost, every agent has to enrol again. [default:"
    " /var/lib/yurttunnel-server/state for root, else ~/.local/state/yurttunnel/server]",
)

FORWARD = Repeated(
    "forward",
    Group.BASICS,
    parse_forward,
    "Forward TCP connections to a target behind an agent: LISTEN=NODE/HOST:PORT, for example"
    " 127.0.0.1:9000=edge-1/127.0.0.1:80; repeatable. LISTEN is ADDRESS:PORT, or PORT on the"
    " loopback address. IPv6 addresses are written in brackets. The agent must allow the target"
    " (its --allow-destination).",
)

CONNECT_ENDPOINT = Repeated(
    "connect-endpoint",
    Group.BASICS,
    _connect_endpoint,
    "Serve HTTP CONNECT clients on this endpoint; repeatable. unix:PATH (mode 0660, or"
    " :mode=600), tcp:PORT or tcp6:PORT (loopback, or :interface=ADDRESS, for IPv6"
    " :interface=[ADDRESS]), ssl:PORT (callers need a certificate of the server's authority, such"
    " as client.crt in --state-dir, or set :privateKey=FILE:certKey=FILE:caCerts=FILE), or"
    " systemd:domain=UNIX:name=NAME for a socket from systemd.",
    once_each=True,
)

BIND_ADDRESS = Flag(
    "bind-address",
    Group.BASICS,
    flags.listening_address,
    "Address of --tunnel-agent-connect-port and --secure-port. [default: 0.0.0.0, or :: on a"
    " machine that has only IPv6 addresses]",
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
    "HTTPS port for requests to kubelets. Callers need a certificate of the server's authority,"
    " such as client.crt in --state-dir, and name the kubelet as they would without a tunnel, by"
    " the Host field, or by X-Tunnel-Proxy-Dest.",
    default="10263",
)

INSECURE_BIND_ADDRESS = Flag(
    "insecure-bind-address",
    Group.BASICS,
    flags.listening_address,
    "Address of --insecure-port and --meta-port. [default: the loopback address of the family of"
    " --bind-address]",
)

INSECURE_PORT = Flag(
    "insecure-port",
    Group.BASICS,
    flags.port,
    "Like --secure-port but without TLS and without authentication: everybody who can connect may"
    " use it.",
    default="10264",
)

META_PORT = Flag(
    "meta-port",
    Group.BASICS,
    flags.port,
    "Port that serves /healthz, /readyz, /metrics and /agents.",
    default="10265",
)

ACCEPT_COMMON_AGENT_CERTIFICATES = Switch(
    "accept-common-agent-certificates",
    Group.TRUST,
    "Accept agents with certificates of yurttunnel 1.2. These all have the name"
    " tunnel-agent-client, so one node can impersonate another. Use it only during a migration.",
)

CLEANUP_IPTABLES = Switch(
    "cleanup-iptables",
    Group.STEERING,
    "Remove all firewall rules of the tunnel server, including those of yurttunnel 1.2, from this"
    " machine and exit.",
)

KUBE_CONFIG = Flag(
    "kube-config",
    Group.CLUSTER,
    flags.path,
    "Kubeconfig with the address of the Kubernetes API and the credentials for it. [default: the"
    " service account of the pod]",
)

NAMESPACE = Flag(
    "namespace",
    Group.CLUSTER,
    flags.namespace,
    "Namespace of the server's own objects: its Services, its Leases and yurt-tunnel-server-cfg.",
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
    "DNS domain of the cluster.",
    default="cluster.local",
)

ALLOWED_CALLERS = Flag(
    "allowed-callers",
    Group.TRUST,
    flags.distinct_items,
    "Comma-separated common names of kube-apiserver's kubelet client certificates. kube-apiserver"
    " acts on behalf of others, so for it the connection alone determines the node, never a header"
    " field. All other callers, also those with a bearer token, select the node by header fields"
    " and need permission in the cluster (nodes/proxy).",
    default=",".join(DEFAULT_ALLOWED_CALLERS),
)

CLIENT_CA_FILE = Flag(
    "client-ca-file",
    Group.TRUST,
    flags.path,
    "File with further authorities whose client certificates are accepted on --secure-port.",
)

KUBELET_VERIFY = Flag(
    "kubelet-verify",
    Group.TRUST,
    flags.member(KubeletVerification),
    "How certificates of kubelets are verified: ca requires a certificate signed by --kubelet-ca"
    " for the dialed host or the node; auto requires the same of certificates signed by"
    " --kubelet-ca and accepts all others with a warning; skip accepts any.",
    default="auto",
)

KUBELET_CA = Flag(
    "kubelet-ca",
    Group.TRUST,
    flags.path,
    "File with the authorities that sign the kubelets' certificates, or with these certificates"
    " themselves; reloaded when it changes. [default: the server's own authority]",
)

RESPONSE_TIMEOUT = Flag(
    "response-timeout",
    Group.LIMITS,
    flags.duration,
    "How long a kubelet may take to begin its response, 0 for no limit. Requests with follow or"
    " watch in their query are exempt.",
    default="60",
)

RESUME_WINDOW = Flag(
    "resume-window",
    Group.LIMITS,
    flags.resume_window,
    "How long streams survive the loss of the connection to their agent, whatever the cause; with"
    " 0 they end at once. A restart of the agent ends them sooner.",
    default="30",
)

RETURN_GRACE = Flag(
    "return-grace",
    Group.LIMITS,
    flags.duration,
    "How long streams survive when a healthy connection is closed or reset. That is what the"
    " death of the agent's process looks like, but also the restart of a firewall or load"
    " balancer. At most --resume-window, which is the default; a shorter time tells callers sooner"
    " about an agent that does not return.",
)

CERT_DNS_NAMES = Flag(
    "cert-dns-names",
    Group.TRUST,
    _names,
    "Comma-separated DNS names to add to the server's certificate, by which agents connect.",
)

CERT_IPS = Flag(
    "cert-ips",
    Group.TRUST,
    _addresses,
    "Comma-separated IP addresses to add to the server's certificate.",
)

JOIN_TOKEN_LIFETIME = Flag(
    "join-token-lifetime",
    Group.TRUST,
    _lifetime,
    "With --standalone: how long a join token is valid. [default: 24h]",
)

NODE_CERTIFICATE_LIFETIME = Flag(
    "node-certificate-lifetime",
    Group.TRUST,
    _lifetime,
    "With --standalone: how long a node's certificate is valid; agents renew it before it"
    " expires. [default: 720h]",
)

REVOKE_NODE = Flag(
    "revoke-node",
    Group.TRUST,
    check_node_name,
    "With --standalone: revoke the certificates of this node in --state-dir and exit. A server"
    " that runs on the same directory closes the node's session.",
)

ALLOW_CONNECT = Repeated(
    "allow-connect",
    Group.TRUST,
    parse_permission,
    "Restrict the callers of --connect-endpoint to the permitted targets; repeatable."
    " certificate:NAME=NODE/HOST:PORT applies to certificates with this common name (ssl:),"
    " user:UID=NODE/HOST:PORT to processes of this user (unix:), address:ADDRESS=NODE/HOST:PORT to"
    " connections from this address (tcp:). NODE, HOST and PORT may be *; NODE is the node's name."
    " Without this flag every caller can reach every node.",
)

MIDDLEWARE = Repeated(
    "middleware",
    Group.OPERATION,
    str,
    "Pass all requests to kubelets, and calls of the other entries if it supports them, through"
    " the middleware NAME, an installed plugin; repeatable, the first one sees a request first."
    " See docs/middlewares.md.",
    once_each=True,
)

TABLE: tuple[Entry, ...] = (
    tunnel_flags.TRANSPORT,
    *flags_in(globals()),
    tunnel_flags.DRAIN_TIMEOUT,
    *AUDIT_TABLE,
    *STEERING_TABLE,
    *COMMON_TABLE,
)
