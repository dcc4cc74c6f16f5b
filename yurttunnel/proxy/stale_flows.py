"""Which flows the kernel must forget once rules have changed.

A connection by TCP ends, and goes on by the rules that were there when it began; but an attempt of
before there were any is led nowhere for as long as the client tries, up to two minutes. A UDP flow
has no end as long as the client sends, and would lead where it once did for ever
(kubernetes/kubernetes issues 48370, 98305 and 125467).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from yurttunnel.proxy.claims import MOST_ADDRESSES
from yurttunnel.proxy.interfaces import Placed, StaleFlows
from yurttunnel.proxy.rules.within_cluster import WithinCluster
from yurttunnel.proxy.state.virtual_services import (
    Address,
    Endpoint,
    Key,
    Portal,
    Protocol,
    ServicePortName,
)
from yurttunnel.steering.interfaces import VERSIONS

_Identity = tuple[ServicePortName, int]
"""Of the virtual services of all scopes."""


def stale_flows(
    before: Mapping[Key, Placed], after: Mapping[Key, Placed]
) -> dict[int, set[StaleFlows]]:
    """Return the flows that rules for ``before`` may have led elsewhere, by the version of IP.

    What is not in ``before`` may have been led by a former process, or not at all, which lasts
    just as long. Where nothing is, that process led clients to endpoints as this one does: those
    that are endpoints still keep theirs.
    """
    gone = _gone(before, after)
    led_before, led_after = _within_cluster(before), _within_cluster(after)
    found: dict[int, set[StaleFlows]] = {4: set(), 6: set()}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if key.protocol is Protocol.UDP:
            moved = _own_port(led_before, old) != _own_port(led_after, new)
            serving = frozenset[Endpoint]() if before else _serving(led_after, new)
            found[key.version].update(_of_service(old, new, gone[_identity(key)], moved, serving))
        elif new is not None:
            found[key.version].update(_attempts(old, new))
    return {version: flows for version, flows in found.items() if flows}


def flows_to(
    addresses: Collection[Address], placed: Mapping[Key, Placed]
) -> Iterator[tuple[int, StaleFlows]]:
    """Yield the flows that rules for ``placed`` have led to proxy sockets at ``addresses``, which
    are this machine's no more, with the version of IP; all flows to their portals, where very many
    are.
    """
    led = _within_cluster(placed)
    its = {version: [each for each in addresses if each.version == version] for version in VERSIONS}
    for key, each in placed.items():
        lost = its[key.version]
        if key.protocol is not Protocol.UDP or not lost:
            continue
        # Mostly one and the same.
        ports = {port for port in (each.proxy_port, _own_port(led, each)) if port is not None}
        ends: list[Endpoint | None]
        if len(lost) <= MOST_ADDRESSES:
            ends = [Endpoint(address, port) for address in lost for port in ports]
        else:
            # The thousands that ipvs leaves behind would be as many flows for each portal.
            ends = [None] if ports else []
        for portal in each.service.portals:
            yield from ((key.version, _flows(portal, end)) for end in ends)


def _gone(
    before: Mapping[Key, Placed], after: Mapping[Key, Placed]
) -> Mapping[_Identity, set[Endpoint]]:
    """Return the endpoints that are gone, of whichever scope: from external portals clients within
    the cluster are led to those of another one (:mod:`yurttunnel.proxy.rules.within_cluster`).
    """
    found: dict[_Identity, set[Endpoint]] = defaultdict(set)
    for key, old in before.items():
        new = after.get(key)
        if key.protocol is Protocol.UDP and (new is None or new.service is not old.service):
            left = () if new is None else new.service.endpoints
            found[_identity(key)].update(set(old.service.endpoints).difference(left))
    return found


def _identity(key: Key) -> _Identity:
    return key.name, key.version


def _within_cluster(placed: Mapping[Key, Placed]) -> WithinCluster:
    return WithinCluster(each for key, each in placed.items() if key.protocol is Protocol.UDP)


def _own_port(within: WithinCluster, placed: Placed | None) -> int | None:
    """Return to which proxy socket clients within the cluster are led by what is ``placed``."""
    return None if placed is None else (within.instead_of(placed) or placed).proxy_port


def _serving(within: WithinCluster, placed: Placed | None) -> frozenset[Endpoint]:
    """Return the endpoints to which the kernel leads clients by what is ``placed``."""
    served_by = () if placed is None else (placed, within.instead_of(placed) or placed)
    return frozenset(endpoint for each in served_by for endpoint in each.service.endpoints)


def _of_service(
    old: Placed | None,
    new: Placed | None,
    gone: set[Endpoint],
    moved: bool,
    serving: frozenset[Endpoint],
) -> Iterator[StaleFlows]:
    """Yield those of one; ``moved`` says that clients within the cluster have another socket.

    Flows to endpoints that are ``serving`` go on by new portals.
    """
    former = () if old is None else old.service.portals
    portals = () if new is None else new.service.portals
    for portal in former:
        if portal not in portals:
            yield _flows(portal)
    stays = not moved and old is not None and new is not None and _is_kept(old, new)
    own = () if new is None else new.service.endpoints
    for portal in portals:
        if not stays or portal not in former:
            yield replace(_flows(portal), kept=serving)
        else:
            for endpoint in gone.difference(own):
                yield _flows(portal, endpoint)


def _attempts(old: Placed | None, new: Placed) -> Iterator[StaleFlows]:
    """Yield those to new portals; what rules have refused or dropped the kernel does not keep.

    In kernel mode attempts at the very address and port of an endpoint get there without any rule.
    """
    former = () if old is None else old.service.portals
    added = [portal for portal in new.service.portals if portal not in former]
    if not added:
        return
    ends: set[tuple[Address | None, int]] = set()
    for each in new.service.endpoints:
        ends |= {(each.address, each.port), (None, each.port)}
    for portal in added:
        if (portal.address, portal.port) not in ends:
            yield _flows(portal, protocol=Protocol.TCP)


def _is_kept(old: Placed, new: Placed) -> bool:
    """Return whether flows lead where they did, but for those to an endpoint that is gone."""
    if old.proxy_port is None and new.proxy_port is None:
        return bool(old.service.endpoints) == bool(new.service.endpoints)
    return old.proxy_port == new.proxy_port


def _flows(
    portal: Portal, endpoint: Endpoint | None = None, protocol: Protocol = Protocol.UDP
) -> StaleFlows:
    address = None if portal.address is None else str(portal.address)
    return StaleFlows(protocol, address, portal.port, endpoint)
