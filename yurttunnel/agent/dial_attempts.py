"""Attempts to connect to an address: their order, and the reasons of failures."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from twisted.internet import error
from twisted.python.failure import Failure

from yurttunnel.http.authority import Address
from yurttunnel.tunnel.sockets import EXHAUSTED
from yurttunnel.wire.codes import Code

_BY_SPECIFICITY = (Code.OVERLOADED, Code.REFUSED, Code.UNREACHABLE, Code.TIMEOUT)


class AttemptFailure(NamedTuple):
    """Why connecting to ``address`` failed, as a code and a text."""

    address: Address
    code: Code
    text: str

    def rank(self) -> int:
        """Rank by how much the code tells: a response from the host ranks above silence."""
        return _BY_SPECIFICITY.index(self.code)


def interleave_families(addresses: Sequence[Address]) -> list[Address]:
    """Alternate address families, starting with that of the first address (RFC 8305 section 4)."""
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    return [
        address
        for pair in itertools.zip_longest(first, second)
        for address in pair
        if address is not None
    ]


def describe_failure(reason: BaseException, address: Address) -> AttemptFailure:
    """Return the code and the text for why connecting to ``address`` failed."""
    code, text = _classify(reason, address)
    return AttemptFailure(address, code, text)


def _classify(reason: BaseException, address: Address) -> tuple[Code, str]:
    """Return the code and the text for an error of the reactor or the kernel."""
    if isinstance(reason, error.ConnectionRefusedError):
        return Code.REFUSED, "connection refused"
    if isinstance(reason, error.TimeoutError | error.TCPTimedOutError):
        return Code.TIMEOUT, "no answer in time"
    if isinstance(reason, socket.gaierror):
        # The reactor calls the resolver for addresses with a zone id only.
        return Code.UNREACHABLE, "its zone id names no network interface there"
    number = getattr(reason, "osError", None) or getattr(reason, "errno", None)
    if number is None and isinstance(next(iter(reason.args), None), Failure):
        # Twisted's own transports do not read SO_ERROR, see ``tunnel.direct.connector``.
        return Code.UNREACHABLE, "the network reports that it is unreachable"
    if number is None:
        return Code.UNREACHABLE, str(reason)
    if number == errno.EADDRNOTAVAIL and address.version == 4:
        # Over IPv6 the same number means that the host has no source address.
        return Code.OVERLOADED, "every local port is in use"
    text = os.strerror(number).lower()
    return (Code.OVERLOADED if number in EXHAUSTED else Code.UNREACHABLE), text
