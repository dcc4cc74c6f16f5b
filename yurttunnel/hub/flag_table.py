"""The flags of the hub; their names and most defaults are the same as upstream's."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network

from yurttunnel.http.authority import Address, join_authority
from yurttunnel.hub.settings import BootstrapMode, LoadBalancing
from yurttunnel.ops import flags
from yurttunnel.ops.diagnose.flags import COMMON_TABLE
from yurttunnel.ops.flag_table import Flag, Group, Repeated, flags_in
from yurttunnel.pki.certificate_template import HUB_ADDRESS, HUB_ADDRESS_6
from yurttunnel.pki.discovery import BootstrapToken, parse_pin
from yurttunnel.pki.names import check_cluster_node_name

MAX_INTERFACE_NAME = 15
"""Bytes (``IFNAMSIZ`` of linux/if.h, without the final NUL)."""

_LINK_LOCAL = IPv4Network("169.254.0.0/16")
_RESERVED = IPv4Network("169.254.31.0/24")
"""Reserved by upstream for itself; upstream's validation rejects it, too."""
_OF_CALICO = IPv4Address("169.254.1.1")
"""The gateway address that Calico gives to pods."""

_BYTES = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti)?")
_FACTORS = {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MIN_CACHE = 16 * 2**20
_INTERFACE_NAME = re.compile(r"[^\s/:%]+")


def _servers(text: str) -> tuple[str, ...]:
    """Parse the list of API servers into URLs without duplicates."""
    found = []
    for item in flags.items(text):
        scheme, separator, rest = item.rpartition("://")
        if separator and scheme != "https":
            raise ValueError(f"{item!r} is not reached by https: write https://HOST:PORT")
        host, port = flags.host_port(rest.rstrip("/"), 443)
        if separator and ":" in host and not rest.startswith("["):
            raise ValueError(f"{item!r} has no brackets: write https://[ADDRESS]:PORT for IPv6")
        if "%" in host:
            raise ValueError(f"{item!r} has a zone: write another address, or a name")
        found.append(f"https://{join_authority(host, port)}")
    if not found:
        raise ValueError("it names no API server: write https://HOST:PORT")
    return tuple(dict.fromkeys(found))


def _working_mode(text: str) -> str:
    """Parse the working mode; only one is supported."""
    if text != "edge":
        raise ValueError(
            f"{text!r} is not supported: a node in the cloud connects to the API servers itself,"
            " and runs no hub; on edge nodes write edge"
        )
    return text


def _load_balancing(text: str) -> LoadBalancing:
    """Parse the load balancing mode."""
    try:
        return LoadBalancing(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither rr nor priority") from None


def _bootstrap_mode(text: str) -> BootstrapMode:
    """Parse the credentials for the first certificate."""
    try:
        return BootstrapMode(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither token nor kubeletcertificate") from None


def _interface_name(text: str) -> str:
    """Parse the name of a network interface."""
    if len(text.encode()) > MAX_INTERFACE_NAME:
        raise ValueError(f"{text!r} has more than {MAX_INTERFACE_NAME} characters")
    if not _INTERFACE_NAME.fullmatch(text) or text in (".", ".."):
        raise ValueError(f"{text!r} is not the name of an interface")
    return text


def _interface_address(text: str) -> Address:
    """Parse the address of the interface; it must not be in use by others."""
    address = flags.address(text)
    if isinstance(address, IPv4Address):
        if address not in _LINK_LOCAL or address in _RESERVED or address == _OF_CALICO:
            raise ValueError(
                f"{text!r} cannot be used: take one of {_LINK_LOCAL}, but none of {_RESERVED}, and"
                f" not {_OF_CALICO}, which is Calico's"
            )
    elif address.is_unspecified or address.is_multicast or address.is_loopback:
        raise ValueError(f"{text!r} is not the address of one host")
    return address


def _limit(text: str) -> int:
    """Parse a limit of concurrent requests; zero and negative values mean no limit."""
    return max(0, int(text)) if re.fullmatch("-?[0-9]{1,9}", text, re.ASCII) else flags.number(text)


def _bytes(text: str) -> int:
    """Parse a size."""
    match = _BYTES.fullmatch(text)
    size = int(match[1]) * _FACTORS[match[2]] if match else 0
    if size < _MIN_CACHE:
        raise ValueError(f"{text!r} is not a size of at least 16Mi: write 512Mi, 2Gi or bytes")
    return size


def _pins(text: str) -> frozenset[str]:
    """Parse comma-separated pins of authorities."""
    return frozenset(map(parse_pin, flags.items(text)))


def _filters(text: str) -> frozenset[str]:
    """Parse a comma-separated list of filters, or ``*``."""
    return frozenset(flags.items(text))


NODE_NAME = Flag(
    "node-name",
    Group.BASICS,
    lambda text: check_cluster_node_name(text.strip()),
    "Name of this node, as its kubelet registers it. [default: $NODE_NAME]",
    variable="NODE_NAME",
)
SERVER_ADDR = Flag(
    "server-addr",
    Group.BASICS,
    _servers,
    "Comma-separated API servers: https://HOST:PORT. Do not use the address of the Service"
    " kubernetes: it is not reachable before kube-proxy runs, and kube-proxy waits for the hub.",
)
ROOT_DIR = Flag(
    "root-dir",
    Group.BASICS,
    flags.path,
    "Directory for the node's keys and certificates.",
    default="/var/lib/yurthub",
)
DISK_CACHE_PATH = Flag(
    "disk-cache-path",
    Group.BASICS,
    flags.path,
    "Directory for the cache. It contains secrets.",
    default="/etc/kubernetes/cache/",
)
WORKING_MODE = Flag(
    "working-mode", Group.BASICS, _working_mode, "edge is the only supported mode.", default="edge"
)
BIND_PROXY_ADDRESS = Flag(
    "bind-proxy-address",
    Group.BASICS,
    flags.listening_address,
    "Address that serves the API to clients on the node and to pods in the host network. Requests"
    " without a bearer token are sent with the node's identity, so it has to be a loopback"
    " address.",
    default="127.0.0.1",
)
PROXY_PORT = Flag(
    "proxy-port",
    Group.BASICS,
    flags.port,
    "HTTP port of the API, at --bind-proxy-address and --dummy-if-ip.",
    default="10261",
)
PROXY_SECURE_PORT = Flag(
    "proxy-secure-port",
    Group.BASICS,
    flags.port,
    "HTTPS port of the API at --dummy-if-ip, or at --bind-proxy-address if that interface is"
    " disabled.",
    default="10268",
)
ENABLE_DUMMY_IF = Flag(
    "enable-dummy-if",
    Group.BASICS,
    flags.switch,
    "Create the network interface that serves the API to pods with their own network; their"
    " requests need a bearer token.",
    default="true",
    stands_alone=True,
)
DUMMY_IF_NAME = Flag(
    "dummy-if-name",
    Group.BASICS,
    _interface_name,
    "Name of the interface, at most 15 characters.",
    default="yurthub-dummy0",
)
DUMMY_IF_IP = Flag(
    "dummy-if-ip",
    Group.BASICS,
    _interface_address,
    "Address of the interface, in 169.254.0.0/16 or an IPv6 address. With an IPv6 address other"
    " than the default, the certificate for pods has to be approved manually (kubectl certificate"
    f" approve). [default: {HUB_ADDRESS}, or {HUB_ADDRESS_6} if --bind-proxy-address is IPv6]",
)
BIND_ADDRESS = Flag(
    "bind-address",
    Group.BASICS,
    flags.listening_address,
    "Address of --serve-port.",
    default="127.0.0.1",
)
SERVE_PORT = Flag(
    "serve-port",
    Group.BASICS,
    flags.port,
    "Port for operators: health, metrics, the status page, new join tokens.",
    default="10267",
)
NAMESPACE = Flag(
    "namespace",
    Group.CLUSTER,
    flags.namespace,
    "Namespace of the ConfigMap yurt-hub-cfg.",
    default="kube-system",
)
NODEPOOL_NAME = Flag(
    "nodepool-name",
    Group.CLUSTER,
    flags.host,
    "Node pool of this node. [default: from the labels of the Node]",
)
BOOTSTRAP_MODE = Flag(
    "bootstrap-mode",
    Group.TRUST,
    _bootstrap_mode,
    "Credentials for requesting the first certificate: token, or kubeletcertificate.",
    default="token",
)
BOOTSTRAP_FILE = Flag(
    "bootstrap-file",
    Group.TRUST,
    flags.path,
    "Kubeconfig with a bootstrap token. Its certificate-authority-data is trusted if present,"
    " without discovery. The file is removed once the node has joined.",
)
JOIN_TOKEN = Flag(
    "join-token",
    Group.TRUST,
    BootstrapToken.parse,
    "Bootstrap token. Other users of the machine can see it in the process list until the hub has"
    " started; --bootstrap-file is safer.",
    secret=True,
)
DISCOVERY_PINS = Repeated(
    "discovery-token-ca-cert-hash",
    Group.TRUST,
    _pins,
    "Pin of an authority of the cluster, sha256:HEX as printed by kubeadm; repeatable or"
    " comma-separated. Required with a token.",
)
SKIP_PINS = Flag(
    "discovery-token-unsafe-skip-ca-verification",
    Group.TRUST,
    flags.switch,
    "Trust any authority presented by somebody who knows the token. An attacker between this node"
    " and the API servers who has one of the tokens can then take over the node.",
    default="false",
    stands_alone=True,
)
HUB_CERT_ORGANIZATIONS = Flag(
    "hub-cert-organizations",
    Group.TRUST,
    flags.distinct_items,
    "Comma-separated additional organizations for the certificate. The tunnel's server approves"
    " them if the node already has them; otherwise use kubectl certificate approve.",
)
KUBELET_CERTIFICATE = Flag(
    "kubelet-client-certificate",
    Group.TRUST,
    flags.path,
    "With --bootstrap-mode=kubeletcertificate: the kubelet's certificate and key.",
    default="/var/lib/kubelet/pki/kubelet-client-current.pem",
)
KUBELET_CA_FILE = Flag(
    "kubelet-ca-file",
    Group.TRUST,
    flags.path,
    "With --bootstrap-mode=kubeletcertificate: the cluster's authorities.",
    default="/etc/kubernetes/pki/ca.crt",
)
MAX_REQUESTS = Flag(
    "max-requests-in-flight",
    Group.LIMITS,
    _limit,
    "Maximum number of concurrent requests, not counting watches; more are rejected with 429. The"
    " limit applies to clients on the node. Pods with their own network have the same limit"
    " together, and each of them may use as much as it leaves free for the others. 0 is no limit.",
    default="250",
)
MAX_WATCHES = Flag(
    "max-watches",
    Group.LIMITS,
    _limit,
    "Maximum number of concurrent watches, likewise. 0 is no limit.",
    default="1000",
)
MIN_REQUEST_TIMEOUT = Flag(
    "min-request-timeout",
    Group.LIMITS,
    flags.positive_duration,
    "Minimum duration of a watch without timeoutSeconds that is served from the cache.",
    default="30m",
)
CACHE_MAX_BYTES = Flag(
    "cache-max-bytes",
    Group.LIMITS,
    _bytes,
    "Maximum size of the cache on disk: bytes, or with Ki, Mi, Gi. Half of it is reserved for the"
    " node's own components.",
    default="2Gi",
)
LB_MODE = Flag(
    "lb-mode",
    Group.OPERATION,
    _load_balancing,
    "Load balancing: rr uses the healthy API servers in turn; priority uses the first healthy one"
    " of --server-addr.",
    default="rr",
)
HEARTBEAT_INTERVAL = Flag(
    "heartbeat-interval-seconds",
    Group.OPERATION,
    flags.positive_duration,
    "Interval of renewals of the node's Lease, which serve as health checks of the API servers.",
    default="10",
)
HEARTBEAT_TIMEOUT = Flag(
    "heartbeat-timeout-seconds",
    Group.OPERATION,
    flags.positive_duration,
    "Timeout of one renewal.",
    default="2",
)
HEARTBEAT_RETRY = Flag(
    "heartbeat-failed-retry",
    Group.OPERATION,
    flags.count,
    "Number of attempts for each renewal.",
    default="3",
)
HEARTBEAT_THRESHOLD = Flag(
    "heartbeat-healthy-threshold",
    Group.OPERATION,
    flags.count,
    "Number of consecutive successful renewals after which a server is healthy again.",
    default="2",
)
KUBELET_GRACE = Flag(
    "kubelet-health-grace-period",
    Group.OPERATION,
    flags.positive_duration,
    "If the kubelet sends nothing for this long, its Lease is no longer renewed, so that the"
    " cloud notices.",
    default="40s",
)
OFFLINE_TOKEN_PLACEHOLDERS = Flag(
    "offline-token-placeholders",
    Group.OPERATION,
    flags.switch,
    "While the API is unreachable, answer the kubelet's requests for service account tokens with"
    " placeholders that are marked as such, so that pods start. They last for ten minutes, after"
    " which the kubelet gets real ones: until then the API, once reachable again, rejects these"
    " pods' requests (401). If false, requests for tokens fail with 503, and pods with projected"
    " tokens do not start.",
    default="true",
    stands_alone=True,
)
ENABLE_RESOURCE_FILTER = Flag(
    "enable-resource-filter",
    Group.OPERATION,
    flags.switch,
    "Filter and modify some objects for clients on the node, for example for the topology of"
    " Services.",
    default="true",
    stands_alone=True,
)
DISABLED_FILTERS = Flag(
    "disabled-resource-filters",
    Group.OPERATION,
    _filters,
    "Comma-separated filters to disable; * disables all.",
)
POOL_TOPOLOGY = Flag(
    "enable-pool-service-topology",
    Group.OPERATION,
    flags.switch,
    "Read the nodes of a pool from NodeBuckets instead of the NodePool.",
    default="false",
    stands_alone=True,
)

DUMP_CACHE = Flag(
    "dump-cache",
    Group.OPERATION,
    flags.path,
    "Dump the contents of --disk-cache-path, and exit; the hub may be running. - prints a list;"
    " anything else is a directory to create with a file for each object. The output contains"
    " secrets.",
)

TABLE = (*flags_in(globals()), *COMMON_TABLE)
