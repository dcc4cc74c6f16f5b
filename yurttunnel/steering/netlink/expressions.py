"""Expressions of nftables rules in the kernel's format; all use one register."""

from __future__ import annotations

import struct

from yurttunnel.steering.netlink.messages import NESTED, attribute, number

# NFTA_* from linux/netfilter/nf_tables.h: of a list, an expression, and their attributes.
_ELEMENT, _NAME, _DATA = 1, 1, 2
_VALUE = 1
_LOAD_REGISTER, _LOAD_KEY, _STORE_REGISTER = 1, 2, 4
_BITWISE_FROM, _BITWISE_TO, _BITWISE_LENGTH, _BITWISE_MASK, _BITWISE_XOR = 1, 2, 3, 4, 5
_CMP_REGISTER, _CMP_HOW, _CMP_DATA = 1, 2, 3

_REGISTER = 8
"""``NFT_REG32_00``."""

_NOT_EQUAL = 1
"""``NFT_CMP_NEQ``."""

_ALL_BITS = 0xFFFFFFFF

CT_STATE, CT_STATUS, CT_MARK = 0, 2, 3
"""What :func:`ct` loads (``NFT_CT_*``), all of them numbers."""


def ct(key: int) -> bytes:
    """Return the expression that loads a number of the packet's connection."""
    return _ct_expression(_LOAD_REGISTER, key)


def ct_has(key: int, bits: int) -> bytes:
    """Return expressions that end the rule if a number of the connection has none of the bits."""
    none = attribute(_CMP_DATA | NESTED, attribute(_VALUE, _number(0)))
    how = attribute(_CMP_HOW, number(_NOT_EQUAL))
    compared = _expression("cmp", attribute(_CMP_REGISTER, number(_REGISTER)), how, none)
    return ct(key) + _bitwise(bits, 0) + compared


def add_to_ct(key: int, bits: int) -> bytes:
    """Return expressions that set bits in a number of the connection."""
    return ct(key) + _bitwise(_ALL_BITS ^ bits, bits) + _ct_expression(_STORE_REGISTER, key)


def _ct_expression(register: int, key: int) -> bytes:
    return _expression(
        "ct", attribute(register, number(_REGISTER)), attribute(_LOAD_KEY, number(key))
    )


def _bitwise(mask: int, xor: int) -> bytes:
    """Return the expression that keeps some bits of the register, and then flips some."""
    return _expression(
        "bitwise",
        attribute(_BITWISE_FROM, number(_REGISTER)),
        attribute(_BITWISE_TO, number(_REGISTER)),
        attribute(_BITWISE_LENGTH, number(len(_number(mask)))),
        attribute(_BITWISE_MASK | NESTED, attribute(_VALUE, _number(mask))),
        attribute(_BITWISE_XOR | NESTED, attribute(_VALUE, _number(xor))),
    )


def _number(of: int) -> bytes:
    """Return a number in the format of registers."""
    return struct.pack("=I", of)


def _expression(name: str, *content: bytes) -> bytes:
    return attribute(
        _ELEMENT | NESTED,
        attribute(_NAME, name.encode() + b"\0") + attribute(_DATA | NESTED, b"".join(content)),
    )
