"""Tests of portals and endpoints that are not served, or only some of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

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
from tests.proxy.state.test_desired_state import of
from yurttunnel.proxy.state.desired_state import ServiceStateCache
from yurttunnel.proxy.state.virtual_services import Protocol


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
                problem_texts(state),
            )

    def test_first_by_name_keeps_it(self):
        """Of two with the same age the first by name has it; one without portals is left out."""
        state = of(service("b"), service("a"))
        self.assertEqual(["default/a TCP IPv4"], list(shown(state)))
        self.assertEqual(1, len(problem_texts(state)))

    def test_other_protocol_or_port(self):
        """A portal is an address, a port and a protocol."""
        state = of(
            service("a", ports=[port(53)]),
            service("b", ports=[port(53, protocol="UDP")]),
            service("c", ports=[port(54)]),
        )
        self.assertEqual((3, []), (len(state.services), problem_texts(state)))

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
        self.assertIn("default/b: healthCheckNodePort 32000 belongs to", problem_texts(state)[0])


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
            problem_texts(state),
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
            self.assertEqual([], problem_texts(state))

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
        self.assertEqual(3, len(problem_texts(state)))

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
            problem_texts(state),
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
            problem_texts(state),
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
        self.assertEqual([], problem_texts(state))
