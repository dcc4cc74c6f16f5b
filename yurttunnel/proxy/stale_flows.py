"""Which conntrack entries to delete after rules have changed.

An established TCP connection continues by the rules at its start, and ends by itself. But a TCP
attempt from before there were rules leads nowhere as long as the client retries, up to two minutes,
and a client that uses the port of a reset connection again is led where that was led.
A UDP flow does not end as long as the client sends, and would go to its old destination forever
(kubernetes/kubernetes issues 48370, 98305 and 125467).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace

from yurttunnel.ops.slices import visit
from yurttunnel.proxy.interfaces import ProxiedService, StaleFlows
from yurttunnel.proxy.rules.in_cluster import InClusterServices
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Endpoint,
    Key,
    Portal,
    Protocol,
    ServicePortName,
)
from yurttunnel.steering.interfaces import VERSIONS

MAX_ENDS = 1000
"""The maximum product of lost addresses, such as the thousands that ipvs leaves behind, and
Services for which flows to each address are searched one by one, in a hundredth of a second."""

Found = tuple[int, StaleFlows]
"""Flows, with their version of IP."""

_Identity = tuple[ServicePortName, int]
"""Identifies the virtual services of all scopes."""


def stale_flows(
    before: Mapping[Key, ProxiedService], after: Mapping[Key, ProxiedService]
) -> Generator[str, None, list[Found]]:
    """Return the flows that rules for ``before`` may have led elsewhere.

    Services that are not in ``before`` may have been redirected by a previous process, or not at
    all, which lasts just as long. If ``before`` is empty, the previous process led clients to
    endpoints as this one does: clients of endpoints that still exist keep them. It yields between
    slices of work (:func:`yurttunnel.ops.slices.visit`).
    """
    removed = yield from _removed_endpoints(before, after)
    in_cluster_before = yield from _within_cluster(before)
    in_cluster_after = yield from _within_cluster(after)
    found: list[Found] = []

    def compare(key: Key) -> None:
        old, new = before.get(key), after.get(key)
        is_moved = _in_cluster_port(in_cluster_before, old) != _in_cluster_port(
            in_cluster_after, new
        )
        if key.protocol is Protocol.UDP:
            serving = frozenset[Endpoint]() if before else _serving(in_cluster_after, new)
            stale = _of_service(old, new, removed[_identity(key)], is_moved, serving)
        else:
            stale = _attempts(old, new, is_moved)
        found.extend((key.version, each) for each in stale)

    yield from visit(before, compare)
    yield from visit(after, lambda key: None if key in before else compare(key))
    return found


def flows_to(
    addresses: Collection[Address], proxied: Mapping[Key, ProxiedService]
) -> Generator[str, None, list[Found]]:
    """Return the flows that rules for ``proxied`` have redirected to proxy sockets at
    ``addresses``, which this machine no longer has; if these are very many flows, all flows to
    their portals. It yields between slices of work.
    """
    in_cluster = yield from _within_cluster(proxied if addresses else {})
    by_version = {
        version: [each for each in addresses if each.version == version] for version in VERSIONS
    }
    found: list[Found] = []

    def add(key: Key) -> None:
        each, lost = proxied[key], by_version[key.version]
        if key.protocol is not Protocol.UDP or not lost:
            return
        # Usually both are the same.
        ports = {
            port
            for port in (each.proxy_port, _in_cluster_port(in_cluster, each))
            if port is not None
        }
        ends: list[Endpoint | None]
        if len(lost) * len(proxied) <= MAX_ENDS:
            ends = [Endpoint(address, port) for address in lost for port in ports]
        else:
            ends = [None] if ports else []
        for portal in each.service.portals:
            found.extend((key.version, _flows(portal, end)) for end in ends)

    if addresses:
        yield from visit(proxied, add)
    return found


def _removed_endpoints(
    before: Mapping[Key, ProxiedService], after: Mapping[Key, ProxiedService]
) -> Generator[str, None, Mapping[_Identity, set[Endpoint]]]:
    """Return the removed endpoints of all scopes: clients within the cluster that use external
    portals are sent to those of another scope (:mod:`yurttunnel.proxy.rules.in_cluster`).
    """
    found: dict[_Identity, set[Endpoint]] = defaultdict(set)

    def compare(key: Key) -> None:
        old, new = before[key], after.get(key)
        if key.protocol is Protocol.UDP and (new is None or new.service is not old.service):
            left = () if new is None else new.service.endpoints
            found[_identity(key)].update(set(old.service.endpoints).difference(left))

    yield from visit(before, compare)
    return found


def _identity(key: Key) -> _Identity:
    return key.name, key.version


def _within_cluster(
    proxied: Mapping[Key, ProxiedService],
) -> Generator[str, None, InClusterServices]:
    found = InClusterServices()
    yield from visit(proxied.values(), found.add)
    return found


def _in_cluster_port(within: InClusterServices, proxied: ProxiedService | None) -> int | None:
    """Return the proxy socket's port for clients within the cluster, according to ``proxied``."""
    return None if proxied is None else (within.replacement_for(proxied) or proxied).proxy_port


