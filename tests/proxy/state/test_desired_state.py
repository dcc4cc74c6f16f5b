"""Tests of what is served of Services and EndpointSlices on a node."""

from __future__ import annotations

import time
from dataclasses import replace
from ipaddress import ip_address, ip_network
from weakref import ref

from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.objects import (
    HERE,
    desired_state,
    endpoint,
    endpoint_slice,
    port,
    problem_texts,
    service,
    shown,
    taken,
)
from yurttunnel.proxy.state.desired_state import ServiceStateCache
from yurttunnel.proxy.state.desired_state import desired_state as desired_state_in_pieces
from yurttunnel.proxy.state.virtual_services import NoEndpointsAction, Scope

MANY = 3000
"""The number of Services of a large cluster."""


def of(*objects, node=HERE):
    """Return the desired state of objects of the API."""
    return desired_state(*taken(*objects), node)


class PortalTests(SynchronousTestCase):
    """The portals of a Service, and their endpoints."""

    def test_all_kinds_of_portals(self):
        """They have the order in which they are opened, and the same endpoints."""
        web = service(
            ports=[port(80, nodePort=30080)], external=["192.0.2.1"], ingress=["192.0.2.2"]
        )
        state = of(web, endpoint_slice("10.1.0.2", "10.1.0.1"))
        portals = [
            "cluster IP 10.96.0.1 80",
            "external IP 192.0.2.1 80",
            "load-balancer IP 192.0.2.2 80",
            "node port 30080",
        ]
        endpoints = ["10.1.0.1:8080", "10.1.0.2:8080"]
        self.assertEqual({"default/web TCP IPv4": (portals, endpoints)}, shown(state))
        self.assertEqual([], problem_texts(state))

    def test_both_families(self):
        """Each family has its own portals, and its own endpoints."""
        web = service(
            "web",
            "10.96.0.1",
            "fd00::1",
            ports=[port(80, nodePort=30080)],
            external=["2001:db8::1"],
        )
        slices = (
            endpoint_slice("10.1.0.1"),
            endpoint_slice("fd01::1", name="web-6", version=6),
        )
        self.assertEqual(
            {
                "default/web TCP IPv4": (
                    ["cluster IP 10.96.0.1 80", "node port 30080"],
                    ["10.1.0.1:8080"],
                ),
                "default/web TCP IPv6": (
                    ["cluster IP fd00::1 80", "external IP 2001:db8::1 80", "node port 30080"],
                    ["[fd01::1]:8080"],
                ),
            },
            shown(of(web, *slices)),
        )

    def test_a_family_that_this_machine_has_not(self):
        """No client can use it, and that is no problem."""
        web = service("web", "10.96.0.1", "fd00::1", ports=[port(80, nodePort=30080)])
        slices = endpoint_slice("10.1.0.1"), endpoint_slice("fd01::1", name="web-6", version=6)
        state = of(web, *slices, node=replace(HERE, versions=(4,)))
        portals = ["cluster IP 10.96.0.1 80", "node port 30080"]
        self.assertEqual({"default/web TCP IPv4": (portals, ["10.1.0.1:8080"])}, shown(state))
        self.assertEqual([], problem_texts(state))

    def test_ports_by_name_and_protocol(self):
        """A port is served by the ports of slices with its name and protocol."""
        web = service(
            ports=[port(80, "http"), port(53, "dns"), port(53, "dns", protocol="UDP")],
        )
        slices = (
            endpoint_slice("10.1.0.1", ports=[port(8080, "http"), port(5353, "dns")]),
            endpoint_slice(
                "10.1.0.2",
                name="web-2",
                ports=[port(9090, "http"), port(5300, "dns", protocol="UDP")],
            ),
        )
        found = {key: endpoints for key, (_, endpoints) in shown(of(web, *slices)).items()}
        self.assertEqual(
            {
                "default/web:http TCP IPv4": ["10.1.0.1:8080", "10.1.0.2:9090"],
                "default/web:dns TCP IPv4": ["10.1.0.1:5353"],
                "default/web:dns UDP IPv4": ["10.1.0.2:5300"],
            },
            found,
        )

    def test_nobody(self):
        """A Service without endpoints is included, because its clients are refused."""
        (made,) = of(service()).services.values()
        self.assertEqual(
            ((), NoEndpointsAction.REFUSED), (made.endpoints, made.no_endpoints_action)
        )

    def test_slices_of_another_namespace(self):
        """A Service has the endpoints of its own namespace."""
        (made,) = of(service(), endpoint_slice("10.1.0.1", namespace="other")).services.values()
        self.assertEqual((), made.endpoints)

    def test_endpoint_in_two_slices(self):
        """An endpoint that moves between slices is ready if it is ready in one of them."""
        slices = [
            endpoint_slice(endpoint(ready=False), name="web-1"),
            endpoint_slice(endpoint(ready=True), name="web-2"),
            endpoint_slice(endpoint(ready=False), name="web-3"),
        ]
        (made,) = of(service(), *slices).services.values()
        self.assertEqual(["10.1.0.1:8080"], [str(each) for each in made.endpoints])

    def test_endpoint_that_drains_in_one_of_two_slices(self):
        """It still serves, whichever slice is first by name."""
        draining = endpoint(ready=False, serving=True, terminating=True)
        for first, second in ((draining, endpoint(ready=False)), (endpoint(ready=False), draining)):
            slices = endpoint_slice(first, name="web-1"), endpoint_slice(second, name="web-2")
            (made,) = of(service(), *slices).services.values()
            self.assertEqual(["10.1.0.1:8080"], [str(each) for each in made.endpoints])

    def test_endpoint_in_two_slices_with_different_conditions(self):
        """If two slices differ about a ready endpoint, the first one by name counts."""
        slices = [
            endpoint_slice(endpoint(node="here"), name="web-1"),
            endpoint_slice(endpoint(node="there"), name="web-2"),
        ]
        for given in (slices, slices[::-1]):
            (made,) = of(service(), *given).services.values()
            self.assertEqual(1, len(made.local))

    def test_publish_not_ready_addresses(self):
        """A Service may be served by endpoints before they are ready."""
        slices = endpoint_slice(endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False))
        (made,) = of(service(publishNotReadyAddresses=True), slices).services.values()
        self.assertEqual(2, len(made.endpoints))

    def test_source_ranges(self):
        """Load-balancer IPs are only for the networks of their own family, if there are any."""
        web = service(
            "web",
            "10.96.0.1",
            "fd00::1",
            ingress=["192.0.2.2", "2001:db8::2"],
            external=["192.0.2.3"],
            loadBalancerSourceRanges=["203.0.113.0/24"],
        )
        self.assertEqual(
            {
                "10.96.0.1": None,
                "192.0.2.3": None,
                "192.0.2.2": (ip_network("203.0.113.0/24"),),
                "fd00::1": None,
                "2001:db8::2": (),
            },
            {
                str(portal.address): portal.sources
                for made in of(web).services.values()
                for portal in made.portals
            },
        )

    def test_all_sources(self):
        """A range of all addresses is no limit."""
        web = service(ingress=["192.0.2.2"], loadBalancerSourceRanges=["10.0.0.0/8", "0.0.0.0/0"])
        (made,) = of(web).services.values()
        self.assertEqual([None, None], [portal.sources for portal in made.portals])

    def test_settings(self):
        """Affinity and annotations are passed on, the PROXY protocol for TCP only."""
        web = service(
            ports=[port(53, "a"), port(53, "b", protocol="UDP")],
            sessionAffinity="ClientIP",
            annotations={
                "yurttunnel.io/proxy-protocol": "v2",
                "yurttunnel.io/load-balancing": "least-connections",
            },
        )
        self.assertEqual(
            [(10800.0, 2, True), (10800.0, 0, True)],
            [
                (made.affinity, made.proxy_protocol, made.least_connections)
                for made in of(web).services.values()
            ],
        )

    def test_external_ip_of_an_endpoint(self):
        """An endpoint that has the external IP and serves the port needs no portal there."""
        web = service(external=["192.0.2.1", "192.0.2.2"], ports=[port(8080)])
        state = of(web, endpoint_slice("192.0.2.1"))
        self.assertEqual(
            (["cluster IP 10.96.0.1 8080", "external IP 192.0.2.2 8080"], ["192.0.2.1:8080"]),
            shown(state)["default/web TCP IPv4"],
        )


