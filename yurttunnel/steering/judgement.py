"""Which connections that the kernel tracks go elsewhere than the rules lead them now."""

from __future__ import annotations

from collections.abc import Callable, Collection

from yurttunnel.steering.interception import Address, Interception, Target
from yurttunnel.steering.interfaces import Flow


def wrong_flows(
    desired: Interception, listeners: Collection[Target], node_addresses: Collection[Address]
) -> Callable[[Flow], bool]:
    """Return a function that says whether a flow has to be cut; it may be called in any thread.

    A flow that should be intercepted must be answered by the listener that its port leads to, and
    one that should not by none of ``listeners``: addresses of this machine itself are never led.
    The latter goes for ``node_addresses`` alone,
    those that nodes have or had: kube-proxy leads the address of the Service
    ``x-tunnel-server-internal-svc`` to the same listeners, and rightly so.

    The server's own connections, which the rules let pass, cannot be told from others here. When
    one of them is forgotten, it goes on with its next packet as it was.
    """

    def is_wrong(flow: Flow) -> bool:
        target = (desired.ports if flow.local else desired.pod_ports).get(flow.port)
        if target is not None and not flow.to_self and desired.intercepts(flow.destination):
            return not _is_answered_by(flow, target)
        return flow.destination in node_addresses and any(
            _is_answered_by(flow, listener) for listener in listeners
        )

    return is_wrong


def _is_answered_by(flow: Flow, target: Target) -> bool:
    """Return whether the flow has been led to ``target``, which may be on whatever own address."""
    if flow.answers == Target(flow.destination, flow.port):
        return False
    return flow.answers.port == target.port and target.address in (None, flow.answers.address)
