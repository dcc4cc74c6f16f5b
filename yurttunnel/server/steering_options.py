"""The part of the server's command line that is about steering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel.ops import flags
from yurttunnel.ops.options import CommandOptions
from yurttunnel.steering.interception import Match
from yurttunnel.tunnel.kubelet_ports import KUBELET_PORT

LEAST_IPTABLES_PERIOD = 15.0
LEAST_DNS_PERIOD = 30.0
"""Seconds; smaller values are raised to these, as yurttunnel 1.2 did."""

STEERING_SWITCHES = ("enable-iptables", "enable-dns-controller")

STEERING_FLAGS = [
    ["enable-iptables", None, None, "Lead connections of this machine's own programs, such as "
     "kube-apiserver's, that are meant for nodes behind the tunnel to the server, by firewall "
     "rules; false for no. Needs the capabilities CAP_NET_ADMIN and CAP_NET_RAW. Not with "
     "--standalone. [default: true]"],
    ["iptables-sync-period", None, "60", "The longest time between two looks at the rules, at "
     "least 15. Changes of nodes and ports, and by others of the rules, are followed sooner."],
    ["intercept-match", None, None, "How such connections are recognised: edge-set, by their "
     "address, which is that of an edge node; cloud-return, by their port alone, but for cloud "
     "nodes, as yurttunnel 1.2 did. [default: edge-set where the kernel has ipset]"],
    ["passthrough-port", None, None, "Port that takes connections for --passthrough-ports as they "
     "are, without ending their TLS: caller and kubelet verify each other."],
    ["passthrough-ports", None, None, "Ports of nodes, separated by commas, that are led to "
     "--passthrough-port. [default: 10250]"],
    ["enable-dns-controller", None, None, "Keep the records of nodes, in the ConfigMap "
     "yurt-tunnel-nodes, and the ports of x-tunnel-server-internal-svc, for callers that ask for "
     "nodes by name; false for no. Not with --standalone. [default: true]"],
    ["dns-sync-period", None, "1800", "How often the records are looked at, besides at every "
     "change; at least 30."],
    ["unnamed-upgrades", None, None, "What decides on the node of an upgrade whose TLS names "
     "none, which a kube-apiserver without --kubelet-certificate-authority sends to nodes that it "
     "dials by name: pod, the pod in its path; refuse, nothing: "
     "it is refused. [default: pod]"],
]  # fmt: skip


_log = Logger()


@dataclass(frozen=True, slots=True)
class SteeringFlags:
    """What the flags say; periods are in seconds.

    Connections for ``passthrough_ports`` of nodes come to ``passthrough_port``, if there is one.
    ``named_upgrades`` has upgrades refused whose TLS has no name.
    """

    iptables: bool
    iptables_period: float
    match: Match | None
    pods: bool
    passthrough_port: int | None
    passthrough_ports: frozenset[int]
    dns: bool
    dns_period: float
    named_upgrades: bool


def steering_flags(options: CommandOptions[Any]) -> SteeringFlags:
    """Check and convert the flags of a server in a cluster."""
    iptables = options.optional_value("enable-iptables", flags.switch, True)
    for flag in () if iptables else ("intercept-match", "intercept-pods"):
        if options[flag]:
            raise usage.UsageError(
                f"--{flag} has no effect with --enable-iptables=false: leave one of them out"
            )
    return SteeringFlags(
        iptables=iptables,
        iptables_period=_period(options, "iptables-sync-period", LEAST_IPTABLES_PERIOD),
        match=options.optional_value("intercept-match", _match, None),
        pods=bool(options["intercept-pods"]),
        passthrough_port=options.optional_value("passthrough-port", flags.port, None),
        passthrough_ports=_passthrough_ports(options),
        dns=options.optional_value("enable-dns-controller", flags.switch, True),
        dns_period=_period(options, "dns-sync-period", LEAST_DNS_PERIOD),
        named_upgrades=options.optional_value("unnamed-upgrades", _named_upgrades, False),
    )


def refuse_steering(options: CommandOptions[Any]) -> None:
    """Raise ``UsageError`` when flags are given that need a cluster."""
    for flag in (
        "intercept-pods",
        "intercept-match",
        "passthrough-port",
        "passthrough-ports",
        "unnamed-upgrades",
    ):
        if options[flag]:
            _refuse(flag)
    for flag in STEERING_SWITCHES:
        if options.optional_value(flag, flags.switch, False):
            _refuse(flag)


def _refuse(flag: str) -> NoReturn:
    raise usage.UsageError(
        f"--{flag} has no effect with --standalone, to which no traffic is steered: leave one of"
        " them out"
    )


def _period(options: CommandOptions[Any], flag: str, least: float) -> float:
    seconds = options.value(flag, flags.duration)
    if seconds < least:
        _log.warn(
            "--{flag}: {seconds:g} s is raised to {least:g} s, the least that there is",
            flag=flag,
            seconds=seconds,
            least=least,
        )
    return max(seconds, least)


def _passthrough_ports(options: CommandOptions[Any]) -> frozenset[int]:
    """Give the ports that pass-through is for; none without --passthrough-port."""
    if options["passthrough-port"] is not None:
        return options.optional_value("passthrough-ports", _ports, frozenset({KUBELET_PORT}))
    if options["passthrough-ports"] is not None:
        raise usage.UsageError(
            "--passthrough-ports has no effect without --passthrough-port: add it"
        )
    return frozenset()


def _ports(text: str) -> frozenset[int]:
    ports = frozenset(flags.port(item) for item in text.split(",") if item.strip())
    if not ports:
        raise ValueError("it is empty: write ports, separated by commas")
    return ports


def _named_upgrades(text: str) -> bool:
    if text not in ("pod", "refuse"):
        raise ValueError(f"{text!r} is none of these: pod, refuse")
    return text == "refuse"


def _match(text: str) -> Match:
    try:
        return Match(text)
    except ValueError:
        known = ", ".join(each.value for each in Match)
        raise ValueError(f"{text!r} is none of these: {known}") from None