class PolicyTests(SynchronousTestCase):
    """Traffic policies, for portals within the cluster and external ones."""

    both = (endpoint("10.1.0.1", node="here"), endpoint("10.1.0.2", node="there"))

    def served(self, *endpoints, **spec):
        """Return, by scope, kinds of portals, endpoints, and what else differs."""
        web = service(ports=[port(80, nodePort=30080)], **spec)
        return {
            made.key.scope: (
                len(made.portals),
                [str(each.address) for each in made.endpoints],
                made.no_endpoints_action,
                made.keeps_source,
            )
            for made in of(web, endpoint_slice(*endpoints)).services.values()
        }

    def test_cluster(self):
        """By default all endpoints serve all portals, and local ones are known."""
        everyone = ["10.1.0.1", "10.1.0.2"]
        self.assertEqual(
            {Scope.ALL: (2, everyone, NoEndpointsAction.REFUSED, False)}, self.served(*self.both)
        )
        (made,) = of(service(), endpoint_slice(*self.both)).services.values()
        self.assertEqual({ip_address("10.1.0.1")}, {each.address for each in made.local})

    def test_endpoints_without_a_node(self):
        """They may be local, so their packets to themselves must return through this node."""
        slices = endpoint_slice("10.1.0.1", endpoint("10.1.0.2", node="elsewhere"))
        (made,) = of(service(), slices).services.values()
        self.assertEqual({ip_address("10.1.0.1")}, {each.address for each in made.local})

    def test_external_local(self):
        """External portals are served by local endpoints only, which see the client's address."""
        self.assertEqual(
            {
                Scope.INTERNAL: (1, ["10.1.0.1", "10.1.0.2"], NoEndpointsAction.REFUSED, False),
                Scope.EXTERNAL: (1, ["10.1.0.1"], NoEndpointsAction.DROPPED, True),
            },
            self.served(*self.both, externalTrafficPolicy="Local"),
        )

    def test_external_local_without_any(self):
        """Without local endpoints packets are dropped if there are others, else refused."""
        there = self.served(self.both[1], externalTrafficPolicy="Local")
        self.assertEqual((1, [], NoEndpointsAction.DROPPED, True), there[Scope.EXTERNAL])
        nowhere = self.served(externalTrafficPolicy="Local")
        self.assertEqual((1, [], NoEndpointsAction.REFUSED, True), nowhere[Scope.EXTERNAL])

    def test_internal_local(self):
        """Within the cluster only local endpoints serve; others are ignored."""
        served = self.served(self.both[1], internalTrafficPolicy="Local")
        self.assertEqual((1, [], NoEndpointsAction.REFUSED, False), served[Scope.INTERNAL])
        self.assertEqual(
            (1, ["10.1.0.2"], NoEndpointsAction.REFUSED, False), served[Scope.EXTERNAL]
        )

    def test_both_local(self):
        """All endpoints are kept for clients within the cluster that use external portals, as if
        their packets had left the cluster and come back.
        """
        policies = {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}
        everyone = ["10.1.0.1", "10.1.0.2"]
        self.assertEqual(
            {
                Scope.INTERNAL: (1, ["10.1.0.1"], NoEndpointsAction.REFUSED, False),
                Scope.EXTERNAL: (1, ["10.1.0.1"], NoEndpointsAction.DROPPED, True),
                Scope.CLUSTER: (0, everyone, NoEndpointsAction.REFUSED, False),
            },
            self.served(*self.both, **policies),
        )

    def test_internal_local_alone(self):
        """Without external portals there is one scope."""
        web = service(internalTrafficPolicy="Local")
        (made,) = of(web, endpoint_slice(*self.both)).services.values()
        self.assertEqual((Scope.ALL, 1), (made.key.scope, len(made.endpoints)))

    def test_scopes_stay(self):
        """Scopes do not depend on endpoints: otherwise sockets would change with them."""
        self.assertEqual(
            self.served(self.both[0], externalTrafficPolicy="Local").keys(),
            self.served(*self.both, externalTrafficPolicy="Local").keys(),
        )


