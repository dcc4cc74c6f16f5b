"""The interface at whose address pods reach the hub, made and kept as it is to be.

A *dummy* interface where the kernel has them, else a TAP device: nothing is ever sent to it, it
only has an address that belongs to this node. Pods' default routes lead to their node, which takes
what is for one of its addresses, so no rule and no translation is needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from yurttunnel.hub.network.links import Link, Links, add_tap
from yurttunnel.hub.settings import InterfaceSettings
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.ops.waiting import ended_within
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.conversation import KernelRefused
from yurttunnel.steering.netlink.worker import Run

INTERVAL = 15.0
"""Seconds between two looks at the interface: what somebody has disturbed is repaired then."""

REMOVAL_SECONDS = 5.0
"""How long the end waits for the interface to be removed."""

ALIAS = "yurttunnel"
"""What marks an interface that a hub has made: it may be removed, also by a later process."""

_KINDS = ("dummy", "tun")

_ADVICE = {
    errno.EPERM: "the process needs the capability NET_ADMIN",
    errno.EACCES: "the process needs the capability NET_ADMIN, and to open /dev/net/tun",
    errno.ENOENT: "this kernel has no dummy interfaces (modprobe dummy), and there is no"
    " /dev/net/tun (modprobe tun; in a container: mount it)",
}

log = Logger()


class NodeInterface(Reconciler):
    """Has the interface there while it runs, and removes it in the end if a hub has made it.

    ``run`` is where the kernel is waited for. What cannot be had is told once, and tried again:
    without it pods in networks of their own do not reach the hub, and everybody else does.
    """

    def __init__(self, clock: IReactorTime, settings: InterfaceSettings, run: Run) -> None:
        super().__init__(clock, INTERVAL, f"having the interface {settings.name}", self._look)
        self._clock = clock
        self._settings = settings
        self._in_thread = run
        self._problem: str | None = "nobody has looked yet"
        self.on_ready: list[Callable[[], object]] = []
        """Who is told each time that the address has come."""
        self.on_refused: list[Callable[[], object]] = []
        """Who is told when it cannot be had, each time that this has another reason."""

    def problem(self) -> str | None:
        """Return why pods cannot find the hub at the address, if they cannot."""
        return self._problem

    def stopService(self) -> Deferred[bool]:
        """Remove the interface."""
        return Deferred.fromCoroutine(self._stop(super().stopService()))

    async def _stop(self, stopped: Deferred[bool]) -> bool:
        ended = await stopped
        removal = self._in_thread(partial(remove, self._settings))
        _ = removal.addErrback(lambda failure: log.warn("{error}", error=failure.value))
        return await ended_within(self._clock, REMOVAL_SECONDS, removal) and ended

    async def _look(self) -> None:
        settings = self._settings
        try:
            changes = await self._in_thread(partial(ensure, settings))
        except SteeringFailed as error:
            if self._problem != str(error):
                self._problem = str(error)
                log.warn(
                    "{error}; pods with their own network cannot reach the hub at {address}"
                    " until then",
                    error=error,
                    address=settings.address,
                )
                for callback in self.on_refused:
                    callback()
            return
        if changes:
            log.info("{name}: {changes}", name=settings.name, changes=", ".join(changes))
        was_there, self._problem = self._problem is None, None
        if not was_there or changes:
            for callback in self.on_ready:
                callback()


def ensure(settings: InterfaceSettings) -> list[str]:
    """Have the interface as it is to be; return what was done. Raises :class:`SteeringFailed`."""
    try:
        with Links.opened() as links:
            return _ensured(links, settings)
    except (KernelRefused, OSError) as error:
        raise _failed(settings, error) from None


def remove(settings: InterfaceSettings) -> None:
    """Remove the interface if a hub has made it. Raises :class:`SteeringFailed`."""
    try:
        with Links.opened() as links:
            link = links.find(settings.name)
            if link is not None and link.alias == ALIAS:
                links.remove(link)
    except (KernelRefused, OSError) as error:
        raise SteeringFailed(
            f"the interface {settings.name} cannot be removed ({_reason(error)}): ip link delete"
            f" {settings.name}"
        ) from None


def _ensured(links: Links, settings: InterfaceSettings) -> list[str]:
    done = []
    link = links.find(settings.name)
    if link is None:
        kind = _create(links, settings.name)
        link = _created(links, settings.name)
        links.mark(link, ALIAS)
        done.append(f"made, as a {kind}")
    elif link.kind not in _KINDS:
        raise SteeringFailed(
            f"{settings.name} is an interface of kind {link.kind or 'hardware'}, which belongs to"
            " another program: give another --dummy-if-name"
        )
    done += _address(links, link, settings)
    if not link.up:
        links.set_up(link)
        done.append("set up")
    return done


def _create(links: Links, name: str) -> str:
    try:
        links.add_dummy(name)
        return "dummy"
    except KernelRefused as error:
        if error.code != errno.EOPNOTSUPP:
            raise
    add_tap(name)
    return "TAP device"


def _created(links: Links, name: str) -> Link:
    link = links.find(name)
    if link is None:
        raise SteeringFailed(f"somebody has removed the interface {name} as soon as it was created")
    return link


def _address(links: Links, link: Link, settings: InterfaceSettings) -> list[str]:
    """Have the one address, and no other of its family but link-local ones of IPv6."""
    address = settings.address
    desired = (address, address.max_prefixlen)
    there = links.addresses(link, address.version)
    done = []
    for other, length in there - {desired}:
        if address.version == 4 or not other.is_link_local:
            links.remove_address(link, other, length)
            done.append(f"{other}/{length} removed")
    if desired not in there:
        links.add_address(link, *desired)
        done.append(f"{address} added")
    return done


def _failed(settings: InterfaceSettings, error: KernelRefused | OSError) -> SteeringFailed:
    advice = _advice(settings, error)
    return SteeringFailed(
        f"the interface {settings.name} with {settings.address} cannot be had"
        f" ({_reason(error)}){f': {advice}' if advice else ''}"
    )


def _advice(settings: InterfaceSettings, error: KernelRefused | OSError) -> str:
    if isinstance(error, KernelRefused) and error.code == errno.EACCES:
        # Netlink says so of addresses alone; what a process may not do is EPERM there.
        return f"IPv6 is off there: sysctl net.ipv6.conf.{settings.name}.disable_ipv6=0"
    return _ADVICE.get(_number(error), "")


def _number(error: KernelRefused | OSError) -> int:
    return error.code if isinstance(error, KernelRefused) else error.errno or 0


def _reason(error: KernelRefused | OSError) -> str:
    return os.strerror(_number(error)).lower()
