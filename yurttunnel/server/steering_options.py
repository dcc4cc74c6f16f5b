"""The command-line flags of steering."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, Switch, flags_in
from yurttunnel.ops.options import CommandOptions
from yurttunnel.steering.interception import Match
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

MIN_IPTABLES_PERIOD = 15.0
MIN_DNS_PERIOD = 30.0
"""Seconds; smaller values are raised to these, as in yurttunnel 1.2."""


def _ports(text: str) -> frozenset[int]:
    ports = frozenset(flags.port(item) for item in flags.items(text))
    if not ports:
        raise ValueError("it is empty: write ports, separated by commas")
    return ports


ENABLE_IPTABLES = Flag(
    "enable-iptables",
    Group.STEERING,
    flags.switch,
    "Redirect connections of local programs, such as kube-apiserver, to nodes behind the tunnel"
    " to the server by firewall rules. Requires the capabilities CAP_NET_ADMIN and CAP_NET_RAW."
    " Not with --standalone. [default: true]",
    stands_alone=True,
)

IPTABLES_SYNC_PERIOD = Flag(
    "iptables-sync-period",
    Group.STEERING,
    flags.duration,
    "Longest time between two checks of the rules, at least 15. Changes of nodes and ports, and"
    " changes that others make to the rules, are handled sooner.",
    default="60",
)

INTERCEPT_MATCH = Flag(
    "intercept-match",
    Group.STEERING,
    flags.member(Match),
    "Which connections are redirected: edge-set matches the addresses of edge nodes; cloud-return"
    " matches ports alone and excludes cloud nodes, like yurttunnel 1.2. [default: edge-set if the"
    " kernel has ipset]",
)

INTERCEPT_PODS = Switch(
    "intercept-pods",
    Group.STEERING,
    "With --enable-iptables: also redirect connections that this machine forwards, such as those"
    " of its pods.",
)

PASSTHROUGH_PORT = Flag(
    "passthrough-port",
    Group.STEERING,
    flags.port,
    "Port that forwards connections for --passthrough-ports without terminating their TLS: caller"
    " and kubelet verify each other.",
)

PASSTHROUGH_PORTS = Flag(
    "passthrough-ports",
    Group.STEERING,
    _ports,
    "Comma-separated ports of nodes that are redirected to --passthrough-port. [default: 10250]",
)

ENABLE_DNS_CONTROLLER = Flag(
    "enable-dns-controller",
    Group.STEERING,
    flags.switch,
    "Maintain the nodes' DNS records in the ConfigMap yurt-tunnel-nodes and the ports of"
    " x-tunnel-server-internal-svc, for callers that connect to nodes by name. Not with"
    " --standalone. [default: true]",
    stands_alone=True,
)

DNS_SYNC_PERIOD = Flag(
    "dns-sync-period",
    Group.STEERING,
    flags.duration,
    "How often the DNS records are checked in addition to every change, at least 30.",
    default="1800",
)

UNNAMED_UPGRADES = Flag(
    "unnamed-upgrades",
    Group.STEERING,
    flags.OneOf({"pod": False, "refuse": True}),
    "How the node is chosen for an upgrade whose TLS has no server name. A kube-apiserver without"
    " --kubelet-certificate-authority sends these to nodes that it dials by name. pod uses the pod"
    " in the path; refuse rejects the request. [default: pod]",
)

STEERING_TABLE = flags_in(globals())


_log = Logger()


class SteeringFlags(NamedTuple):
    """The values of the flags; periods are in seconds.

    Connections for ``passthrough_ports`` of nodes are redirected to ``passthrough_port``, if set.
    ``refuse_unnamed_upgrades`` is whether upgrades without a name in TLS are rejected.
    """

    iptables: bool
    iptables_period: float
    match: Match | None
    pods: bool
    passthrough_port: int | None
    passthrough_ports: frozenset[int]
    dns: bool
    dns_period: float
    refuse_unnamed_upgrades: bool


def steering_flags(options: CommandOptions[Any]) -> SteeringFlags:
    """Check and convert the flags of a server in a cluster."""
    iptables = options.optional_value(ENABLE_IPTABLES, True)
    for flag in () if iptables else (INTERCEPT_MATCH, INTERCEPT_PODS):
        if options.is_given(flag):
            raise usage.UsageError(
                f"--{flag.name} has no effect with --enable-iptables=false: leave one of them out"
            )
    return SteeringFlags(
        iptables=iptables,
        iptables_period=_period(options, IPTABLES_SYNC_PERIOD, MIN_IPTABLES_PERIOD),
        match=options.optional_value(INTERCEPT_MATCH, None),
        pods=options.is_given(INTERCEPT_PODS),
        passthrough_port=options.optional_value(PASSTHROUGH_PORT, None),
        passthrough_ports=_passthrough_ports(options),
        dns=options.optional_value(ENABLE_DNS_CONTROLLER, True),
        dns_period=_period(options, DNS_SYNC_PERIOD, MIN_DNS_PERIOD),
        refuse_unnamed_upgrades=options.optional_value(UNNAMED_UPGRADES, False),
    )


def refuse_steering(options: CommandOptions[Any]) -> None:
    """Raise ``UsageError`` if flags are given that need a cluster."""
    for flag in (
        INTERCEPT_PODS,
        INTERCEPT_MATCH,
        PASSTHROUGH_PORT,
        PASSTHROUGH_PORTS,
        UNNAMED_UPGRADES,
    ):
        if options.is_given(flag):
            _refuse(flag.name)
    for enabling in (ENABLE_IPTABLES, ENABLE_DNS_CONTROLLER):
        if options.optional_value(enabling, False):
            _refuse(enabling.name)


def _refuse(flag: str) -> NoReturn:
    raise usage.UsageError(
        f"--{flag} has no effect with --standalone, which steers no traffic: leave one of them out"
    )


def _period(options: CommandOptions[Any], flag: Flag[float], minimum: float) -> float:
    seconds = options.value(flag)
    if seconds < minimum:
        _log.warn(
            "--{flag}: {seconds:g} s is raised to {least:g} s, the minimum",
            flag=flag.name,
            seconds=seconds,
            least=minimum,
        )
    return max(seconds, minimum)


def _passthrough_ports(options: CommandOptions[Any]) -> frozenset[int]:
    """Return the ports of the pass-through; none without --passthrough-port."""
    if options.is_given(PASSTHROUGH_PORT):
        return options.optional_value(PASSTHROUGH_PORTS, frozenset({KUBELET_PORT}))
    if options[PASSTHROUGH_PORTS.name] is not None:
        raise usage.UsageError(
            "--passthrough-ports has no effect without --passthrough-port: add it"
        )
    return frozenset()
