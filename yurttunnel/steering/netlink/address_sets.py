"""Managing the sets of addresses that firewall rules refer to."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from zope.interface import implementer

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Address
from yurttunnel.steering.interfaces import IAddressSets
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.ipsets import (
    ERR_BUSY,
    ERR_FIND_TYPE,
    ERR_REFERENCED,
    ERR_TYPE_MISMATCH,
    ERR_TYPE_SPECIFIC,
    MAX_ADDRESSES,
    Ipsets,
)
from yurttunnel.steering.netlink.netlink_socket import (
    NETLINK_NETFILTER,
    NetlinkError,
    NetlinkSocket,
)
from yurttunnel.steering.netlink.worker import Run

NEW_SUFFIX = "-new"
"""The suffix of a set that is created to replace another."""

_TRIES = 10
_PAUSE = 0.1
"""How often the removal of a set that rules refer to is tried, and the interval in seconds.

The kernel releases nftables rules a moment after it has reported their removal.
"""

_NO_IPSET = (
    "this kernel has no sets of addresses (modules ip_set, ip_set_hash_ip); load them, or use "
    "--intercept-match cloud-return"
)
_STILL_REFERENCED = "rules still refer to it; remove those rules (iptables-save shows them)"
_ERROR_TEXTS = {
    errno.EINVAL: _NO_IPSET,
    ERR_FIND_TYPE: _NO_IPSET,
    ERR_BUSY: _STILL_REFERENCED,
    ERR_REFERENCED: _STILL_REFERENCED,
    ERR_TYPE_MISMATCH: "a set of that name and of another type exists",
    ERR_TYPE_SPECIFIC: f"it is full: its limit is {MAX_ADDRESSES} addresses",
    ERR_TYPE_SPECIFIC + 1: "it does not accept one of the addresses, such as 0.0.0.0",
}

_Result = TypeVar("_Result")


class _InUse(SteeringFailed):
    """Rules refer to the set."""


@implementer(IAddressSets)
class AddressSets:
    """The sets of the network namespace, read again for each change.

    Nothing is cached: reading a set of 5,000 addresses takes some milliseconds, so changes by other
    programs do not matter. ``run`` runs blocking calls to the kernel.
    """

    def __init__(self, run: Run, clock: IReactorTime) -> None:
        self._run = run
        self._clock = clock

    def supported(self) -> Deferred[bool]:
        return self._run(partial(_with_table, "cannot query the kernel for its sets", _supported))

    def put(self, name: str, version: int, addresses: Collection[Address]) -> Deferred[bool]:
        """See :class:`IAddressSets`; ``version`` is 4 or 6, and that of all ``addresses``."""
        desired = frozenset(address.packed for address in addresses)
        job = partial(_put, name=name, version=version, desired=desired)
        return self._run(partial(_with_table, f"cannot change the set {name}", job))

    def remove(self, name: str) -> Deferred[bool]:
        return Deferred.fromCoroutine(self._remove(name))

    async def _remove(self, name: str) -> bool:
        job = partial(_with_table, f"cannot remove the set {name}", partial(_remove, name=name))
        for _ in range(_TRIES - 1):
            try:
                return await self._run(job)
            except _InUse:
                await deferLater(self._clock, _PAUSE)
        return await self._run(job)


def _with_table(what: str, job: Callable[[Ipsets], _Result]) -> _Result:
    with as_steering_failed(what, _ERROR_TEXTS), NetlinkSocket(NETLINK_NETFILTER) as netlink:
        return job(Ipsets(netlink))


def _supported(table: Ipsets) -> bool:
    return table.has_type() and table.has_match()


def _put(table: Ipsets, name: str, version: int, desired: frozenset[bytes]) -> bool:
    left_over = table.destroy(name + NEW_SUFFIX)
    content = table.read(name, version)
    if content is None:
        table.create(name, version)
        table.add(name, version, desired)
        return True
    if not content.fits:
        _replace(table, name, version, desired)
        return True
    # Add new addresses first, so that at no time fewer are in the set than before and after.
    table.add(name, version, desired - content.addresses)
    table.delete(name, version, content.addresses - desired)
    return left_over or desired != content.addresses


def _replace(table: Ipsets, name: str, version: int, desired: frozenset[bytes]) -> None:
    """Replace a set that another program created with other parameters."""
    table.create(name + NEW_SUFFIX, version)
    table.add(name + NEW_SUFFIX, version, desired)
    try:
        table.swap(name + NEW_SUFFIX, name)
    except NetlinkError as error:
        if error.code != ERR_TYPE_MISMATCH:
            raise
        # No rule of ours can refer to a set of another type or family.
        table.destroy(name)
        table.create(name, version)
        table.add(name, version, desired)
    table.destroy(name + NEW_SUFFIX)


def _remove(table: Ipsets, name: str) -> bool:
    table.destroy(name + NEW_SUFFIX)
    try:
        return table.destroy(name)
    except NetlinkError as error:
        if error.code not in (ERR_BUSY, ERR_REFERENCED):
            raise
        raise _InUse(f"cannot remove the set {name}: {_STILL_REFERENCED}") from error
