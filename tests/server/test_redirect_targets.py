"""The addresses to which connections are redirected."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server import redirect_targets as module
from yurttunnel.server.options import Options
from yurttunnel.server.redirect_targets import other_family_addresses, redirect_targets
from yurttunnel.steering.desired_state import Listeners
from yurttunnel.steering.interception import Target


def settings(*arguments):
    """Return the settings of a command line."""
    return Options().settings_of(*arguments)


def targets_of(*arguments):
    """Return the targets of redirected connections for a command line."""
    parsed = settings(*arguments)
    return redirect_targets(parsed, parsed.mode.steering)


class ListenersTests(SynchronousTestCase):
    """For each family there is an address on which the server listens."""

    def test_one_address(self):
        """The other family is redirected to its loopback address."""
        found = targets_of("--bind-address=192.0.2.1", "--insecure-bind-address=192.0.2.2")
        self.assertEqual(
            {
                4: Listeners(
                    Target(ip_address("192.0.2.1"), 10263), Target(ip_address("192.0.2.2"), 10264)
                ),
                6: Listeners(Target(ip_address("::1"), 10263), Target(ip_address("::1"), 10264)),
            },
            found,
        )

    def test_every_address(self):
        """A wildcard address is not a target (defect F6: yurttunnel 1.2 redirected to 0.0.0.0)."""
        found = targets_of("--passthrough-port=10261")
        self.assertEqual(Target(None, 10263), found[4].secure)
        self.assertEqual(Target(None, 10261), found[4].passthrough)
        self.assertEqual(Target(ip_address("127.0.0.1"), 10264), found[4].insecure)
        self.assertEqual(Target(ip_address("::1"), 10263), found[6].secure)
        self.assertEqual(Target(ip_address("::1"), 10261), found[6].passthrough)

    def test_every_address_of_both_families(self):
        """One listener on :: accepts both."""
        found = targets_of("--bind-address=::")
        self.assertEqual(Target(None, 10263), found[4].secure)
        self.assertEqual(Target(None, 10263), found[6].secure)
        self.assertEqual(Target(ip_address("127.0.0.1"), 10264), found[4].insecure)


class OtherAddressesTests(SynchronousTestCase):
    """Additional addresses to listen on."""

    def test_the_other_family(self):
        """The loopback address of the family that is not bound."""
        self.assertEqual(["127.0.0.1"], other_family_addresses(settings(), "2001:db8::1"))
        self.assertEqual([], other_family_addresses(settings(), "::"))

    def test_probe(self):
        """An unprivileged port shows whether the family exists."""
        bound = []

        class Probe(socket.socket):
            def bind(self, address):
                bound.append(address)

        self.patch(module.socket, "socket", Probe)
        other_family_addresses(settings(), "2001:db8::1")
        self.assertEqual([("127.0.0.1", 0)], bound)

    def test_nothing_is_redirected(self):
        """Without redirections one listener suffices."""
        for off in (
            settings("--enable-iptables=false"),
            settings("--standalone", "--state-dir=S"),
        ):
            self.assertEqual([], other_family_addresses(off, "2001:db8::1"))