class HealthCheckTests(SynchronousTestCase):
    """The result of health checks on this node."""

    def count(self, *endpoints, slices=(), **spec):
        """Return how many endpoints are reported."""
        web = service(
            "web",
            "10.96.0.1",
            "fd00::1",
            type="LoadBalancer",
            externalTrafficPolicy="Local",
            healthCheckNodePort=32000,
            ports=[port(80, "a"), port(81, "b")],
            **spec,
        )
        checks = of(web, endpoint_slice(*endpoints), *slices).health_checks
        self.assertEqual([32000], list(checks))
        return checks[32000].local_endpoints

    def test_count(self):
        """Ready endpoints on this node count, once each for any number of ports."""
        self.assertEqual(
            2,
            self.count(
                endpoint("10.1.0.1", node="here"),
                endpoint("10.1.0.2", node="here"),
                endpoint("10.1.0.3", node="there"),
                endpoint("10.1.0.4", node="here", ready=False, serving=True, terminating=True),
            ),
        )

    def test_both_families(self):
        """A pod with an address of each family counts once."""
        six = endpoint_slice(endpoint("fd01::1", node="here"), name="web-6", version=6)
        self.assertEqual(1, self.count(endpoint(node="here"), slices=[six]))

    def test_publish_not_ready_addresses(self):
        """Endpoints that serve before they are ready count as well."""
        starting = endpoint(node="here", ready=False)
        self.assertEqual(0, self.count(starting))
        self.assertEqual(1, self.count(starting, publishNotReadyAddresses=True))

    def test_cluster_policy(self):
        """With the policy Cluster every node serves, and there is no health check."""
        web = service(type="LoadBalancer", healthCheckNodePort=32000)
        self.assertEqual({}, of(web).health_checks)


