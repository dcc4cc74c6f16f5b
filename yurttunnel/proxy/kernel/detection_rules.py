"""Rules by which the kernel logs connections that get no answer, or a refusal.

A refusal is dropped: to the client it looks like a lost packet, and TCP retransmits its first
packet after 1 s (RFC 6298). By then the packet is sent to another endpoint. Refusals are only
dropped for connections that began while a process ran that acts on them
(:mod:`yurttunnel.proxy.kernel.marks`). Refusals by this machine's own firewall, before the
packet has left, reach the client and do not count against the endpoint: the connection is not
``confirmed`` by then.

Packets that an entry of an earlier connection leads to an endpoint (:mod:`.stale_entries`) are
logged as :data:`STALE`, first packets as well as resets; an ICMP error says nothing about an
established connection.
"""

from __future__ import annotations

from yurttunnel.proxy.kernel.marks import RETRIED, SUPERVISED, has_mark
from yurttunnel.proxy.kernel.packets import NO_ROUTE_CODES, STALE, TOO_BIG
from yurttunnel.proxy.rules.nftables.parts import Part
from yurttunnel.proxy.rules.nftables.table import FAMILIES, chain

LOG_GROUP = 31088
"""The group of the packet log (nflog) that this process reads."""

SNAPLEN = 128
"""The number of bytes logged of a packet: two IPv6 headers, and the beginning of their payload."""

_LOG = f"group {LOG_GROUP} snaplen {SNAPLEN} queue-threshold 1"
"""Logged at once: otherwise the kernel collects packets for a second."""

_STALE = "ct status & assured != 0"
"""Matches answered connections, to which neither a first packet nor its refusal belongs."""

_ENDPOINT_LIMIT = "limit rate 5/second burst 5 packets"
"""The limit for the attempts at one endpoint, and for its refusals: one is enough for detection."""

_TOTAL_LIMIT = "limit rate 500/second burst 100 packets"
"""The limit for all of them: each takes this process some ten microseconds, and as many for each
portal by which its connection is searched."""

_ATTEMPTED, _REFUSING = "sampled", "refusing"
"""Sets of endpoints, each with its limit."""

PRIORITY = -10
"""Before the chains of a firewall, at 0, which may drop refusals. The destination has been replaced
by the endpoint's address by then, and the source of replies has not been restored."""

DETECTION_RULES = (
    "tcp flags & (rst | ack) == ack ct state established accept",
    "meta l4proto udp accept",
    "ct direction reply jump watch-refused",
    "tcp flags & (syn | ack) == syn jump watch-tried",
)
"""The rules that select first packets and refusals. Nearly all other packets leave the chain at the
first two rules, so that most packets of a machine pass no more than these."""

_SET_TIMEOUT = "10s"
"""How long an unused endpoint stays in the sets."""

_UNREACHABLE = {
    4: f"icmp type destination-unreachable icmp code != {TOO_BIG}",
    6: "icmpv6 type destination-unreachable",
}

_HAS_LEFT, _HAS_NOT_LEFT = "ct status & confirmed != 0", "ct status & confirmed == 0"
"""Whether a connection's first packet has passed all chains of this machine."""


def detection_chains(version: int, all_are_supervised: bool = False) -> Part:
    """Return the chains and sets for a version of IP.

    ``all_are_supervised`` treats all connections as marked; it is for kernels without a table that
    ends with the process.
    """
    unsupervised = f"{_HAS_LEFT} ct mark & {SUPERVISED:#x} == 0 accept"
    pass_unsupervised = () if all_are_supervised else (unsupervised,)
    family = FAMILIES[version]
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    limited = (
        f"set {{ type {address} . inet_proto . inet_service; size 65535; flags dynamic,timeout;"
        f" timeout {_SET_TIMEOUT}; }}"
    )
    # A closed port answers the first packet by a reset with the sequence number 0 (RFC 9293,
    # 3.10.7.1); a later reset has another number, and belongs to a connection that the client has
    # established.
    reset = f"tcp flags & (fin | syn | rst | ack) == rst | ack tcp sequence 0 {has_mark(RETRIED)}"
    unreachable = (
        f"{_UNREACHABLE[version]} ct state related {has_mark(RETRIED)} ct status & seen-reply == 0"
    )
    by = f"{family} saddr . meta l4proto . th sport"
    to = f"{family} daddr . meta l4proto . th dport"
    refused = chain(f"{reset} goto watch-reset", f"{unreachable} goto watch-unreachable")
    log, log_stale = (
        f"{_TOTAL_LIMIT} log {_LOG}",
        f'{_STALE} {_TOTAL_LIMIT} log prefix "{STALE}" {_LOG}',
    )
    attempted = chain(
        f"ct state new {has_mark(RETRIED)} update @{_ATTEMPTED} {{ {to} {_ENDPOINT_LIMIT} }} {log}",
        f"ct direction original {has_mark(RETRIED)} {log_stale}",
    )
    reset_by = chain(
        log_stale,
        f"{_HAS_NOT_LEFT} accept",
        f"ct status & assured == 0 update @{_REFUSING} {{ {by} {_ENDPOINT_LIMIT} }} {log}",
        *pass_unsupervised,
        "drop",
    )
    other_code = "icmp code" if version == 4 else "icmpv6 code"
    other_code += f" != {{ {', '.join(map(str, NO_ROUTE_CODES[version]))} }}"
    # Without a route the rules select an endpoint for each packet, so the error is always dropped.
    unreachable_by = chain(f"{_HAS_NOT_LEFT} {other_code} accept", log, *pass_unsupervised, "drop")
    # Forwarded packets get there from the chain for forwarding.
    hooks = {
        f"watch-{hook}": chain(
            *DETECTION_RULES, hook=f"type filter hook {hook} priority {PRIORITY};"
        )
        for hook in ("input", "output")
    }
    chains = {
        **hooks,
        "watch-refused": refused,
        "watch-reset": reset_by,
        "watch-unreachable": unreachable_by,
        "watch-tried": attempted,
    }
    return Part(chains, {_ATTEMPTED: limited, _REFUSING: limited})
