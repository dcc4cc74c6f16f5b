"""Tests of sets of addresses, in memory and in the kernel."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from ipaddress import ip_address

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.e2e.network.namespaces import run
from tests.steering.fakes import FakeAddressSets
from tests.steering.netlink.contract_address_sets import (
    NAME,
    NAME_6,
    AddressSetsContract,
    many,
    some,
)
from tests.steering.netlink.support import KernelTestCase, run_at_once
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interfaces import IAddressSets
from yurttunnel.steering.netlink.address_sets import AddressSets
from yurttunnel.steering.netlink.ipsets import MAX_ADDRESSES, Ipsets
from yurttunnel.steering.netlink.netlink_socket import NetlinkError, NetlinkSocket

_CAPABILITY_VERSION = 0x20080522
"""``_LINUX_CAPABILITY_VERSION_3``."""


def without_capabilities(job):
    """Run a job in a thread without capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = []

    def work():
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        nothing = (ctypes.c_uint32 * 6)()
        if libc.capset(header, nothing) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        result.append(run_at_once(job))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    return result[0]


class FakeAddressSetsTests(AddressSetsContract, SynchronousTestCase):
    """The fake behaves as the kernel does."""

    def setUp(self):
        """Make it."""
        self.sets = FakeAddressSets()

    def content(self, name):
        """Inspect it."""
        return self.sets.sets.get(name)

    def refer_to(self, name):
        """Mark it as in use."""
        self.sets.busy.add(name)

    def test_interface(self):
        """The fake provides its interface."""
        verifyObject(IAddressSets, self.sets)

    def test_failing_on_demand(self):
        """Every call fails while the test requests it."""
        self.sets.failure = SteeringFailed("it is broken")
        for call in (self.sets.put(NAME, 4, ()), self.sets.remove(NAME), self.sets.supported()):
            self.failureResultOf(call, SteeringFailed)
        self.assertEqual([("put", NAME), ("remove", NAME)], self.sets.calls)


