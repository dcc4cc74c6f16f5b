"""The end of refusals that no client is to see, as long as there is a process that acts on them.

They are those that :mod:`yurttunnel.proxy.kernel.watching` tells of. What drops them is in a table
that ends with the process, even when it is killed: who then speaks to an endpoint that refuses is
told so, and need not wait in vain.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

from yurttunnel.proxy.kernel.marks import RETRIED
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink import expressions as nft
from yurttunnel.steering.netlink.own_table import FORWARD, INPUT, OUTPUT, OwnChain, OwnTable
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurtproxy-"
"""What the table's name begins with."""

WATCHING_PRIORITY = -10
"""Of the chains that tell of them: before those of a firewall, at 0, which may drop them, and
before addresses are translated back, at 100."""

PRIORITY = WATCHING_PRIORITY + 1
"""Just behind those."""

_RELATED = 1 << 2
"""Of the states of connections, those of errors (``NF_CT_STATE_BIT(IP_CT_RELATED)``)."""

_SEEN_REPLY, _DST_NAT = 1 << 1, 1 << 5
"""``IPS_*`` of linux/netfilter/nf_conntrack_common.h."""

_REPLY = 1
"""``IP_CT_DIR_REPLY``."""

_NUMBER_AT, _FLAGS_AT = 4, 13
_FLAGS, _RESET = 0x17, 0x14
"""Of the header of TCP (RFC 9293, 3.1): FIN, SYN, RST and ACK, and of these RST and ACK."""

_UNREACHABLE = {socket.IPPROTO_ICMP: 3, socket.IPPROTO_ICMPV6: 1}
"""The type of such an error (RFC 792, RFC 4443)."""

TOO_BIG = 4
"""The code of ICMP by which a destination is unreachable only to a packet of that size, which its
sender has to hear of (RFC 1191). In ICMPv6 that is a type of its own."""


def dropped_refusals(run: Run, refused: Callable[[SteeringFailed], object]) -> OwnTable:
    """Return what drops them while it runs; see :class:`OwnTable`."""
    # Nearly all packets leave at one of the first two.
    rules = (
        *(_not_retried(), _not_answering()),
        *(_resets(), *(_unreachable(protocol) for protocol in _UNREACHABLE)),
    )
    hooks = (("forward", FORWARD), ("input", INPUT), ("output", OUTPUT))
    chains = [OwnChain(name, "filter", hook, PRIORITY, rules) for name, hook in hooks]
    return OwnTable(run, TABLE, chains, "cannot keep refusals from clients", refused)


def _not_retried() -> bytes:
    """Return the rule by which packets leave for whose connections there is no other endpoint."""
    mark = nft.ct(nft.CT_MARK), nft.masked(_bits(RETRIED)), nft.equals(_bits(0))
    return b"".join((*mark, nft.accept()))


def _not_answering() -> bytes:
    """Return the rule by which clients' packets leave."""
    return nft.ct(nft.CT_DIRECTION) + nft.differs(bytes([_REPLY])) + nft.accept()


def _resets() -> bytes:
    return b"".join(
        (
            _carrying(socket.IPPROTO_TCP),
            _led(),
            *(nft.transport(_FLAGS_AT, 1), nft.masked(bytes([_FLAGS]))),
            nft.equals(bytes([_RESET])),
            *(nft.transport(_NUMBER_AT, 4), nft.equals(bytes(4))),
            nft.drop(),
        )
    )


def _unreachable(protocol: int) -> bytes:
    not_too_big = (nft.transport(1, 1), nft.differs(bytes([TOO_BIG])))
    return b"".join(
        (
            _carrying(protocol),
            *(nft.ct(nft.CT_STATE), nft.masked(_bits(_RELATED)), nft.differs(_bits(0))),
            _led(without=_SEEN_REPLY),
            *(nft.transport(0, 1), nft.equals(bytes([_UNREACHABLE[protocol]]))),
            *(not_too_big if protocol == socket.IPPROTO_ICMP else ()),
            nft.drop(),
        )
    )


def _carrying(protocol: int) -> bytes:
    return nft.meta(nft.META_L4PROTO) + nft.equals(bytes([protocol]))


def _led(without: int = 0) -> bytes:
    """Return the match for connections that are led elsewhere, as others' marks are not known.

    ``without`` are bits of the status that they must not have.
    """
    bits = nft.masked(_bits(without | _DST_NAT)), nft.equals(_bits(_DST_NAT))
    return nft.ct(nft.CT_STATUS) + b"".join(bits)


def _bits(of: int) -> bytes:
    """Return a number as registers have it."""
    return struct.pack("=I", of)
