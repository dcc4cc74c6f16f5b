"""The faults of the NAT between the cloud and the site."""

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
"""The ICMP messages that report to the sender that a packet was too large."""

_UNKNOWN = ("-p", "tcp", "-m", "conntrack", "--ctstate", "INVALID")

_FULL = 1500
"""The MTU in bytes of both of its networks."""

_BURST, _QUEUE = "16kb", "64kb"
"""The burst that a slow link accepts at once, and the queue before it."""

_MERGED = ("-m", "length", "--length", f"{_FULL + 1}:65535")


class Gateway:
    """The NAT of a network; its rules are for IP version ``version``."""

    def __init__(self, network: Sites, version: int) -> None:
        self._network = network
        self._version = version
        self._firewall = FIREWALLS[version]

    def add(self, *rule: str, chain: str = "FORWARD") -> None:
        """Insert a rule before all others, by default for forwarded packets."""
        self.run(self._firewall, "-I", chain, *rule)

    def remove(self, *rule: str, chain: str = "FORWARD") -> None:
        """Delete such a rule."""
        self.run(self._firewall, "-D", chain, *rule)

    @contextmanager
    def with_rules(self, *rules: tuple[str, ...], chain: str = "FORWARD") -> Iterator[None]:
        """Insert rules during a ``with`` block."""
        for rule in rules:
            self.add(*rule, chain=chain)
        yield
        for rule in rules:
            self.remove(*rule, chain=chain)

    def packet_count(self, chain: str = "FORWARD") -> int:
        """Return the number of packets that matched the rule added last."""
        return int(self.run(self._firewall, "-nvxL", chain, "1").split()[0])

    def packet_loss(self, probability: float):
        """Drop packets at random, in both directions, during a ``with`` block."""
        lost = ("-m", "statistic", "--mode", "random", "--probability", f"{probability}")
        return self.with_rules(
            *(("-p", "tcp", way, "lan", *lost, "-j", "DROP") for way in ("-i", "-o"))
        )

    @contextmanager
    def drop_larger_than(self, size: int) -> Iterator[None]:
        """Drop larger packets without reporting it, during a ``with`` block."""
        with self.with_rules((*_TOO_LARGE[self._version], "-j", "DROP"), chain="OUTPUT"):
            self.run("ip", "link", "set", "lan", "mtu", str(size))
            yield
            self.run("ip", "link", "set", "lan", "mtu", str(_FULL))

    @contextmanager
    def connections_flushed(self) -> Iterator[None]:
        """Flush all connections; during the ``with`` block only senders in the site get a reset.

        Like a real NAT, it does not pick up established connections.
        """
        with self._network.inside("nat"):
            Path("/proc/sys/net/netfilter/nf_conntrack_tcp_loose").write_text("0")
        reset = ("-i", "site", *_UNKNOWN, *RESET)
        quiet = ("-i", "lan", "-p", "tcp", "-j", "DROP")
        with (
            self.with_rules((*_UNKNOWN, "-j", "DROP"), reset),
            self.with_rules(quiet, chain="INPUT"),
        ):
            self.run("conntrack", "-f", f"ipv{self._version}", "-F")
            yield

    def drop_outgoing(self, port: int) -> None:
        """Drop the site's packets of the connection that has that port in the cloud."""
        connection = ("-p", "tcp", "--sport", str(port))
        self.run(self._firewall, "-t", "mangle", "-A", "POSTROUTING", *connection, "-j", "DROP")

    @contextmanager
    def rate_limit(self, rate: str) -> Iterator[None]:
        """Limit the rate in each direction, in bits per second, during a ``with`` block.

        Excess packets are queued, and dropped when `_QUEUE` is full.
        """
        for interface in ("lan", "site"):
            limit = ("rate", rate, "burst", _BURST, "limit", _QUEUE)
            self.run("tc", "qdisc", "add", "dev", interface, "root", "tbf", *limit)
        yield
        for interface in ("lan", "site"):
            self.run("tc", "qdisc", "del", "dev", interface, "root")

    def queued_packets(self) -> int:
        """Return the number of packets to the cloud that were queued by a slow link."""
        shown = self.run("tc", "-s", "qdisc", "show", "dev", "lan")
        return int(shown.partition("overlimits ")[2].split()[0])

    def count_merged(self) -> None:
        """Start counting packets that contain several segments of a real network."""
        self.run(self._firewall, "-t", "mangle", "-A", "FORWARD", *_MERGED)

    def merged(self) -> int:
        """Return the number of these packets."""
        listed = self.run(self._firewall, "-t", "mangle", "-nvxL", "FORWARD", "1")
        return int(listed.split()[0])

    def run(self, *command: str) -> str:
        """Run a program on the NAT."""
        return self._network.run("nat", *command)


def disable_segmentation_offload(network: Sites, *machines: str) -> None:
    """Let the kernel segment the data of new connections, instead of the network interfaces.

    Otherwise one large packet crosses the networks here, and is dropped or forwarded as a whole.
    """
    for machine in machines:
        interface = "site" if machine.startswith("edge") else "lan"
        network.run(machine, "ip", "link", "set", interface, "gso_max_segs", "1")


def set_min_rto(network: Sites, milliseconds: int) -> None:
    """Set the minimum retransmission timeout of both ends of new connections, instead of 200 ms."""
    least = ("rto_min", f"{milliseconds}ms")
    for family, lan, site in zip(("-4", "-6"), LAN["nat"], SITE["nat"], strict=True):
        network.run("cloud", "ip", family, "route", "add", lan, "dev", "lan", *least)
        network.run("edge-1", "ip", family, "route", "change", "default", "via", site, *least)
