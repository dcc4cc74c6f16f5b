"""What is known of the node that this is: its Node object, and the addresses of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address

from pyroute2.netlink import NETLINK_ROUTE
from twisted.application.service import MultiService
from twisted.internet.interfaces import IReactorTime

from yurttunnel.cluster.fields import mapping, objects, text
from yurttunnel.kube.interfaces import IInformers, InformerSpec
from yurttunnel.kube.resources import NODES, Object
from yurttunnel.ops.reconciler import Reconciler
from yurttunnel.proxy.state.virtual_services import Address, Network, NodeFacts
from yurttunnel.proxy.unnumbered import unnumbered_versions
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.firewall.detection import has_family
from yurttunnel.steering.interfaces import VERSIONS
from yurttunnel.steering.netlink.conversation import Conversation
from yurttunnel.steering.netlink.flow_table import own_addresses
from yurttunnel.steering.netlink.refusals import as_steering_failed
from yurttunnel.steering.netlink.worker import Run

ZONE = "topology.kubernetes.io/zone"

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
"""The taint of a node that the autoscaler of the cluster empties (KEP-3836)."""

SETTLE_SECONDS = 0.1
"""How long changes of addresses that come together are waited for."""

SPACING_SECONDS = 1.0
"""From one look at the addresses to the next, however often they change."""


@dataclass(frozen=True, slots=True)
class _Node:
    """What is kept of the Node."""

    zone: str
    eligible: bool


def node_from(node: Object) -> _Node:
    """Keep what is needed of a ``Node`` (k8s.io/api core/v1 types.go)."""
    metadata, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    return _Node(
        zone=text(mapping(metadata.get("labels")).get(ZONE)),
        eligible=not metadata.get("deletionTimestamp")
        and all(taint.get("key") != TO_BE_DELETED for taint in objects(spec.get("taints"))),
    )


class ThisNode(MultiService):
    """Keeps ``facts`` current, while it runs: the Node called ``name`` is that of ``informers``.

    Without them, or before they have known such a Node, it is in no zone. The machine's addresses
    are asked for at the start, each ``period`` seconds, and when :meth:`look` is called; ``run`` is
    where the kernel is waited for. ``node_port_networks`` and ``loopback`` are facts that stay.
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
        """What is known now."""
        self.looked = False
        """Whether the addresses are known, or it is known that they cannot be asked for."""
        self.on_changed: list[Callable[[], object]] = []
        """Who is told when the facts are others, or it has looked."""
        self._run = run
        if informers is not None:
            spec = InformerSpec(NODES, node_from, name=name)
            informers.informer(spec).add_handler(self._node_changed)
        self._looks = Reconciler(
            clock,
            period,
            "looking at the addresses of this machine",
            self._look,
            settle=SETTLE_SECONDS,
            spacing=SPACING_SECONDS,
            expected=(SteeringFailed,),
        )
        self._looks.setServiceParent(self)

    def look(self) -> None:
        """Ask for the addresses soon: they, or routes, have changed."""
        self._looks.trigger()

    def _node_changed(self, _old: _Node | None, new: _Node | None) -> None:
        # One that is gone stays what it was, as for kube-proxy: clients are not to come back to it.
        if new is not None:
            self._set(replace(self.facts, zone=new.zone, eligible=new.eligible))

    async def _look(self) -> None:
        versions = tuple(version for version in VERSIONS if has_family(version))
        self._set(replace(self.facts, versions=versions))
        try:
            addresses = await self._run(machine_addresses)
            unnumbered = await self._run(unnumbered_versions)
        except SteeringFailed:
            self._has_looked()
            raise
        self._set(replace(self.facts, addresses=addresses, unnumbered=unnumbered))
        self._has_looked()

    def _has_looked(self) -> None:
        if not self.looked:
            self.looked = True
            self._tell()

    def _set(self, facts: NodeFacts) -> None:
        if facts != self.facts:
            self.facts = facts
            self._tell()

    def _tell(self) -> None:
        for changed in self.on_changed:
            changed()


def machine_addresses() -> frozenset[Address]:
    """Return all addresses of the network namespace at which one can listen.

    Raises :class:`SteeringFailed`.
    """
    with (
        as_steering_failed("cannot ask for the addresses of this machine", {}),
        Conversation(NETLINK_ROUTE) as routes,
    ):
        return frozenset(
            ip_address(packed)
            for version in (4, 6)
            for packed in own_addresses(routes, version, certain=True)
        )
