"""Rules by which the kernel tells of connections that get no answer, or a refusal.

A refusal is dropped: to the client that is a packet that was lost, and TCP sends its first one
again after 1 s (RFC 6298). By then another endpoint gets it. That is so where the connection has
begun while there was a process that acts on it (:mod:`yurttunnel.proxy.kernel.attending`). What
this machine's own firewall refuses, before the packet has left, is told the client, and no endpoint
is to blame: the kernel does not know the connection by then (``confirmed``).

What an entry of an earlier connection leads to an endpoint (:mod:`.stale_entries`) is told as
:data:`STALE`, first packets as well as resets; an error says nothing of a connection that stands.
"""

from __future__ import annotations

from yurttunnel.proxy.kernel.marks import ATTENDED, RETRIED, has_mark
from yurttunnel.proxy.kernel.packets import NO_WAY, STALE, TOO_BIG
from yurttunnel.proxy.rules.nftables.parts import Part
from yurttunnel.proxy.rules.nftables.table import FAMILIES, chain

GROUP = 31088
"""Of the kernel's log of packets (nflog), in which this process finds them."""

COPIED = 128
"""Bytes of a packet that are told: two headers of IPv6, and the beginning of what they carry."""

_LOG = f"group {GROUP} snaplen {COPIED} queue-threshold 1"
"""Told at once: else the kernel gathers packets for a second."""

_STALE = "ct status & assured != 0"
"""Of a connection that is answered, which neither a first packet nor its refusal belongs to."""

_SAMPLES = "limit rate 5/second burst 5 packets"
"""Of the attempts at an endpoint, and of its refusals: one of them is enough to find out."""

_MOST = "limit rate 500/second burst 100 packets"
"""Of both: each one takes this process some ten microseconds, and as many for each portal by which
its connection is looked for."""

_SAMPLED, _REFUSING = "sampled", "refusing"
"""Sets of endpoints, each with its limit."""

PRIORITY = -10
"""Before the chains of a firewall, at 0, which may drop refusals. What was led elsewhere has the
endpoint's address by then, and answers have it still."""

WATCHED = (
    "tcp flags & (rst | ack) == ack ct state established accept",
    "meta l4proto udp accept",
    "ct direction reply jump watch-refused",
    "tcp flags & (syn | ack) == syn jump watch-tried",
)
"""The rules by which packets come to what looks for first ones and for refusals; nearly all others
leave by the first two, which is all that most packets of a machine have to do with this."""

_FORGET = "10s"
"""After which an endpoint that nobody speaks to is no longer in them."""

_UNREACHABLE = {
    4: f"icmp type destination-unreachable icmp code != {TOO_BIG}",
    6: "icmpv6 type destination-unreachable",
}

_HAS_LEFT, _HAS_NOT_LEFT = "ct status & confirmed != 0", "ct status & confirmed == 0"
"""Whether a connection's first packet has passed all chains of this machine."""


def watching_chains(version: int, all_are_attended: bool = False) -> Part:
    """Return the chains and sets for a version of IP.

    All connections are taken for marked ones where the kernel lets nothing mark them that ends with
    the process.
    """
    unattended = f"{_HAS_LEFT} ct mark & {ATTENDED:#x} == 0 accept"
    pass_some = () if all_are_attended else (unattended,)
    family = FAMILIES[version]
    address = "ipv4_addr" if version == 4 else "ipv6_addr"
    limited = (
        f"set {{ type {address} . inet_proto . inet_service; size 65535; flags dynamic,timeout;"
        f" timeout {_FORGET}; }}"
    )
    # A closed port answers the first packet by a reset with the number 0 (RFC 9293, 3.10.7.1); any
    # later one has another number, and belongs to a connection that the client knows.
    reset = f"tcp flags & (fin | syn | rst | ack) == rst | ack tcp sequence 0 {has_mark(RETRIED)}"
    unreachable = (
        f"{_UNREACHABLE[version]} ct state related {has_mark(RETRIED)} ct status & seen-reply == 0"
    )
    by = f"{family} saddr . meta l4proto . th sport"
    to = f"{family} daddr . meta l4proto . th dport"
    refused = chain(f"{reset} goto watch-reset", f"{unreachable} goto watch-unreachable")
    log, log_stale = f"{_MOST} log {_LOG}", f'{_STALE} {_MOST} log prefix "{STALE}" {_LOG}'
    tried = chain(
        f"ct state new {has_mark(RETRIED)} update @{_SAMPLED} {{ {to} {_SAMPLES} }} {log}",
        f"ct direction original {has_mark(RETRIED)} {log_stale}",
    )
    reset_by = chain(
        log_stale,
        f"{_HAS_NOT_LEFT} accept",
        f"ct status & assured == 0 update @{_REFUSING} {{ {by} {_SAMPLES} }} {log}",
        *pass_some,
        "drop",
    )
    other_code = "icmp code" if version == 4 else "icmpv6 code"
    other_code += f" != {{ {', '.join(map(str, NO_WAY[version]))} }}"
    # Where there is no way the rules choose anew for each packet, so that is dropped at any time.
    unreachable_by = chain(f"{_HAS_NOT_LEFT} {other_code} accept", log, *pass_some, "drop")
    # What is forwarded comes there by the chain for all that is.
    watched = {
        f"watch-{hook}": chain(*WATCHED, hook=f"type filter hook {hook} priority {PRIORITY};")
        for hook in ("input", "output")
    }
    chains = {
        **watched,
        "watch-refused": refused,
        "watch-reset": reset_by,
        "watch-unreachable": unreachable_by,
        "watch-tried": tried,
    }
    return Part(chains, {_SAMPLED: limited, _REFUSING: limited})
