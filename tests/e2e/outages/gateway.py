"""What a test has the NAT between the cloud and the site do to packets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.network.sites import LAN, SITE, Sites

FIREWALLS = {4: "iptables", 6: "ip6tables"}

RESET = ("-j", "REJECT", "--reject-with", "tcp-reset")

_TOO_LARGE = {
    4: ("-p", "icmp", "--icmp-type", "fragmentation-needed"),
    6: ("-p", "icmpv6", "--icmpv6-type", "packet-too-big"),
}
"""What says that a packet was too large, to whom it came from."""

_UNKNOWN = ("-p", "tcp", "-m", "conntrack", "--ctstate", "INVALID")

_FULL = 1500
"""Bytes that a packet may have on both of its networks."""

_BURST, _QUEUE = "16kb", "64kb"
"""What a slow way takes at once, and what may wait before it."""

_MERGED = ("-m", "length", "--length", f"{_FULL + 1}:65535")


class Gateway:
    """The NAT of a network; its rules are for IP of ``version``."""

    def __init__(self, network: Sites, version: int) -> None:
        self._network = network
        self._version = version
        self._firewall = FIREWALLS[version]

    def add(self, *rule: str, chain: str = "FORWARD") -> None:
        """Have it treat packets by a rule before all others, those that it passes on."""
        self.run(self._firewall, "-I", chain, *rule)

    def remove(self, *rule: str, chain: str = "FORWARD") -> None:
        """Take such a rule away."""
        self.run(self._firewall, "-D", chain, *rule)

    @contextmanager
    def with_rules(self, *rules: tuple[str, ...], chain: str = "FORWARD") -> Iterator[None]:
        """Have it treat packets by rules for the time of a block."""
        for rule in rules:
            self.add(*rule, chain=chain)
        yield
        for rule in rules:
            self.remove(*rule, chain=chain)

    def packet_count(self, chain: str = "FORWARD") -> int:
        """How many packets the rule has met that was added last."""
        return int(self.run(self._firewall, "-nvxL", chain, "1").split()[0])

    def packet_loss(self, probability: float):
        """Lose packets at random, in both directions, for the time of a block."""
        lost = ("-m", "statistic", "--mode", "random", "--probability", f"{probability}")
        return self.with_rules(
            *(("-p", "tcp", way, "lan", *lost, "-j", "DROP") for way in ("-i", "-o"))
        )

    @contextmanager
    def drop_larger_than(self, size: int) -> Iterator[None]:
        """Let no larger packets pass for the time of a block, and say so to nobody."""
        with self.with_rules((*_TOO_LARGE[self._version], "-j", "DROP"), chain="OUTPUT"):
            self.run("ip", "link", "set", "lan", "mtu", str(size))
            yield
            self.run("ip", "link", "set", "lan", "mtu", str(_FULL))

    @contextmanager
    def connections_flushed(self) -> Iterator[None]:
        """Forget all connections; who is in the site is told in a block, and nobody else is.

        As a real NAT it takes none up in the middle.
        """
        with self._network.inside("nat"):
            Path("/proc/sys/net/netfilter/nf_conntrack_tcp_loose").write_text("0")
        told = ("-i", "site", *_UNKNOWN, *RESET)
        quiet = ("-i", "lan", "-p", "tcp", "-j", "DROP")
        with (
            self.with_rules((*_UNKNOWN, "-j", "DROP"), told),
            self.with_rules(quiet, chain="INPUT"),
        ):
            self.run("conntrack", "-f", f"ipv{self._version}", "-F")
            yield

    def drop_outgoing(self, port: int) -> None:
        """Let nothing of a connection out of the site, which has that port in the cloud."""
        connection = ("-p", "tcp", "--sport", str(port))
        self.run(self._firewall, "-t", "mangle", "-A", "POSTROUTING", *connection, "-j", "DROP")

    @contextmanager
    def rate_limit(self, rate: str) -> Iterator[None]:
        """Pass on no more than so many bits in a second, in each direction, during a block.

        What comes faster waits, and is lost where `_QUEUE` is full.
        """
        for interface in ("lan", "site"):
            limit = ("rate", rate, "burst", _BURST, "limit", _QUEUE)
            self.run("tc", "qdisc", "add", "dev", interface, "root", "tbf", *limit)
        yield
        for interface in ("lan", "site"):
            self.run("tc", "qdisc", "del", "dev", interface, "root")

    def queued_packets(self) -> int:
        """How many packets to the cloud had to wait on a slow way."""
        shown = self.run("tc", "-s", "qdisc", "show", "dev", "lan")
        return int(shown.partition("overlimits ")[2].split()[0])

    def count_merged(self) -> None:
        """Begin to count packets that are several of a line's in one."""
        self.run(self._firewall, "-t", "mangle", "-A", "FORWARD", *_MERGED)

    def merged(self) -> int:
        """How many there were."""
        listed = self.run(self._firewall, "-t", "mangle", "-nvxL", "FORWARD", "1")
        return int(listed.split()[0])

    def run(self, *command: str) -> str:
        """Run a program there."""
        return self._network.run("nat", *command)


def disable_segmentation_offload(network: Sites, *machines: str) -> None:
    """Have the kernel cut what new connections send, as on a line, not the network's cards.

    Else one large packet goes through the networks here, and is lost or passed on as a whole.
    """
    for machine in machines:
        interface = "site" if machine.startswith("edge") else "lan"
        network.run(machine, "ip", "link", "set", interface, "gso_max_segs", "1")


def set_min_rto(network: Sites, milliseconds: int) -> None:
    """Have the kernels of both ends of new connections wait for that at least, not 200 ms."""
    least = ("rto_min", f"{milliseconds}ms")
    for family, lan, site in zip(("-4", "-6"), LAN["nat"], SITE["nat"], strict=True):
        network.run("cloud", "ip", family, "route", "add", lan, "dev", "lan", *least)
        network.run("edge-1", "ip", family, "route", "change", "default", "via", site, *least)
