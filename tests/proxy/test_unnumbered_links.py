"""Tests of links without an address, and where their clients are redirected."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.network.namespaces import run
from tests.steering.netlink.support import KernelTestCase
from yurttunnel.proxy import unnumbered_links
from yurttunnel.proxy.state.virtual_services import NodeFacts
from yurttunnel.proxy.unnumbered_links import address_for_all, unnumbered_versions


class LinkTests(KernelTestCase):
    """A network namespace with a link to a pod."""

    def setUp(self):
        """Create the link."""
        super().setUp()
        run("ip", "link", "add", "cali0", "type", "veth", "peer", "name", "eth0")
        for link in ("cali0", "eth0"):
            run("ip", "link", "set", link, "up")

    def test_links(self):
        """Links with routes count, until they have an address that is not link-local."""
        run("ip", "route", "add", "blackhole", "10.9.0.0/26")
        self.assertEqual(set(), unnumbered_versions())
        ways = {4: ("10.9.0.5", "10.9.0.1/32"), 6: ("fd09::5", "fd09::1/128")}
        for version, (pod, own) in ways.items():
            run("ip", f"-{version}", "route", "add", pod, "dev", "cali0")
            self.assertEqual({version}, unnumbered_versions())
            run("ip", "address", "add", own, "dev", "cali0")
            self.assertEqual(set(), unnumbered_versions())

    def test_not_all_links_are_listed(self):
        """Python blocks all threads for that, and there may be thousands."""
        self.patch(socket, "if_nameindex", lambda: self.fail("all links are listed"))
        run("ip", "route", "add", "10.9.0.5", "dev", "cali0")
        self.assertEqual({4}, unnumbered_versions())

    def test_a_name_that_is_no_text(self):
        """It may have any bytes."""
        run("ip", "link", "set", "cali0", "down")
        run("ip", "link", "set", "cali0", "name", b"cali\xff")
        run("ip", "link", "set", b"cali\xff", "up")
        run("ip", "route", "add", "10.9.0.5", "dev", b"cali\xff")
        self.assertEqual({4}, unnumbered_versions())
        run("ip", "address", "add", "10.9.0.1/32", "dev", b"cali\xff")
        self.assertEqual(set(), unnumbered_versions())

    def test_no_such_family(self):
        """A machine without a family has no links of it."""
        self.patch(unnumbered_links, "PROC_NET", Path(self.mktemp()))
        self.assertEqual(set(), unnumbered_versions())


class AddressTests(SynchronousTestCase):
    """The address for clients from all links."""

    def of(self, host, *addresses, unnumbered=(4,)):
        """Return the IPv4 address of a machine with these, as text."""
        found = frozenset(ip_address(each) for each in (host, *addresses) if each)
        facts = NodeFacts("here", addresses=found, unnumbered=frozenset(unnumbered))
        return address_for_all(facts, {4: host and ip_address(host)}.get, 4)

    def test_address(self):
        """It is the one for the node's own programs; without one, any that others can reach."""
        self.assertEqual(ip_address("10.0.0.9"), self.of("10.0.0.9", "10.0.0.1"))
        others = ("127.0.0.1", "169.254.1.1", "fd00::1")
        self.assertEqual(ip_address("10.0.0.1"), self.of(None, "10.0.0.2", "10.0.0.1", *others))
        self.assertIsNone(self.of(None, *others))

    def test_each_link_has_one(self):
        """Then it is the address of the link."""
        self.assertIsNone(self.of("10.0.0.9", unnumbered=(6,)))
