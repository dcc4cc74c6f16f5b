"""Tests of what is served of Services and EndpointSlices on a node."""

from __future__ import annotations

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
    service,
    shown,
    taken,
    told,
)
from yurttunnel.proxy.state.desired_state import ServiceStateCache
from yurttunnel.proxy.state.virtual_services import NoEndpointsAction, Protocol, Scope


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
        self.assertEqual([], told(state))

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
        self.assertEqual([], told(state))

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


class ConflictTests(SynchronousTestCase):
    """Several Services with the same portal."""

    def test_older_keeps_it(self):
        """The older one has it; the rest of the other one is served."""
        old = service("zoo", "10.96.0.9", external=["192.0.2.1"], created="2025-01-01T00:00:00Z")
        new = service("api", "10.96.0.8", external=["192.0.2.1"])
        for objects in ((old, new), (new, old)):
            state = of(*objects)
            found = {key: portals for key, (portals, _) in shown(state).items()}
            self.assertEqual(
                {
                    "default/zoo TCP IPv4": ["cluster IP 10.96.0.9 80", "external IP 192.0.2.1 80"],
                    "default/api TCP IPv4": ["cluster IP 10.96.0.8 80"],
                },
                found,
            )
            self.assertEqual(
                [
                    "default/api: the external IP 192.0.2.1 port 80 belongs to the older Service"
                    " default/zoo"
                ],
                told(state),
            )

    def test_first_by_name_keeps_it(self):
        """Of two with the same age the first by name has it; one without portals is left out."""
        state = of(service("b"), service("a"))
        self.assertEqual(["default/a TCP IPv4"], list(shown(state)))
        self.assertEqual(1, len(told(state)))

    def test_other_protocol_or_port(self):
        """A portal is an address, a port and a protocol."""
        state = of(
            service("a", ports=[port(53)]),
            service("b", ports=[port(53, protocol="UDP")]),
            service("c", ports=[port(54)]),
        )
        self.assertEqual((3, []), (len(state.services), told(state)))

    def test_health_check_port(self):
        """A port for health checks belongs to this machine like a node port."""
        state = of(
            service("a", "10.96.0.1", ports=[port(80, nodePort=32000)]),
            service(
                "b",
                "10.96.0.2",
                type="LoadBalancer",
                externalTrafficPolicy="Local",
                healthCheckNodePort=32000,
            ),
        )
        self.assertEqual({}, state.health_checks)
        self.assertIn("default/b: healthCheckNodePort 32000 belongs to", told(state)[0])


class LoopTests(SynchronousTestCase):
    """Endpoints that would lead back to a portal."""

    def test_cluster_ip(self):
        """One that is the cluster IP and port of any Service is left out."""
        a = service("a", "10.96.0.1", ports=[port(80)])
        b = service("b", "10.96.0.2", ports=[port(80)])
        state = of(a, b, endpoint_slice("10.96.0.2", "10.1.0.1", of="a", ports=[port(80)]))
        self.assertEqual(["10.1.0.1:80"], shown(state)["default/a TCP IPv4"][1])
        self.assertEqual(
            [
                "default/a: the endpoint 10.96.0.2:80 is a portal of a Service, which would be a"
                " loop: it is not used"
            ],
            told(state),
        )

    def test_node_port_of_this_machine(self):
        """So is one that is a node port of this machine, but not of another."""
        node = replace(HERE, addresses=frozenset({ip_address("192.0.2.7")}))
        web = service(ports=[port(80, nodePort=30080)])
        slices = endpoint_slice("192.0.2.7", "192.0.2.8", ports=[port(30080)])
        (made,) = of(web, slices, node=node).services.values()
        self.assertEqual(["192.0.2.8:30080"], [str(each) for each in made.endpoints])

    def test_addresses_without_node_ports(self):
        """At an address without node ports an endpoint may have the number of one; a family without
        networks has node ports at all of its addresses.
        """
        node = replace(
            HERE,
            addresses=frozenset(map(ip_address, ("192.0.2.7", "198.51.100.7", "2001:db8::7"))),
            node_port_networks=(ip_network("198.51.100.0/24"),),
        )
        web = service("web", "10.96.0.1", "fd00::1", ports=[port(80, nodePort=30080)])
        four = endpoint_slice("192.0.2.7", "198.51.100.7", ports=[port(30080)])
        six = endpoint_slice("2001:db8::7", name="six", version=6, ports=[port(30080)])
        made = of(web, four, six, node=node).services.values()
        self.assertEqual(
            {4: ["192.0.2.7:30080"], 6: []},
            {each.key.version: [str(one) for one in each.endpoints] for each in made},
        )

    def test_other_protocol(self):
        """A portal of another protocol is an endpoint like others."""
        node = replace(HERE, addresses=frozenset({ip_address("192.0.2.7")}))
        tcp = port(80, nodePort=30053)
        udp = port(53, protocol="UDP")
        for address, number in (("192.0.2.7", 30053), ("10.96.0.1", 80), ("192.0.2.1", 80)):
            state = of(
                service("web", "10.96.0.1", ports=[tcp], external=["192.0.2.1"]),
                service("rtp", "10.96.0.2", ports=[udp], external=["192.0.2.2"]),
                endpoint_slice(address, of="rtp", ports=[port(number, protocol="UDP")]),
                endpoint_slice("192.0.2.2", of="web", name="b", ports=[port(53)]),
                node=node,
            )
            expected = {
                "default/web TCP IPv4": ["192.0.2.2:53"],
                "default/rtp UDP IPv4": [f"{address}:{number}"],
            }
            self.assertEqual(expected, {name: led for name, (_, led) in shown(state).items()})
            self.assertEqual([], told(state))

    def test_both_protocols(self):
        """In a Service with both protocols the endpoint is left out for the portal's protocol."""
        web = service(ports=[port(80, "a", nodePort=30080), port(80, "b", protocol="UDP")])
        slices = endpoint_slice(
            "192.0.2.7", ports=[port(30080, "a"), port(30080, "b", protocol="UDP")]
        )
        node = replace(HERE, addresses=frozenset({ip_address("192.0.2.7")}))
        made = of(web, slices, node=node).services.values()
        self.assertEqual(
            {Protocol.TCP: 0, Protocol.UDP: 1},
            {each.key.protocol: len(each.endpoints) for each in made},
        )

    def test_around(self):
        """Endpoints by which Services lead to external portals of each other, and back, are left
        out; one that only leads to another Service is not.
        """
        state = of(
            service("a", "10.96.0.1", external=["192.0.2.1"]),
            service("b", "10.96.0.2", ingress=["192.0.2.2"]),
            service("c", "10.96.0.3", external=["192.0.2.3"]),
            service("d", "10.96.0.4"),
            service("e", "10.96.0.5", external=["192.0.2.5"]),
            *(
                endpoint_slice(*addresses, of=name, name=name, ports=[port(80)])
                for name, addresses in {
                    "a": ["192.0.2.2", "10.1.0.1", "192.0.2.5"],
                    "b": ["192.0.2.3", "10.1.0.2"],
                    "c": ["192.0.2.1", "10.1.0.3"],
                    "d": ["192.0.2.1"],
                    "e": ["10.1.0.5"],
                }.items()
            ),
        )
        self.assertEqual(
            {
                "default/a TCP IPv4": ["10.1.0.1:80", "192.0.2.5:80"],
                "default/b TCP IPv4": ["10.1.0.2:80"],
                "default/c TCP IPv4": ["10.1.0.3:80"],
                "default/d TCP IPv4": ["192.0.2.1:80"],
                "default/e TCP IPv4": ["10.1.0.5:80"],
            },
            {name: endpoints for name, (_, endpoints) in shown(state).items()},
        )
        self.assertEqual(3, len(told(state)))

    def test_around_by_two_ports(self):
        """One Service may form a loop by two of its ports."""
        web = service(ports=[port(80, "a"), port(81, "b")], external=["192.0.2.1"])
        slices = endpoint_slice("192.0.2.1", "10.1.0.1", ports=[port(81, "a"), port(80, "b")])
        for made in of(web, slices).services.values():
            self.assertEqual(["10.1.0.1"], [str(each.address) for each in made.endpoints])


