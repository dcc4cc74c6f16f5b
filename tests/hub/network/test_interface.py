"""The interface for pods: in a network namespace of the kernel, and with a fake for other cases."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from pathlib import Path
from unittest.mock import patch

from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.e2e.cluster.network import ClusterNetwork
from tests.e2e.network.namespaces import run
from tests.logged import Logged
from yurttunnel.hub.network import interface
from yurttunnel.hub.network.interface import ALIAS, INTERVAL, NodeInterface, ensure, remove
from yurttunnel.hub.network.links import Link, Links
from yurttunnel.hub.settings import InterfaceSettings
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.netlink_socket import NetlinkError
from yurttunnel.steering.netlink.worker import KernelWorker

SETTINGS = InterfaceSettings("yurthub-dummy0", ip_address("169.254.2.1"))
SETTINGS_6 = InterfaceSettings("yurthub-dummy0", ip_address("fd00::2:1"))


class KernelTests(SynchronousTestCase):
    """The effect on the kernel."""

    def setUp(self) -> None:
        """Enter a new network namespace."""
        network = ClusterNetwork()
        self.addCleanup(network.close)
        Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("1")

    def addresses(self) -> list[str]:
        """Return the addresses of the interface."""
        shown = run("ip", "-oneline", "address", "show", "dev", SETTINGS.name).splitlines()
        return [line.split()[3] for line in shown if " fe80" not in line]

    def test_made(self) -> None:
        """It is created with its single address, set up, and no further change is needed."""
        done = ensure(SETTINGS)
        self.assertIn("169.254.2.1 added", done)
        self.assertIn("set up", done)
        self.assertEqual(["169.254.2.1/32"], self.addresses())
        self.assertIn(f"alias {ALIAS}", run("ip", "link", "show", SETTINGS.name))
        self.assertIn(",UP", run("ip", "link", "show", SETTINGS.name).replace("<UP", ",UP"))
        self.assertEqual([], ensure(SETTINGS))

    def test_ipv6(self) -> None:
        """An IPv6 address can be used at once."""
        ensure(SETTINGS_6)
        self.assertEqual(["fd00::2:1/128"], self.addresses())
        self.assertNotIn("tentative", run("ip", "address", "show", SETTINGS.name))
        self.assertEqual([], ensure(SETTINGS_6))

    def test_ipv6_that_is_off(self) -> None:
        """The error says that IPv6 is disabled, and its fix works."""
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        error = str(self.assertRaises(SteeringFailed, ensure, SETTINGS_6))
        self.assertNotIn("NET_ADMIN", error)
        _, _, setting = error.rpartition("sysctl ")
        name, _, value = setting.partition("=")
        Path("/proc/sys", *name.split(".")).write_text(value)
        self.assertEqual(["fd00::2:1 added", "set up"], ensure(SETTINGS_6))

    def test_answers(self) -> None:
        """This machine accepts packets to the address."""
        ensure(SETTINGS)
        self.assertIn("local 169.254.2.1", run("ip", "route", "get", "169.254.2.1"))

    def test_repaired(self) -> None:
        """Another address is removed, a missing one added, and a missing interface created."""
        ensure(SETTINGS)
        run("ip", "address", "flush", "dev", SETTINGS.name)
        run("ip", "address", "add", "169.254.9.9/24", "dev", SETTINGS.name)
        self.assertEqual(["169.254.9.9/24 removed", "169.254.2.1 added"], ensure(SETTINGS))
        run("ip", "link", "set", SETTINGS.name, "down")
        self.assertEqual(["set up"], ensure(SETTINGS))
        run("ip", "link", "delete", SETTINGS.name)
        self.assertIn("169.254.2.1 added", ensure(SETTINGS))

    def test_several(self) -> None:
        """Other addresses are removed, including those that the kernel removes itself."""
        ensure(SETTINGS)
        added = [f"192.0.2.{number}/24" for number in range(1, 9)]
        for each in added:
            run("ip", "address", "add", each, "dev", SETTINGS.name)
        self.assertEqual([f"{each} removed" for each in added], sorted(ensure(SETTINGS)))
        self.assertEqual(["169.254.2.1/32"], self.addresses())
        with Links.opened() as links:
            link = links.find(SETTINGS.name)
            assert link is not None
            links.remove_address(link, ip_address("192.0.2.1"), 24)

    def test_removed(self) -> None:
        """A hub's interface is removed, also by another process."""
        ensure(SETTINGS)
        remove(SETTINGS)
        self.assertNotIn(SETTINGS.name, run("ip", "link"))
        remove(SETTINGS)

    def test_interface_of_another_program(self) -> None:
        """An operator's interface gets the address, and is not removed."""
        run("ip", "tuntap", "add", SETTINGS.name, "mode", "tap")
        self.assertEqual(["169.254.2.1 added", "set up"], ensure(SETTINGS))
        remove(SETTINGS)
        self.assertEqual(["169.254.2.1/32"], self.addresses())

    def test_hardware(self) -> None:
        """An interface of another kind is not changed."""
        error = self.assertRaises(SteeringFailed, ensure, InterfaceSettings("lo", SETTINGS.address))
        self.assertIn("--dummy-if-name", str(error))
        self.assertNotIn("169.254", run("ip", "address", "show", "lo"))