def _serving(within: InClusterServices, proxied: ProxiedService | None) -> frozenset[Endpoint]:
    """Return the endpoints to which the kernel sends clients, according to ``proxied``."""
    served_by = () if proxied is None else (proxied, within.replacement_for(proxied) or proxied)
    return frozenset(endpoint for each in served_by for endpoint in each.service.endpoints)


def _of_service(
    old: ProxiedService | None,
    new: ProxiedService | None,
    removed: set[Endpoint],
    is_moved: bool,
    serving: frozenset[Endpoint],
) -> Iterator[StaleFlows]:
    """Yield the flows of one service; ``is_moved`` means that clients within the cluster have
    another socket.

    At new portals, flows to the endpoints in ``serving`` continue.
    """
    former = () if old is None else old.service.portals
    portals = () if new is None else new.service.portals
    for portal in former:
        if portal not in portals:
            yield _flows(portal)
    stays = not is_moved and old is not None and new is not None and _keeps_destination(old, new)
    own = () if new is None else new.service.endpoints
    for portal in portals:
        if not stays or portal not in former:
            yield replace(_flows(portal), excluded=serving)
        else:
            for endpoint in removed.difference(own):
                yield _flows(portal, endpoint)


def _attempts(
    old: ProxiedService | None, new: ProxiedService | None, is_moved: bool
) -> Iterator[StaleFlows]:
    """Yield the attempts and the reset connections at portals that are new, or lead elsewhere;
    attempts that rules rejected or dropped have no conntrack entry.

    But iptables changes one table after the other: when a service gets endpoints, there is a moment
    in which its portals are neither rejected nor redirected.

    In kernel mode, attempts at the address and port of an endpoint itself reach it without any
    rule.
    """
    if new is None or (new is old and not is_moved):
        return
    stays = not is_moved and old is not None and old.proxy_port == new.proxy_port
    former = old.service.portals if old is not None and stays else ()
    added = [portal for portal in new.service.portals if portal not in former]
    if not added:
        return
    ends: set[tuple[Address | None, int]] = set()
    for each in new.service.endpoints:
        ends |= {(each.address, each.port), (None, each.port)}
    for portal in added:
        if (portal.address, portal.port) not in ends:
            yield _flows(portal, protocol=Protocol.TCP)


def _keeps_destination(old: ProxiedService, new: ProxiedService) -> bool:
    """Return whether flows go where they did, except for those to a removed endpoint."""
    if old.proxy_port is None and new.proxy_port is None:
        return bool(old.service.endpoints) == bool(new.service.endpoints)
    return old.proxy_port == new.proxy_port


def _flows(
    portal: Portal, endpoint: Endpoint | None = None, protocol: Protocol = Protocol.UDP
) -> StaleFlows:
    address = None if portal.address is None else str(portal.address)
    return StaleFlows(protocol, address, portal.port, endpoint)
