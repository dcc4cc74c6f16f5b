"""The flags of the service proxy; those that kube-proxy has as well have the same names."""

from __future__ import annotations

import re
from ipaddress import ip_network

from yurttunnel.kube.configuration import BadKubeConfiguration, checked_host
from yurttunnel.ops import flags
from yurttunnel.ops.diagnose.flags import COMMON_TABLE
from yurttunnel.ops.flag_table import Flag, Group, Switch, flags_in
from yurttunnel.pki.names import check_cluster_node_name
from yurttunnel.proxy.settings import BackEnd, Mode
from yurttunnel.proxy.state.virtual_services import Network

HEALTH_PORT = 10256
METRICS_PORT = 10249

_PORT_RANGE = re.compile(r"([0-9]{1,5})(?:([-+])([0-9]{1,5}))?")


def _url(text: str) -> str:
    """Parse the URL of the API; the default scheme is https."""
    try:
        return checked_host(text.strip() if "://" in text else f"https://{text.strip()}", "the API")
    except BadKubeConfiguration as error:
        raise ValueError(str(error)) from None


def _listener(default_port: int, text: str) -> tuple[str, int]:
    """Parse an address to listen on, with an optional port."""
    host, port = flags.host_port(text, default_port)
    return flags.listening_address(host), port


def _networks(text: str) -> tuple[Network, ...]:
    """Parse a comma-separated list of networks."""
    found = []
    for item in flags.items(text):
        try:
            if "%" in item:
                # It has a zone id, which rules cannot contain.
                raise ValueError
            found.append(ip_network(item, strict=False))
        except ValueError:
            raise ValueError(f"{item!r} is not a network: write 10.0.0.0/8 or fd00::/8") from None
    return tuple(dict.fromkeys(found))


def _port_range(text: str) -> range | None:
    """Parse a range of ports as ``apimachinery/pkg/util/net`` does: ``0-0`` means any port."""
    match = _PORT_RANGE.fullmatch(text.strip() or "0-0")
    if match is None:
        raise ValueError(f"{text!r} is not a range of ports: write FIRST-LAST, or FIRST+COUNT")
    first, last = int(match[1]), int(match[3] or match[1])
    if match[2] == "+":
        last += first
    if (first, last) == (0, 0):
        return None
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r} is not an ascending range within 1 to 65535")
    return range(first, last + 1)


