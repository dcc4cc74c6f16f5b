"""Steps of rules of nftables, as the kernel takes them: each works on one register."""

from __future__ import annotations

import struct

from yurttunnel.steering.netlink.messages import NESTED, attribute

# NFTA_* of linux/netfilter/nf_tables.h: of a list, an expression, and what each has.
_ELEMENT, _NAME, _DATA = 1, 1, 2
_VALUE, _VERDICT, _VERDICT_CODE = 1, 2, 1
_LOAD_REGISTER, _LOAD_KEY = 1, 2
_PAYLOAD_REGISTER, _PAYLOAD_BASE, _PAYLOAD_OFFSET, _PAYLOAD_LENGTH = 1, 2, 3, 4
_BITWISE_FROM, _BITWISE_TO, _BITWISE_LENGTH, _BITWISE_MASK, _BITWISE_XOR = 1, 2, 3, 4, 5
_CMP_REGISTER, _CMP_HOW, _CMP_DATA = 1, 2, 3
_IMMEDIATE_REGISTER, _IMMEDIATE_DATA = 1, 2

_VERDICTS, _REGISTER = 0, 8
"""``NFT_REG_VERDICT`` and ``NFT_REG32_00``."""

_EQUAL, _NOT_EQUAL, _DROP, _ACCEPT, _TRANSPORT = 0, 1, 0, 1, 2
"""``NFT_CMP_EQ`` and ``_NEQ``, ``NF_DROP`` and ``_ACCEPT``, ``NFT_PAYLOAD_TRANSPORT_HEADER``."""

CT_STATE, CT_DIRECTION, CT_STATUS, CT_MARK = 0, 1, 2, 3
"""What :func:`ct` loads (``NFT_CT_*``); the direction is one byte, the others are numbers."""

META_L4PROTO = 16
"""What :func:`meta` loads (``NFT_META_L4PROTO``), one byte."""


def ct(key: int) -> bytes:
    """Return what loads something of the packet's connection."""
    return _expression(
        "ct", attribute(_LOAD_REGISTER, number(_REGISTER)), attribute(_LOAD_KEY, number(key))
    )


def meta(key: int) -> bytes:
    """Return what loads something of the packet beside its bytes."""
    return _expression(
        "meta", attribute(_LOAD_REGISTER, number(_REGISTER)), attribute(_LOAD_KEY, number(key))
    )


def transport(offset: int, length: int) -> bytes:
    """Return what loads bytes of the header behind that of IP."""
    return _expression(
        "payload",
        attribute(_PAYLOAD_REGISTER, number(_REGISTER)),
        attribute(_PAYLOAD_BASE, number(_TRANSPORT)),
        attribute(_PAYLOAD_OFFSET, number(offset)),
        attribute(_PAYLOAD_LENGTH, number(length)),
    )


def masked(mask: bytes) -> bytes:
    """Return what keeps some bits of what is loaded."""
    return _expression(
        "bitwise",
        attribute(_BITWISE_FROM, number(_REGISTER)),
        attribute(_BITWISE_TO, number(_REGISTER)),
        attribute(_BITWISE_LENGTH, number(len(mask))),
        attribute(_BITWISE_MASK | NESTED, attribute(_VALUE, mask)),
        attribute(_BITWISE_XOR | NESTED, attribute(_VALUE, bytes(len(mask)))),
    )


def equals(data: bytes) -> bytes:
    """Return what ends the rule unless this is loaded."""
    return _compare(_EQUAL, data)


def differs(data: bytes) -> bytes:
    """Return what ends the rule if this is loaded."""
    return _compare(_NOT_EQUAL, data)


def drop() -> bytes:
    """Return what drops the packet."""
    return _verdict(_DROP)


def accept() -> bytes:
    """Return what ends the chain for the packet, which goes on to others."""
    return _verdict(_ACCEPT)


def _verdict(code: int) -> bytes:
    verdict = attribute(_VERDICT | NESTED, attribute(_VERDICT_CODE, number(code)))
    return _expression(
        "immediate",
        attribute(_IMMEDIATE_REGISTER, number(_VERDICTS)),
        attribute(_IMMEDIATE_DATA | NESTED, verdict),
    )


def number(of: int) -> bytes:
    """Return a number as attributes have it."""
    return struct.pack("!I", of)


def _compare(how: int, data: bytes) -> bytes:
    return _expression(
        "cmp",
        attribute(_CMP_REGISTER, number(_REGISTER)),
        attribute(_CMP_HOW, number(how)),
        attribute(_CMP_DATA | NESTED, attribute(_VALUE, data)),
    )


def _expression(name: str, *content: bytes) -> bytes:
    return attribute(
        _ELEMENT | NESTED,
        attribute(_NAME, name.encode() + b"\0") + attribute(_DATA | NESTED, b"".join(content)),
    )
