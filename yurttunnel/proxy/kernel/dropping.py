"""The end of refusals that no client is to see, as long as there is a process that acts on them.

The rules mark such a packet. What drops it is in a table that ends with the process, even when it
is killed: who then speaks to an endpoint that refuses is told so, and need not wait in vain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from yurttunnel.proxy.kernel.marks import REFUSAL
from yurttunnel.steering.interfaces import SteeringFailed
from yurttunnel.steering.netlink.messages import NESTED, attribute
from yurttunnel.steering.netlink.own_table import (
    OUTPUT,
    PREROUTING,
    OwnChain,
    OwnTable,
    expression,
    number,
)
from yurttunnel.steering.netlink.worker import Run

TABLE = "yurtproxy-"
"""What the table's name begins with."""

PRIORITY = -149
"""Just behind the chains that mark, and before those that take the mark away."""

# Of linux/netfilter/nf_tables.h: NFTA_META_*, _BITWISE_*, _CMP_*, _IMMEDIATE_*, _DATA_*.
_META_REGISTER, _META_KEY = 1, 2
_BITWISE_FROM, _BITWISE_TO, _BITWISE_LENGTH, _BITWISE_MASK, _BITWISE_XOR = 1, 2, 3, 4, 5
_CMP_REGISTER, _CMP_HOW, _CMP_DATA = 1, 2, 3
_IMMEDIATE_REGISTER, _IMMEDIATE_DATA = 1, 2
_VALUE, _VERDICT, _VERDICT_CODE = 1, 2, 1

_MARK, _NOT_EQUAL, _DROP = 3, 1, 0
"""``NFT_META_MARK``, ``NFT_CMP_NEQ`` and ``NF_DROP``."""

_VERDICTS, _FIRST = 0, 8
"""Registers: ``NFT_REG_VERDICT`` and ``NFT_REG32_00``."""


def dropped_refusals(run: Run, refused: Callable[[SteeringFailed], object]) -> OwnTable:
    """Return what drops them while it runs; see :class:`OwnTable`."""
    hooks = (("prerouting", PREROUTING), ("output", OUTPUT))
    chains = [OwnChain(name, "filter", hook, PRIORITY, _drop_marked()) for name, hook in hooks]
    return OwnTable(run, TABLE, chains, "cannot keep refusals from clients", refused)


def _drop_marked() -> tuple[bytes, ...]:
    """Return ``meta mark & REFUSAL != 0 drop``."""
    register = number(_FIRST)
    nothing, bit = (struct.pack("=I", each) for each in (0, REFUSAL))
    drop = attribute(_VERDICT | NESTED, attribute(_VERDICT_CODE, number(_DROP)))
    return (
        expression(
            "meta", attribute(_META_REGISTER, register), attribute(_META_KEY, number(_MARK))
        ),
        expression(
            "bitwise",
            attribute(_BITWISE_FROM, register),
            attribute(_BITWISE_TO, register),
            attribute(_BITWISE_LENGTH, number(len(bit))),
            attribute(_BITWISE_MASK | NESTED, attribute(_VALUE, bit)),
            attribute(_BITWISE_XOR | NESTED, attribute(_VALUE, nothing)),
        ),
        expression(
            "cmp",
            attribute(_CMP_REGISTER, register),
            attribute(_CMP_HOW, number(_NOT_EQUAL)),
            attribute(_CMP_DATA | NESTED, attribute(_VALUE, nothing)),
        ),
        expression(
            "immediate",
            attribute(_IMMEDIATE_REGISTER, number(_VERDICTS)),
            attribute(_IMMEDIATE_DATA | NESTED, drop),
        ),
    )