HOSTNAME_OVERRIDE = Flag(
    "hostname-override",
    Group.BASICS,
    lambda text: check_cluster_node_name(text.strip().lower()),
    "Name of this node, as its kubelet registers it. [default: $NODE_NAME, or the host name]",
    variable="NODE_NAME",
)
MODE = Flag(
    "mode",
    Group.BASICS,
    flags.member(Mode),
    "How connections are forwarded: user, by this process; kernel, by the kernel with nftables;"
    " auto, by the kernel if it is supported.",
    default="auto",
)
SERVICES_FILE = Flag(
    "services-file",
    Group.BASICS,
    flags.path,
    "JSON or YAML file with Services and EndpointSlices, reloaded when it changes. The API is"
    " then not used unless --kubeconfig or --master is given.",
)
KUBE_CONFIG = Flag(
    "kubeconfig",
    Group.CLUSTER,
    flags.path,
    "Kubeconfig with the address of the Kubernetes API and the credentials for it. [default: the"
    " service account of the pod]",
)
MASTER = Flag(
    "master",
    Group.CLUSTER,
    _url,
    "URL of the Kubernetes API. It replaces the one in --kubeconfig, and the one that pods get,"
    " which this proxy itself would have to serve first. Behind a hub use http://127.0.0.1:10261;"
    " nothing else is needed.",
)
PROXY_BACKEND = Flag(
    "proxy-backend",
    Group.STEERING,
    flags.member(BackEnd),
    "How connections to Services are redirected to the proxy: iptables, nftables, or none, for"
    " clients that connect to the proxy's own ports; auto, what this machine supports.",
    default="auto",
)
BIND_ADDRESS = Flag(
    "bind-address",
    Group.STEERING,
    flags.listening_address,
    "Address of the proxy's own ports: 0.0.0.0 or :: for all addresses of both families; with"
    " --proxy-backend none also a loopback address.",
    default="0.0.0.0",
)
PROXY_PORT_RANGE = Flag(
    "proxy-port-range",
    Group.STEERING,
    _port_range,
    "In user mode: ports that the proxy may listen on for Services, FIRST-LAST. They must not"
    " overlap node ports or the kernel's ephemeral ports. 0-0 lets the kernel choose.",
    default="0-0",
)
NODEPORT_ADDRESSES = Flag(
    "nodeport-addresses",
    Group.STEERING,
    _networks,
    "Comma-separated networks; node ports are served on the addresses of this machine in these"
    " networks. [default: all addresses]",
)
MASQUERADE_ALL = Flag(
    "masquerade-all",
    Group.STEERING,
    flags.switch,
    "In kernel mode: masquerade all connections to cluster IPs with this node's address.",
    default="false",
    stands_alone=True,
)
CLUSTER_CIDR = Flag(
    "cluster-cidr",
    Group.STEERING,
    _networks,
    "In kernel mode: comma-separated networks of pods. Connections to cluster IPs from other"
    " clients are masqueraded with this node's address, so that replies return through this node.",
)
SYNC_PERIOD = Flag(
    "iptables-sync-period",
    Group.STEERING,
    flags.positive_duration,
    "Longest time between two checks of rules and sockets. Changes, including those that others"
    " make to the rules, are handled sooner; the latter not with legacy iptables, which does not"
    " count them.",
    default="30s",
)
MIN_SYNC_PERIOD = Flag(
    "iptables-min-sync-period",
    Group.STEERING,
    flags.duration,
    "Shortest time between two updates of the rules; after a quiet time two may follow each other"
    " at once. In user mode changes of endpoints take effect at once regardless.",
    default="1s",
)
REMOVE_RULES = Flag(
    "remove-rules-at-exit",
    Group.STEERING,
    flags.switch,
    "Remove all rules at a clean exit. Otherwise connections in kernel mode continue without this"
    " process, and new ones in user mode wait for the next process.",
    default="false",
    stands_alone=True,
)
CLEANUP = Switch(
    "cleanup",
    Group.STEERING,
    "Remove all rules of the service proxy, including those of kube-proxy's userspace mode, from"
    " this machine and exit.",
)
UDP_TIMEOUT = Flag(
    "udp-timeout",
    Group.LIMITS,
    flags.positive_duration,
    "How long a UDP client keeps its endpoint without a datagram in either direction.",
    default="30s",
)
UDP_FIRST_TIMEOUT = Flag(
    "udp-first-timeout",
    Group.LIMITS,
    flags.positive_duration,
    "The same until the endpoint has answered once.",
    default="5s",
)
HEALTHZ_BIND_ADDRESS = Flag(
    "healthz-bind-address",
    Group.OPERATION,
    lambda text: _listener(HEALTH_PORT, text),
    "Address and port of /healthz and /livez, for load balancers; empty to disable.",
    default=f"0.0.0.0:{HEALTH_PORT}",
)
METRICS_BIND_ADDRESS = Flag(
    "metrics-bind-address",
    Group.OPERATION,
    lambda text: _listener(METRICS_PORT, text),
    "Address and port for operators: metrics, the status page, readiness.",
    default=f"127.0.0.1:{METRICS_PORT}",
)
DRAIN_TIMEOUT = Flag(
    "drain-timeout",
    Group.OPERATION,
    flags.duration,
    "How long connections may continue when their Service is removed or the proxy stops.",
    default="30s",
)
STATE_DIR = Flag(
    "state-dir",
    Group.OPERATION,
    flags.path,
    "Directory for the socket that the command yurttunnel uses to query this proxy, for example"
    " /run/yurtproxy; created with mode 0700. [default: $RUNTIME_DIRECTORY, which systemd sets for"
    " a unit with RuntimeDirectory=; without either there is no socket]",
    variable="RUNTIME_DIRECTORY",
)

TABLE = (*flags_in(globals()), *COMMON_TABLE)