class FakeLinks:
    """Interfaces in memory; the kernel rejects a kind if an error is set for it."""

    def __init__(self, dummy: int = 0, tap: int = 0) -> None:
        self.dummy, self.tap = dummy, tap
        self.link: Link | None = None
        self.calls: list[object] = []

    def opened(self):
        """Return this object for a block."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, *reason: object) -> None:
        self.calls.append("closed")

    def find(self, name):
        """Return the interface."""
        return self.link

    def add_dummy(self, name):
        """Create a dummy interface, or fail."""
        if self.dummy:
            raise NetlinkError(self.dummy)
        self.calls.append("dummy")
        self.link = Link(7, "dummy", "", False)

    def add_tap(self, name):
        """Create a TAP device, or fail."""
        if self.tap:
            raise OSError(self.tap, "refused")
        self.calls.append("tap")
        self.link = Link(7, "tun", "", False)

    def addresses(self, link, version):
        """Return no addresses."""
        return set()

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name)


class KindTests(SynchronousTestCase):
    """Dummy or TAP: one of them may be missing."""

    def ensure(self, links: FakeLinks) -> list[str]:
        """Create the interface in the fake kernel."""
        with (
            patch.object(interface, "Links", links),
            patch.object(interface, "add_tap", links.add_tap),
        ):
            return ensure(SETTINGS)

    def test_dummy(self) -> None:
        """If the kernel has dummy interfaces, it is one."""
        links = FakeLinks()
        self.assertEqual("created as a dummy", self.ensure(links)[0])
        self.assertEqual(["dummy", "mark", "add_address", "set_up", "closed"], links.calls)

    def test_tap(self) -> None:
        """Otherwise it is a TAP device."""
        links = FakeLinks(errno.EOPNOTSUPP)
        self.assertEqual("created as a TAP device", self.ensure(links)[0])
        self.assertEqual(["tap", "mark", "add_address", "set_up", "closed"], links.calls)

    def test_not_permitted(self) -> None:
        """Without permission the error names what is missing, on one line."""
        error = str(self.assertRaises(SteeringFailed, self.ensure, FakeLinks(errno.EPERM)))
        self.assertIn("NET_ADMIN", error)
        self.assertNotIn("\n", error)

    def test_neither(self) -> None:
        """If neither exists, the error says how to get one."""
        links = FakeLinks(errno.EOPNOTSUPP, tap=errno.ENOENT)
        self.assertIn("modprobe", str(self.assertRaises(SteeringFailed, self.ensure, links)))


class LifeTests(SynchronousTestCase):
    """The service that maintains the interface."""

    def setUp(self) -> None:
        """Create it, with a kernel that the test controls."""
        self.clock = Clock()
        self.result: object = ["made"]
        self.jobs: list[str] = []
        self.interface = NodeInterface(self.clock, SETTINGS, self.run_job)
        self.ready: list[int] = []
        self.interface.on_ready.append(lambda: self.ready.append(1))
        self.refused: list[int] = []
        self.interface.on_refused.append(lambda: self.refused.append(1))
        self.warnings = Logged(self, level=LogLevel.warn)

    def run_job(self, job) -> Deferred:
        """Run a job synchronously."""
        self.jobs.append(job.func.__name__)
        return fail(self.result) if isinstance(self.result, Exception) else succeed(self.result)

    def test_maintained(self) -> None:
        """It is checked within a minute; callbacks for the address are called."""
        self.assertLessEqual(INTERVAL, 60)
        self.interface.startService()
        self.assertIsNone(self.interface.problem())
        self.assertEqual([1], self.ready)
        self.result = []
        self.clock.advance(INTERVAL)
        self.assertEqual([1], self.ready)
        self.result = ["169.254.2.1 added"]
        self.clock.advance(INTERVAL)
        self.assertEqual([1, 1], self.ready)
        self.assertEqual([], self.refused)
        self.successResultOf(self.interface.stopService())
        self.assertEqual(["ensure", "ensure", "ensure", "remove"], self.jobs)

    def test_lost(self) -> None:
        """A failed repair is logged once, until it succeeds."""
        self.interface.startService()
        self.result = SteeringFailed("not permitted")
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(([1], [1]), (self.ready, self.refused))
        self.result = []
        self.clock.advance(INTERVAL)
        self.assertEqual(([1, 1], [1]), (self.ready, self.refused))
        self.successResultOf(self.interface.stopService())

    def test_rejected(self) -> None:
        """A failed creation is logged once, and retried."""
        self.result = SteeringFailed("not permitted")
        self.interface.startService()
        for _ in range(3):
            self.clock.advance(INTERVAL)
        self.assertEqual("not permitted", self.interface.problem())
        self.assertEqual(1, len(self.warnings), self.warnings)
        self.assertIn("pods with their own network", self.warnings[0])
        self.result = ["made"]
        self.clock.advance(INTERVAL)
        self.assertIsNone(self.interface.problem())
        self.assertEqual(([1], [1]), (self.ready, self.refused))
        self.result = SteeringFailed("cannot be removed")
        self.successResultOf(self.interface.stopService())
        self.assertEqual(
            ["not permitted", "cannot be removed"], [t.split(";")[0] for t in self.warnings]
        )


class ThreadTests(TestCase):
    """With the thread that waits for the kernel."""

    async def test_whole(self) -> None:
        """It is created and removed with the service."""
        network = ClusterNetwork()
        self.addCleanup(network.close)
        there: Deferred[None] = Deferred()
        node = NodeInterface(reactor, SETTINGS, KernelWorker(reactor).run)
        node.on_ready.append(lambda: there.callback(None))
        node.startService()
        await there
        self.assertIn("169.254.2.1/32", run("ip", "address", "show", SETTINGS.name))
        await node.stopService()
        self.assertNotIn(SETTINGS.name, run("ip", "link"))