class ProblemTests(SynchronousTestCase):
    """Problems of one object do not affect others."""

    def test_reported_while_the_rest_is_served(self):
        """Problems of a Service and of its slices are reported; the rest of both is served."""
        state = of(
            service(ports=[port(80, "http"), port(70_000, "bad")]),
            endpoint_slice("10.1.0.1", "224.0.0.1", ports=[port(8080, "http")]),
        )
        self.assertEqual(["10.1.0.1:8080"], shown(state)["default/web:http TCP IPv4"][1])
        self.assertEqual(
            [
                "default/web:bad: 70000 is not a port number from 1 to 65535: it is not served",
                "endpointslice default/web-abcde: the endpoint 224.0.0.1 is a multicast address: it"
                " is not used",
            ],
            problem_texts(state),
        )


class ServiceStateCacheTests(SynchronousTestCase):
    """Caching of repeated computations."""

    def test_unchanged_services_are_the_same(self):
        """After one slice has changed, virtual services of others are identical objects."""
        cache = ServiceStateCache()
        services, slices = taken(
            *(service(f"s{n}", f"10.96.0.{n}") for n in range(1, 9)),
            *(endpoint_slice(f"10.1.0.{n}", of=f"s{n}") for n in range(1, 9)),
        )
        before = desired_state(services, slices, HERE, cache)
        _, changed = taken(endpoint_slice("10.1.9.9", of="s3"))
        slices[2] = changed[0]
        after = desired_state(services, slices, HERE, cache)
        differing = [
            str(key) for key in after.services if after.services[key] is not before.services[key]
        ]
        self.assertEqual(["default/s3 TCP IPv4"], differing)
        self.assertEqual(desired_state(services, slices, HERE), after)

    def test_short_pieces(self):
        """However many Services there are, no piece of the work takes long."""
        cache, shares = ServiceStateCache(), []
        objects = taken(
            *(
                service(f"s{n}", f"10.96.{n // 250}.{n % 250}", ports=[port(nodePort=20000 + n)])
                for n in range(MANY)
            ),
            *(endpoint_slice(f"10.1.{n // 250}.{n % 250 + 1}", of=f"s{n}") for n in range(MANY)),
        )
        desired_state(*objects, HERE, cache)
        for _ in range(6):
            work, pieces = desired_state_in_pieces(*objects, HERE, cache), []
            began = time.thread_time()
            for _ in work:
                pieces.append(time.thread_time() - began)
                began = time.thread_time()
            pieces.append(time.thread_time() - began)
            shares.append(max(pieces) / sum(pieces))
        # The garbage collector may run in any piece.
        self.assertLess(min(shares), 0.08)

    def triggered(self, cache, *objects):
        """Return the trigger times of changes."""
        return desired_state(*taken(service(), *objects), HERE, cache).triggered

    def test_reasons(self):
        """Those of new or changed slices are returned once, even if the endpoints are the same."""
        cache, one = (
            ServiceStateCache(),
            endpoint_slice("10.1.0.1", triggered="2026-01-01T00:00:00.5Z"),
        )
        self.assertEqual((1767225600.5,), self.triggered(cache, one))
        self.assertEqual((), self.triggered(cache, one))
        later = "2026-01-01T00:00:10Z"
        # A change of the trigger time only is no change.
        self.assertEqual((), self.triggered(cache, endpoint_slice("10.1.0.1", triggered=later)))
        other = endpoint_slice("10.1.0.2", name="b", triggered=later)
        self.assertEqual((1767225610,), self.triggered(cache, one, other))
        self.assertEqual((), self.triggered(cache, one))
        self.assertEqual((), self.triggered(cache, endpoint_slice("10.1.0.3")))

    def test_loops(self):
        """The same holds for a Service with an endpoint that is a portal."""
        cache = ServiceStateCache()
        objects = taken(service(), endpoint_slice("10.96.0.1", "10.1.0.1", ports=[port(80)]))
        (before,) = desired_state(*objects, HERE, cache).services.values()
        (after,) = desired_state(*objects, HERE, cache).services.values()
        self.assertEqual(["10.1.0.1:80"], [str(each) for each in after.endpoints])
        self.assertIs(before, after)

    def test_forgotten(self):
        """Removed Services are not remembered."""

        class Text(str):
            """A text with weak references, to test whether it still exists."""

        cache = ServiceStateCache()
        gone = Text("gone")
        seen = ref(gone)
        services, _ = taken(service("a"), service("b", "10.96.0.2"))
        desired_state([services[0], replace(services[1], name=gone)], [], HERE, cache)
        del gone
        state = desired_state(services[:1], [], HERE, cache)
        self.assertEqual(["default/a TCP IPv4"], list(shown(state)))
        self.assertIsNone(seen())
