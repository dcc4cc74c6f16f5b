"""Results of the system's resolver."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase, TestCase

from yurttunnel.agent import resolver
from yurttunnel.agent.resolver import NodeResolver, addresses_of, system_lookups


class AddressesTests(SynchronousTestCase):
    """The results of ``getaddrinfo``."""

    def answer(self, *ends) -> None:
        """Let the system return these socket addresses."""

        def answered(name, port, type=0):
            return [(socket.AF_UNSPEC, type, 6, "", end) for end in ends]

        self.patch(resolver.socket, "getaddrinfo", answered)

    def refuse(self, error: Exception) -> None:
        """Let the system raise ``error``."""

        def refused(name, port, type=0):
            raise error

        self.patch(resolver.socket, "getaddrinfo", refused)

    def test_order(self) -> None:
        """Addresses are unique, in the system's order, with their zones."""
        self.answer(
            ("fe80::1", 0, 0, 3), ("fe80::2%3", 0, 0, 3), ("192.0.2.1", 0), ("192.0.2.1", 0)
        )
        expected = [ip_address(text) for text in ("fe80::1%3", "fe80::2%3", "192.0.2.1")]
        self.assertEqual(expected, addresses_of("x"))

    def test_no_address(self) -> None:
        """An unknown name, and an invalid one, have no addresses."""
        for number in (socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY):
            self.refuse(socket.gaierror(number, "Name or service not known"))
            self.assertEqual([], addresses_of("x"))
        self.refuse(UnicodeError("label empty or too long"))
        self.assertEqual([], addresses_of("a..b"))

    def test_failed_lookup(self) -> None:
        """A failed lookup says nothing about the name."""
        self.refuse(OSError(errno.EMFILE, "Too many open files"))
        self.assertRaises(OSError, addresses_of, "x")
        for number in (socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM):
            self.refuse(socket.gaierror(number, "Temporary failure in name resolution"))
            error = self.assertRaises(OSError, addresses_of, "x")
            self.assertEqual("Temporary failure in name resolution", error.strerror)


class SystemTests(TestCase):
    """The system's own resolver."""

    async def test_lookups(self) -> None:
        """The results are the system's; afterwards all places are free."""
        names = NodeResolver(system_lookups(reactor), {})
        found = await names.look_up("localhost")
        self.assertTrue(all(each.is_loopback for each in found), found)
        self.assertTrue(found)
        self.assertEqual([], await names.look_up("a..b"))
        self.assertEqual(0, names.lookups)
