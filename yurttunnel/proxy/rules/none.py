"""No rules at all: clients speak to the ports of proxy sockets themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from yurttunnel.proxy.interfaces import IClaims, IConntrack, IRules, Placed, StaleFlows
from yurttunnel.proxy.state.virtual_services import Key, Portal
from yurttunnel.steering.interfaces import Applied


@implementer(IRules, IClaims, IConntrack)
class NoRules:
    """Leaves the kernel alone, and says so: no portal is claimed, and no flow was led anywhere."""

    backend = "none"

    def apply(self, placed: Sequence[Placed]) -> Deferred[Applied]:
        """See :class:`IRules`."""
        return succeed(Applied())

    def remove(self) -> Deferred[bool]:
        """See :class:`IRules`."""
        return succeed(False)

    def generation(self) -> int | None:
        """See :class:`IRules`."""
        return None

    def want(self, portals: Mapping[Key, Sequence[Portal]]) -> Mapping[tuple[Key, Portal], str]:
        """See :class:`IClaims`."""
        return {}

    def release(self) -> None:
        """See :class:`IClaims`."""

    def forget(self, version: int, stale: Collection[StaleFlows]) -> Deferred[int]:
        """See :class:`IConntrack`."""
        return succeed(0)
