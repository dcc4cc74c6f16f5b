"""The state of this node: its Node object, and the addresses of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, Object
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.proxy.state.virtual_services import Address, Network, NodeFacts
from yurttunnel.proxy.unnumbered_links import unnumbered_versions
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.detection import has_family
from yurttunnel.steering.interfaces import VERSIONS
from yurttunnel.steering.netlink.conntrack_table import own_addresses
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import NETLINK_ROUTE, NetlinkSocket
from yurttunnel.steering.netlink.worker import Run

ZONE = "topology.kubernetes.io/zone"

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""The taint of a node that the cluster autoscaler drains (KEP-3836)."""

SETTLE_SECONDS = 0.1
"""How long to wait for further changes of addresses before reading them."""

SPACING_SECONDS = 1.0
"""The minimum time between two readings of the addresses."""


@dataclass(frozen=True, slots=True)
class _Node:
    """What is kept of the Node object."""

    zone: str
    eligible: bool


def node_from(node: Object) -> _Node:
    """Extract what is needed from a ``Node`` (k8s.io/api core/v1 types.go)."""
    metadata, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    return _Node(
        zone=text(mapping(metadata.get("labels")).get(ZONE)),
        eligible=not metadata.get("deletionTimestamp")
        and all(taint.get("key") != TO_BE_DELETED for taint in objects(spec.get("taints"))),
    )


class ThisNode(MultiService):
    """Keeps ``facts`` up to date while it runs, with the Node ``name`` of ``informers``.

    Without informers, or before they have listed the Node, its zone is unknown. The machine's
    addresses are read at the start, every ``period`` seconds, and when :meth:`refresh` is called;
    ``run`` runs blocking calls to the kernel. ``node_port_networks`` and ``loopback`` do not
    change.
    """

    def __init__(
        self,
        clock: IReactorTime,
        run: Run,
        name: str,
        period: float,
        informers: IInformers | None = None,
        node_port_networks: tuple[Network, ...] = (),
        loopback: bool = False,
    ) -> None:
        super().__init__()
        self.facts = NodeFacts(name, node_port_networks=node_port_networks, loopback=loopback)
        """The current facts."""
        self.addresses_read = False
        """Whether the addresses have been read, or could not be read."""
        self.on_changed: list[Callable[[], object]] = []
        """Callbacks for a change of the facts, and for the first reading."""
        self._run = run
        if informers is not None:
            spec = InformerSpec(NODES, node_from, name=name)
            informers.informer(spec).add_handler(self._node_changed)
        self._refreshes = Reconciler(
            clock,
            period,
            "reading the addresses of this machine",
            self._read_addresses,
            settle=SETTLE_SECONDS,
            spacing=SPACING_SECONDS,
            expected=(SteeringFailed,),
        )
        self._refreshes.setServiceParent(self)

    def refresh(self) -> None:
        """Read the addresses soon, because they or routes have changed."""
        self._refreshes.trigger()

    def _node_changed(self, _old: _Node | None, new: _Node | None) -> None:
        # A deleted Node keeps its facts, as in kube-proxy: no clients should be sent here again.
        if new is not None:
            self._set(replace(self.facts, zone=new.zone, eligible=new.eligible))

    async def _read_addresses(self) -> None:
        versions = tuple(version for version in VERSIONS if has_family(version))
        self._set(replace(self.facts, versions=versions))
        # What has been read is used even if the rest cannot be read.
        read: dict[str, Any] = {}
        try:
            read["addresses"] = await self._run(machine_addresses)
            read["unnumbered"] = await self._run(unnumbered_versions)
        except SteeringFailed:
            self._note_read(read)
            raise
        self._note_read(read)

    def _note_read(self, read: dict[str, Any]) -> None:
        self._set(replace(self.facts, **read))
        if not self.addresses_read:
            self.addresses_read = True
            self._notify()

    def _set(self, facts: NodeFacts) -> None:
        if facts != self.facts:
            self.facts = facts
            self._notify()

    def _notify(self) -> None:
        for changed in self.on_changed:
            changed()


def machine_addresses() -> frozenset[Address]:
    """Return all addresses of the network namespace that sockets can listen on.

    Raises :class:`SteeringFailed`.
    """
    with (
        as_steering_failed("cannot read the addresses of this machine", {}),
        NetlinkSocket(NETLINK_ROUTE) as routes,
    ):
        return frozenset(
            ip_address(packed)
            for version in (4, 6)
            for packed in own_addresses(routes, version, exclude_tentative=True)
        )