class KernelAddressSetsTests(AddressSetsContract, KernelTestCase):
    """Sets in the kernel, which the ``ipset`` program shows."""

    def setUp(self):
        """Start without sets."""
        super().setUp()
        self.clock = Clock()
        self.sets = AddressSets(run_at_once, self.clock)

    def content(self, name):
        """Run ``ipset``."""
        if name not in run("ipset", "list", "-n").split():
            return None
        saved = (line.split() for line in run("ipset", "save", name).splitlines())
        return frozenset(ip_address(words[2]) for words in saved if words[0] == "add")

    def refer_to(self, name):
        """Create a rule."""
        self.rule("-A", name)

    def rule(self, change, name):
        """Create a rule that refers to a set, or remove it."""
        match = ("-m", "set", "--match-set", name, "dst", "-j", "ACCEPT")
        run("iptables", "-w", change, "OUTPUT", *match)

    def let_time_pass(self):
        """Let it retry until it gives up."""
        for _ in range(20):
            self.clock.advance(0.1)

    def test_interface(self):
        """The fake provides its interface."""
        verifyObject(IAddressSets, self.sets)

    def test_somebody_else_changes_it(self):
        """An added or removed address is detected, even if their number is the same."""
        self.put(many("10.0.0.1", 10))
        run("ipset", "del", NAME, "10.0.0.3")
        run("ipset", "add", NAME, "10.9.9.9")
        self.assertTrue(self.put(many("10.0.0.1", 10)))
        self.assertEqual(many("10.0.0.1", 10), self.content(NAME))

    def test_somebody_else_destroys_it(self):
        """It is created again."""
        self.put(some("10.0.0.1"))
        run("ipset", "destroy", NAME)
        self.assertTrue(self.put(some("10.0.0.1")))
        self.assertEqual(some("10.0.0.1"), self.content(NAME))

    def test_other_sets_are_left_alone(self):
        """Sets of other programs are left alone, whatever their names begin with."""
        run("ipset", "create", f"{NAME}-x", "hash:ip")
        run("ipset", "create", "theirs", "hash:net")
        run("ipset", "add", "theirs", "10.0.0.0/8")
        before = run("ipset", "save")
        self.put(some("10.0.0.1"))
        self.remove()
        self.assertEqual(before, run("ipset", "save"))

    def test_a_set_that_cannot_hold_all(self):
        """A set with other parameters is replaced while rules refer to it."""
        large = ("maxelem", str(MAX_ADDRESSES))
        for parameters in (
            ("maxelem", "10"),
            (*large, "timeout", "600"),
            (*large, "counters"),
            (*large, "comment"),
            (*large, "netmask", "24"),
        ):
            run("ipset", "create", NAME, "hash:ip", *parameters)
            run("ipset", "add", NAME, "10.0.0.1")
            self.refer_to(NAME)
            self.assertTrue(self.put(many("10.0.0.1", 100)))
            self.assertEqual(many("10.0.0.1", 100), self.content(NAME))
            self.assertEqual([NAME], run("ipset", "list", "-n").split())
            self.assertFalse(self.put(many("10.0.0.1", 100)))
            self.rule("-D", NAME)
            self.removed_in_the_end()

    def removed_in_the_end(self):
        """Remove a set whose rule has just been removed, which takes the kernel a moment."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            removal = self.sets.remove(NAME)
            self.let_time_pass()
            if removal.result is True:
                return
            self.failureResultOf(removal, SteeringFailed)
        self.fail("the set is in use for ever")

    def test_a_set_of_another_kind(self):
        """It is replaced, unless rules refer to it."""
        run("ipset", "create", NAME, "hash:net")
        self.assertTrue(self.put(some("10.0.0.1")))
        self.assertEqual(some("10.0.0.1"), self.content(NAME))
        run("ipset", "create", NAME_6, "hash:ip", "family", "inet")
        self.assertTrue(self.put(some("fd00::1"), NAME_6, 6))
        self.assertEqual(some("fd00::1"), self.content(NAME_6))
        self.assertEqual({NAME, NAME_6}, set(run("ipset", "list", "-n").split()))

    def test_a_set_of_another_kind_in_use(self):
        """The error says what to do."""
        run("ipset", "create", NAME, "hash:net")
        self.refer_to(NAME)
        failure = self.failureResultOf(self.sets.put(NAME, 4, some("10.0.0.1")), SteeringFailed)
        self.assertIn(f"cannot change the set {NAME}", str(failure.value))
        self.assertIn("remove those rules", str(failure.value))

    def test_a_set_of_another_kind_for_which_there_is_no_room(self):
        """It stays if the kernel rejects the change for a reason other than its type."""

        def refuse(table, name, other):
            raise NetlinkError(errno.ENOMEM)

        run("ipset", "create", NAME, "hash:net")
        self.patch(Ipsets, "swap", refuse)
        failure = self.failureResultOf(self.sets.put(NAME, 4, some("10.0.0.1")), SteeringFailed)
        self.assertIn("ENOMEM", str(failure.value))
        self.assertIn("hash:net", run("ipset", "list", NAME))

    def test_leftovers_of_a_crash(self):
        """A set that was to replace another is removed."""
        self.put(some("10.0.0.1"))
        for action in (lambda: self.put(some("10.0.0.1")), self.remove):
            run("ipset", "create", f"{NAME}-new", "hash:ip")
            self.assertTrue(action())
            self.assertNotIn(f"{NAME}-new", run("ipset", "list", "-n").split())

    def test_removal_waits_for_the_kernel(self):
        """The kernel releases rules a moment after their removal: it is retried."""
        self.put(some("10.0.0.1"))
        # Unlike a rule, a list of sets releases at once when it is told to.
        run("ipset", "create", "list", "list:set")
        run("ipset", "add", "list", NAME)
        removal = self.sets.remove(NAME)
        self.clock.advance(0.1)
        self.assertNoResult(removal)
        run("ipset", "del", "list", NAME)
        self.clock.advance(0.1)
        self.assertTrue(self.successResultOf(removal))
        self.assertIsNone(self.content(NAME))

    def test_removal_does_not_wait_for_ever(self):
        """What refers to it for a second belongs to another program."""
        self.put(some("10.0.0.1"))
        run("ipset", "create", "list", "list:set")
        run("ipset", "add", "list", NAME)
        self.addCleanup(run, "ipset", "destroy", "list")
        removal = self.sets.remove(NAME)
        self.clock.pump([0.1] * 8)
        self.assertNoResult(removal)
        self.clock.advance(0.1)
        self.failureResultOf(removal, SteeringFailed)

    def test_an_address_that_no_set_accepts(self):
        """The error names the address."""
        failure = self.failureResultOf(self.sets.put(NAME, 4, some("0.0.0.0")), SteeringFailed)
        self.assertIn("0.0.0.0", str(failure.value))

    def test_without_the_right_to(self):
        """The error says which capability is required."""
        sets = AddressSets(without_capabilities, self.clock)
        for call in (sets.put(NAME, 4, some("10.0.0.1")), sets.remove(NAME), sets.supported()):
            failure = self.failureResultOf(call, SteeringFailed)
            self.assertIn("NET_ADMIN", str(failure.value))


class OtherKernelTests(KernelTestCase):
    """Kernels without some features, as far as their replies show."""

    def setUp(self):
        """Have every request fail with ``code``."""
        super().setUp()
        self.sets = AddressSets(run_at_once, Clock())
        self.code = errno.EINVAL

        def refuse(netlink, request):
            raise NetlinkError(self.code)

        for method in ("get", "dump", "change"):
            self.patch(NetlinkSocket, method, refuse)

    def test_a_kernel_without_sets(self):
        """The error says so, and what to do."""
        self.assertFalse(self.successResultOf(self.sets.supported()))
        failure = self.failureResultOf(self.sets.put(NAME, 4, ()), SteeringFailed)
        self.assertIn("no sets of addresses", str(failure.value))
        self.assertIn("--intercept-match cloud-return", str(failure.value))

    def test_unknown_code(self):
        """It is passed on."""
        for code, expected in ((4999, "error 4999"), (errno.ENOMEM, "ENOMEM")):
            self.code = code
            for call in (
                self.sets.put(NAME, 4, ()),
                self.sets.supported(),
                self.sets.remove(NAME),
            ):
                failure = self.failureResultOf(call, SteeringFailed)
                self.assertIn(expected, str(failure.value))

    def test_a_set_that_cannot_be_read(self):
        """It is not treated as missing, whatever else is possible with it."""

        def refuse(netlink, request):
            raise NetlinkError(errno.ENOMEM)

        self.patch(NetlinkSocket, "get", lambda netlink, request: b"")
        self.patch(NetlinkSocket, "change", lambda netlink, request: None)
        self.patch(NetlinkSocket, "change_all", lambda netlink, requests: None)
        self.patch(NetlinkSocket, "dump", refuse)
        failure = self.failureResultOf(self.sets.put(NAME, 4, ()), SteeringFailed)
        self.assertIn("ENOMEM", str(failure.value))

    def test_a_kernel_without_the_match(self):
        """There may be sets to which no rule can refer."""

        def get(netlink, request):
            if b"set\0" in request:
                raise NetlinkError(self.code)
            return b""

        self.patch(NetlinkSocket, "get", get)
        self.code = errno.ENOENT
        self.assertFalse(self.successResultOf(self.sets.supported()))
        self.code = errno.EINVAL  # it has no nftables to query
        self.assertTrue(self.successResultOf(self.sets.supported()))
