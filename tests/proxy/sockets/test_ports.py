"""Ports of proxy sockets."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.ports import free_ports
from tests.proxy.services import key
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.state.virtual_services import Endpoint, Protocol

TCP, UDP = Protocol.TCP, Protocol.UDP


def port_of(opened: socket.socket) -> int:
    """Return the port of a socket."""
    return int(opened.getsockname()[1])


class PortAllocatorTests(SynchronousTestCase):
    """Sockets are opened on free ports."""

    def open(self, ports: PortAllocator, version: int = 4, protocol: Protocol = TCP):
        """Open a socket that the test closes."""
        opened = ports.open(key(protocol=protocol, version=version))
        self.addCleanup(opened.close)
        return opened

    def test_without_a_range_the_kernel_chooses(self) -> None:
        """On the wildcard address of the family; it is non-blocking and known as a proxy port."""
        for version, wildcard in ((4, "0.0.0.0"), (6, "::")):
            for protocol in Protocol:
                ports = PortAllocator()
                opened = self.open(ports, version, protocol)
                self.assertEqual(opened.getsockname()[0], wildcard)
                self.assertFalse(opened.getblocking())
                self.assertTrue(ports.is_used(version, protocol, port_of(opened)))
                ports.close(opened)
                self.assertEqual(opened.fileno(), -1)

    def test_families_and_protocols_do_not_share_numbers(self) -> None:
        """One number serves four sockets, and the IPv6 ones do not accept IPv4."""
        first = free_ports.take()
        ports = PortAllocator(range(first, first + 1))
        for version in (6, 4):
            for protocol in Protocol:
                self.assertFalse(ports.is_used(version, protocol, first))
                self.assertEqual(port_of(self.open(ports, version, protocol)), first)

    def test_a_range_of_five_serves_five_and_the_sixth_when_one_is_given_back(self) -> None:
        """The sixth fails with a message that says what to widen."""
        first = free_ports.take_row(5)
        ports = PortAllocator(range(first, first + 5))
        opened = [self.open(ports) for _ in range(5)]
        self.assertEqual({port_of(one) for one in opened}, set(range(first, first + 5)))
        failure = self.assertRaises(OSError, self.open, ports)
        self.assertIn(f"no remaining ports: all from {first} to {first + 4}", str(failure))
        self.assertIn("--proxy-port-range", str(failure))
        port = port_of(opened[3])
        ports.close(opened[3])
        self.assertFalse(ports.is_used(4, TCP, port))
        self.assertEqual(port_of(self.open(ports)), port)

    def test_a_service_has_the_same_port_of_a_range_in_each_process(self) -> None:
        """So that the rules of an earlier process lead to it; another service has another one."""
        first = free_ports.take_row(20)
        for protocol in Protocol:
            found: dict[str, set[int]] = {"web": set(), "dns": set()}
            for name in (*found, *reversed(found)) * 3:
                ports = PortAllocator(range(first, first + 20))
                opened = ports.open(key(name, protocol))
                found[name].add(port_of(opened))
                ports.close(opened)
            self.assertEqual([1, 1], [len(each) for each in found.values()])
            self.assertNotEqual(found["web"], found["dns"])

    def test_an_address_may_be_chosen(self) -> None:
        """For clients on this machine only."""
        opened = self.open(PortAllocator(addresses={4: "127.0.0.1"}))
        self.assertEqual(opened.getsockname()[0], "127.0.0.1")

    def test_a_loop_leads_to_where_it_listens(self) -> None:
        """An endpoint with the same number at another address of the machine is no loop."""
        for own, loops in (
            ("0.0.0.0", {"127.0.0.1", "127.0.0.5", "0.0.0.0"}),
            ("127.0.0.5", {"127.0.0.5", "0.0.0.0"}),
        ):
            ports = PortAllocator(addresses={4: own})
            port = port_of(self.open(ports))
            for address in ("127.0.0.1", "127.0.0.5", "0.0.0.0", "198.51.100.7"):
                endpoint = Endpoint(ip_address(address), port)
                self.assertEqual(address in loops, ports.is_loop(TCP, endpoint), address)
                self.assertFalse(ports.is_loop(UDP, endpoint))

    def test_ports_of_other_processes_and_claimed_ones_are_passed_over(self) -> None:
        """The remaining port is used."""
        first = free_ports.take_row(3)
        other = socket.create_server(("127.0.0.1", first))
        self.addCleanup(other.close)
        ports = PortAllocator(range(first, first + 3), lambda port: port == first + 1)
        self.assertEqual(port_of(self.open(ports)), first + 2)
        self.assertRaises(OSError, self.open, ports)

    def test_the_kernel_is_asked_again_when_it_chooses_a_claimed_port(self) -> None:
        """The claimed port is not left open."""
        seen: list[int] = []

        def is_claimed(port: int) -> bool:
            seen.append(port)
            return len(seen) < 3

        opened = self.open(PortAllocator(is_claimed=is_claimed))
        self.assertEqual(port_of(opened), seen[2])
        self.assertEqual(len(set(seen)), 3)
        with socket.socket() as again:
            again.bind(("0.0.0.0", seen[0]))

    def test_kernel_that_chooses_only_claimed_ports_is_reported(self) -> None:
        """The message says what to change."""
        ports = PortAllocator(is_claimed=lambda _: True)
        failure = self.assertRaises(OSError, ports.open, key(protocol=UDP))
        self.assertIn("net.ipv4.ip_local_port_range", str(failure))

    def test_errors_of_the_system_are_sentences(self) -> None:
        """It is not reported as a range that is used up."""
        refused = OSError(errno.EMFILE, "Too many open files")
        for ports in (PortAllocator(), PortAllocator(range(20000, 20002))):
            with mock.patch("socket.socket", side_effect=refused):
                failure = self.assertRaises(OSError, ports.open, key())
            self.assertEqual(failure.errno, errno.EMFILE)
            self.assertIn("cannot open TCP", str(failure))
