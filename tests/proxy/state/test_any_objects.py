"""Tests with any objects in any order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.objects import HERE, desired_state, endpoint, endpoint_slice, port, service, taken
from yurttunnel.proxy.state.desired_state import ServiceStateCache
from yurttunnel.proxy.state.endpoint_slices import EndpointSlice, endpoint_slice_from
from yurttunnel.proxy.state.parsing import MAX_REPORTED
from yurttunnel.proxy.state.services import Service, service_from
from yurttunnel.proxy.state.virtual_services import Scope

_NAMES = st.sampled_from("abc")
_BOOLS = st.sampled_from([None, True, False])
_ADDRESSES = st.sampled_from(
    [
        "10.1.0.1",
        "10.1.0.2",
        "10.1.0.3",
        "10.96.0.1",
        "192.0.2.1",
        "127.0.0.1",
        "169.254.1.1",
        "fd01::1",
    ]
)
_PORTS = st.lists(
    st.builds(
        port,
        st.sampled_from([0, 80, 81, 30080, 70_000]),
        st.sampled_from(["", "http", "dns"]),
        protocol=st.sampled_from(["TCP", "UDP", "SCTP"]),
        nodePort=st.sampled_from([0, 30080, 30081]),
    ),
    max_size=3,
)
_POLICY = st.sampled_from(["Cluster", "Local"])
_SERVICES = st.builds(
    lambda name, ips, **more: service(name, *ips, **more),
    _NAMES,
    st.sampled_from([("10.96.0.1",), ("10.96.0.2",), ("10.96.0.3", "fd00::3"), ("None",)]),
    ports=_PORTS,
    external=st.lists(_ADDRESSES, max_size=2),
    ingress=st.lists(_ADDRESSES, max_size=2),
    created=st.sampled_from(["", "2025-01-01T00:00:00Z"]),
    type=st.just("LoadBalancer"),
    internalTrafficPolicy=_POLICY,
    externalTrafficPolicy=_POLICY,
    healthCheckNodePort=st.sampled_from([0, 30081, 32000]),
    trafficDistribution=st.sampled_from([None, "PreferClose", "PreferSameNode"]),
    publishNotReadyAddresses=st.booleans(),
)
_ENDPOINTS = st.builds(
    endpoint,
    _ADDRESSES,
    node=st.sampled_from(["", "here", "there"]),
    zone=st.sampled_from(["", "a", "b"]),
    for_zones=st.lists(st.sampled_from("ab"), max_size=2),
    for_nodes=st.lists(st.sampled_from(["here", "there"]), max_size=1),
    ready=_BOOLS,
    serving=_BOOLS,
    terminating=_BOOLS,
)
_SLICES = st.builds(
    lambda endpoints, of, number, **more: endpoint_slice(
        *endpoints, of=of, name=f"{of}-{number}", **more
    ),
    st.lists(_ENDPOINTS, max_size=4),
    _NAMES,
    st.sampled_from("12"),
    ports=_PORTS,
    version=st.sampled_from([4, 6]),
)
_OBJECTS = st.lists(st.one_of(_SERVICES, _SLICES), max_size=8)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _ADDRESSES,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def by_name(objects):
    """Return what is kept of objects as in a cache: the last one of each name."""
    services, slices = taken(*objects)
    return (
        {each.name: each for each in services},
        {each.name: each for each in slices},
    )


class AnyOrderTests(SynchronousTestCase):
    """The desired state depends on the objects, not on their history."""

    @settings(max_examples=100, deadline=None)
    @given(_OBJECTS, st.randoms(use_true_random=False))
    def test_order(self, objects, random):
        """The order of objects makes no difference, not even to the order of results."""
        services, slices = (list(each.values()) for each in by_name(objects))
        expected = desired_state(services, slices, HERE)
        random.shuffle(services)
        random.shuffle(slices)
        found = desired_state(services, slices, HERE)
        self.assertEqual(expected, found)
        self.assertEqual(list(expected.services), list(found.services))

    @settings(max_examples=100, deadline=None)
    @given(st.lists(_OBJECTS, max_size=5), st.sampled_from("ab"))
    def test_memory(self, steps, zone):
        """The result with a memory of other states is the same as without."""
        cache = ServiceStateCache()
        services, slices = {}, {}
        for step, objects in enumerate(steps):
            changed = by_name(objects)
            services.update(changed[0])
            slices.update(changed[1])
            if step % 2:
                services.pop("a", None)
            node = replace(HERE, zone=zone if step == 3 else "a")
            expected = desired_state(services.values(), slices.values(), node)
            found = desired_state(services.values(), slices.values(), node, cache)
            self.assertEqual(expected, found)

    @settings(max_examples=100, deadline=None)
    @given(_OBJECTS)
    def test_one_owner(self, objects):
        """No portal occurs twice, and no endpoint is the portal of a cluster IP."""
        services, slices = by_name(objects)
        state = desired_state(services.values(), slices.values(), HERE)
        claims = [
            (key.protocol, portal.address, portal.port, portal.address is None and key.version)
            for key, made in state.services.items()
            for portal in made.portals
        ]
        self.assertEqual(len(set(claims)), len(claims))
        virtual = {address for each in services.values() for address in each.cluster_ips}
        for made in state.services.values():
            self.assertEqual(tuple(sorted(made.endpoints)), made.endpoints)
            self.assertLessEqual(made.local, set(made.endpoints))
            self.assertEqual(made.key.scope is not Scope.CLUSTER, bool(made.portals))
            for each in made.endpoints:
                self.assertEqual(made.key.version, each.address.version)
                if each.address in virtual:
                    self.assertNotIn(
                        (made.key.protocol, each.address, each.port), [c[:3] for c in claims]
                    )


class AnythingTests(SynchronousTestCase):
    """Invalid objects."""

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def test_never_raises(self, data):
        """Whatever a field contains, the object is kept or left out, with few problems."""
        for made, keep in ((_SERVICES, service_from), (_SLICES, endpoint_slice_from)):
            broken = data.draw(made)
            for _ in range(data.draw(st.integers(1, 3))):
                self.break_one(broken, data)
            kept = keep(broken)
            self.assertIsInstance(kept, Service | EndpointSlice | None)
            if kept is not None:
                self.assertLessEqual(len(kept.problems), MAX_REPORTED + 1)
                desired_state(
                    [kept] if isinstance(kept, Service) else [],
                    [] if isinstance(kept, Service) else [kept],
                    HERE,
                )

    def break_one(self, within, data):
        """Replace one value by anything, at any depth."""
        while True:
            keys = list(within) if isinstance(within, dict) else list(range(len(within)))
            if not keys:
                return
            key = data.draw(st.sampled_from(keys))
            deeper = isinstance(within[key], dict | list) and within[key]
            if not deeper or data.draw(st.booleans()):
                within[key] = data.draw(_ANYTHING)
                return
            within = within[key]
