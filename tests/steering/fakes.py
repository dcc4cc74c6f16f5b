"""The kernel's sets of addresses and its conntrack table, in memory.

Tests in ``tests/steering/netlink`` compare each of them with the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.internet.defer import Deferred, fail, succeed
from zope.interface import implementer

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Address
from yurttunnel.steering.interfaces import Flow, IAddressSets, IFlows


@implementer(IAddressSets)
class FakeAddressSets:
    """Sets of addresses that a test may inspect.

    ``sets`` are their contents, and ``busy`` those that rules refer to, which cannot be removed.
    While ``failure`` is not ``None``, every call fails with it; with ``late_failure`` sets are
    created, and the call fails all the same. ``calls`` records the calls. ``is_supported`` is the
    result of ``supported``.
    """

    def __init__(self) -> None:
        self.sets: dict[str, frozenset[Address]] = {}
        self.versions: dict[str, int] = {}
        self.busy: set[str] = set()
        self.failure: SteeringFailed | None = None
        self.late_failure: SteeringFailed | None = None
        self.calls: list[tuple[str, str]] = []
        self.is_supported = True

    def supported(self) -> Deferred[bool]:
        """See :class:`IAddressSets`."""
        if self.failure is not None:
            return fail(self.failure)
        return succeed(self.is_supported)

    def put(self, name: str, version: int, addresses: Collection[Address]) -> Deferred[bool]:
        """See :class:`IAddressSets`."""
        self.calls.append(("put", name))
        if self.failure is not None:
            return fail(self.failure)
        desired = frozenset(addresses)
        changed = self.sets.get(name) != desired or self.versions[name] != version
        self.sets[name] = desired
        self.versions[name] = version
        if self.late_failure is not None:
            return fail(self.late_failure)
        return succeed(changed)

    def remove(self, name: str) -> Deferred[bool]:
        """See :class:`IAddressSets`."""
        self.calls.append(("remove", name))
        if self.failure is not None:
            return fail(self.failure)
        if name in self.busy:
            return fail(SteeringFailed(f"cannot remove set {name}: rules still refer to it"))
        self.versions.pop(name, None)
        return succeed(self.sets.pop(name, None) is not None)


@implementer(IFlows)
class FakeFlows:
    """Connections that a test may inspect.

    ``flows`` are the current ones. While ``failure`` is not ``None``, every call fails with it;
    ``calls`` records the versions and ports of calls of ``cut``.
    """

    def __init__(self) -> None:
        self.flows: list[Flow] = []
        self.failure: SteeringFailed | None = None
        self.calls: list[tuple[int, frozenset[int]]] = []

    def cut(
        self, version: int, ports: Collection[int], is_wrong: Callable[[Flow], bool]
    ) -> Deferred[int]:
        """See :class:`IFlows`."""
        self.calls.append((version, frozenset(ports)))
        if self.failure is not None:
            return fail(self.failure)
        wrong = [
            flow
            for flow in self.flows
            if flow.destination.version == version and flow.port in ports and is_wrong(flow)
        ]
        self.flows = [flow for flow in self.flows if flow not in wrong]
        return succeed(len(wrong))
