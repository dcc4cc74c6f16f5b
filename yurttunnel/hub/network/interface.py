"""The interface with the address at which pods reach the hub; it is created and maintained.

It is a *dummy* interface if the kernel supports them, else a TAP device: nothing is sent to it, it
only holds an address of this node. The default route of pods leads to their node, which accepts
packets for each of its addresses, so no firewall rule and no NAT is needed.
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
from yurttunnel.ops.timeouts import fired_within
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.netlink_socket import NetlinkError
from yurttunnel.steering.netlink.worker import Run

INTERVAL = 15.0
"""The interval in seconds of checks, which repair the interface."""

REMOVAL_SECONDS = 5.0
"""How long shutdown waits for the removal of the interface."""

ALIAS = "yurttunnel"
"""Marks an interface that a hub has created, and that it, or a later process, may remove."""

_KINDS = ("dummy", "tun")

_ADVICE = {
    errno.EPERM: "the process needs the capability NET_ADMIN",
    errno.EACCES: "the process needs the capability NET_ADMIN, and to open /dev/net/tun",
    errno.ENOENT: "this kernel has no dummy interfaces (modprobe dummy), and there is no"
    " /dev/net/tun (modprobe tun; in a container: mount it)",
}

log = Logger()


class NodeInterface(Reconciler):
    """Maintains the interface while it runs, and finally removes it if a hub has created it.

    ``run`` runs a function in a thread that waits for the kernel. A failure is logged once, and
    retried: only pods in networks of their own need the interface.
    """

    def __init__(self, clock: IReactorTime, settings: InterfaceSettings, run: Run) -> None:
        super().__init__(clock, INTERVAL, f"maintaining the interface {settings.name}", self._check)
        self._clock = clock
        self._settings = settings
        self._in_thread = run
        self._problem: str | None = "not checked yet"
        self.on_ready: list[Callable[[], object]] = []
        """Callbacks for each time that the address becomes available."""
        self.on_refused: list[Callable[[], object]] = []
        """Callbacks for each new reason why it is not available."""

    def problem(self) -> str | None:
        """Return why pods cannot reach the hub at the address, ``None`` if they can."""
        return self._problem

    def stopService(self) -> Deferred[bool]:
        return Deferred.fromCoroutine(self._stop(super().stopService()))

    async def _stop(self, stopped: Deferred[bool]) -> bool:
        ended = await stopped
        removal = self._in_thread(partial(remove, self._settings))
        _ = removal.addErrback(lambda failure: log.warn("{error}", error=failure.value))
        return await fired_within(self._clock, REMOVAL_SECONDS, removal) and ended

    async def _check(self) -> None:
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
        was_ready, self._problem = self._problem is None, None
        if not was_ready or changes:
            for callback in self.on_ready:
                callback()


def ensure(settings: InterfaceSettings) -> list[str]:
    """Create or repair the interface; return the changes. Raises :class:`SteeringFailed`."""
    try:
        with Links.opened() as links:
            return _ensured(links, settings)
    except (NetlinkError, OSError) as error:
        raise _failed(settings, error) from None


def remove(settings: InterfaceSettings) -> None:
    """Remove the interface if a hub has created it. Raises :class:`SteeringFailed`."""
    try:
        with Links.opened() as links:
            link = links.find(settings.name)
            if link is not None and link.alias == ALIAS:
                links.remove(link)
    except (NetlinkError, OSError) as error:
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
        done.append(f"created as a {kind}")
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
    except NetlinkError as error:
        if error.code != errno.EOPNOTSUPP:
            raise
    add_tap(name)
    return "TAP device"


def _created(links: Links, name: str) -> Link:
    link = links.find(name)
    if link is None:
        raise SteeringFailed(
            f"another program removed the interface {name} as soon as it was created"
        )
    return link


def _address(links: Links, link: Link, settings: InterfaceSettings) -> list[str]:
    """Set the single address; remove others of its family, except link-local IPv6 addresses."""
    address = settings.address
    desired = (address, address.max_prefixlen)
    present = links.addresses(link, address.version)
    done = []
    for other, length in present - {desired}:
        if address.version == 4 or not other.is_link_local:
            links.remove_address(link, other, length)
            done.append(f"{other}/{length} removed")
    if desired not in present:
        links.add_address(link, *desired)
        done.append(f"{address} added")
    return done


def _failed(settings: InterfaceSettings, error: NetlinkError | OSError) -> SteeringFailed:
    advice = _advice(settings, error)
    return SteeringFailed(
        f"the interface {settings.name} with {settings.address} cannot be created"
        f" ({_reason(error)}){f': {advice}' if advice else ''}"
    )


def _advice(settings: InterfaceSettings, error: NetlinkError | OSError) -> str:
    if isinstance(error, NetlinkError) and error.code == errno.EACCES:
        # Netlink returns EACCES only for addresses, and EPERM if a capability is missing.
        return f"IPv6 is off there: sysctl net.ipv6.conf.{settings.name}.disable_ipv6=0"
    return _ADVICE.get(_number(error), "")


def _number(error: NetlinkError | OSError) -> int:
    return error.code if isinstance(error, NetlinkError) else error.errno or 0


def _reason(error: NetlinkError | OSError) -> str:
    return os.strerror(_number(error)).lower()