class LinkLocalTests(SynchronousTestCase):
    """Endpoints with link-local addresses, which belong to another machine elsewhere."""

    slices = endpoint_slice("169.254.2.1", "169.254.169.254", "10.1.0.1")

    def test_own(self):
        """The address of a hub on this machine is used: it is the endpoint of
        default/kubernetes.
        """
        own = frozenset({ip_address("169.254.2.1"), ip_address("192.0.2.7")})
        state = of(service(), self.slices, node=replace(HERE, addresses=own))
        self.assertEqual(
            ["10.1.0.1:8080", "169.254.2.1:8080"], shown(state)["default/web TCP IPv4"][1]
        )
        self.assertEqual(
            [
                "default/web: the endpoint 169.254.169.254:8080 has a link-local address that is"
                " not one of this machine: it is not used"
            ],
            told(state),
        )

    def test_others(self):
        """One that this machine does not have is left out, and used once it does."""
        cache = ServiceStateCache()
        objects = taken(service(), self.slices)
        (made,) = desired_state(*objects, HERE, cache).services.values()
        self.assertEqual(1, len(made.endpoints))
        here = replace(HERE, addresses=frozenset({ip_address("169.254.2.1")}))
        (made,) = desired_state(*objects, here, cache).services.values()
        self.assertEqual(2, len(made.endpoints))


class LoopbackTests(SynchronousTestCase):
    """Endpoints at loopback addresses, which exist on every machine."""

    slices = endpoint_slice(endpoint("127.0.0.1", node="here"), endpoint("10.1.0.1"))

    def test_where_others_are_clients(self):
        """They are not used, and not counted for load balancers: clients of a portal would reach
        listeners that are only for this machine.
        """
        balanced = service(
            type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=32000
        )
        state = of(balanced, self.slices)
        self.assertEqual(["10.1.0.1:8080"], shown(state)["default/web TCP IPv4"][1])
        self.assertEqual(0, state.health_checks[32000].local_endpoints)
        self.assertEqual(
            [
                "default/web: the endpoint 127.0.0.1:8080 has a loopback address, which would"
                " expose local services of this machine: it is not used"
            ],
            told(state),
        )
        six = service("six", "fd00::1")
        state = of(six, endpoint_slice("::1", of="six", version=6))
        self.assertEqual([], shown(state)["default/six TCP IPv6"][1])

    def test_where_nobody_else_is(self):
        """They are endpoints like others."""
        state = of(service(), self.slices, node=replace(HERE, loopback=True))
        self.assertEqual(
            ["10.1.0.1:8080", "127.0.0.1:8080"], shown(state)["default/web TCP IPv4"][1]
        )
        self.assertEqual([], told(state))


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
            told(state),
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
