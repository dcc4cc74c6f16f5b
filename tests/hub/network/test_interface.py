"""The interface for pods: in a network of its own by the kernel, and with a fake where it lacks."""

from __future__ import annotations

import errno
from ipaddress import ip_address
from pathlib import Path
from unittest.mock import patch

from twisted.internet import reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase, TestCase

from tests.e2e.network.namespaces import Namespace, run
from yurttunnel.hub.network import interface
from yurttunnel.hub.network.interface import ALIAS, INTERVAL, NodeInterface, ensure, remove
from yurttunnel.hub.network.links import Link, Links
from yurttunnel.hub.settings import InterfaceSettings
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.conversation import KernelRefused
from yurttunnel.steering.netlink.worker import KernelWorker

SETTINGS = InterfaceSettings("yurthub-dummy0", ip_address("169.254.2.1"))
SETTINGS_6 = InterfaceSettings("yurthub-dummy0", ip_address("fd00::2:1"))


class KernelTests(SynchronousTestCase):
    """What the kernel is brought to."""

    def setUp(self) -> None:
        """Enter a network of its own."""
        former, own = Namespace(current=True), Namespace()
        for each in (former.close, own.close, former.enter):
            self.addCleanup(each)
        own.enter()
        run("ip", "link", "set", "lo", "up")

    def addresses(self) -> list[str]:
        """Return the addresses of the interface."""
        shown = run("ip", "-oneline", "address", "show", "dev", SETTINGS.name).splitlines()
        return [line.split()[3] for line in shown if " fe80" not in line]

    def test_made(self) -> None:
        """It is made with its one address, set up, and nothing is left to be done."""
        done = ensure(SETTINGS)
        self.assertIn("169.254.2.1 added", done)
        self.assertIn("set up", done)
        self.assertEqual(["169.254.2.1/32"], self.addresses())
        self.assertIn(f"alias {ALIAS}", run("ip", "link", "show", SETTINGS.name))
        self.assertIn(",UP", run("ip", "link", "show", SETTINGS.name).replace("<UP", ",UP"))
        self.assertEqual([], ensure(SETTINGS))

    def test_ipv6(self) -> None:
        """An address of IPv6 can be used at once."""
        ensure(SETTINGS_6)
        self.assertEqual(["fd00::2:1/128"], self.addresses())
        self.assertNotIn("tentative", run("ip", "address", "show", SETTINGS.name))
        self.assertEqual([], ensure(SETTINGS_6))

    def test_ipv6_that_is_off(self) -> None:
        """It is said what is off, and that does."""
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
        error = str(self.assertRaises(SteeringFailed, ensure, SETTINGS_6))
        self.assertNotIn("NET_ADMIN", error)
        _, _, setting = error.rpartition("sysctl ")
        name, _, value = setting.partition("=")
        Path("/proc/sys", *name.split(".")).write_text(value)
        self.assertEqual(["fd00::2:1 added", "set up"], ensure(SETTINGS_6))

    def test_answers(self) -> None:
        """This machine takes what is sent to the address."""
        ensure(SETTINGS)
        self.assertIn("local 169.254.2.1", run("ip", "route", "get", "169.254.2.1"))

    def test_repaired(self) -> None:
        """A foreign address goes, a missing one comes back, and so does the whole interface."""
        ensure(SETTINGS)
        run("ip", "address", "flush", "dev", SETTINGS.name)
        run("ip", "address", "add", "169.254.9.9/24", "dev", SETTINGS.name)
        self.assertEqual(["169.254.9.9/24 removed", "169.254.2.1 added"], ensure(SETTINGS))
        run("ip", "link", "set", SETTINGS.name, "down")
        self.assertEqual(["set up"], ensure(SETTINGS))
        run("ip", "link", "delete", SETTINGS.name)
        self.assertIn("169.254.2.1 added", ensure(SETTINGS))

    def test_several(self) -> None:
        """Foreign addresses of one network go, those that go with the first of them, too."""
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
        """What a hub has made is removed, also by a process that has not made it."""
        ensure(SETTINGS)
        remove(SETTINGS)
        self.assertNotIn(SETTINGS.name, run("ip", "link"))
        remove(SETTINGS)

    def test_somebody_elses(self) -> None:
        """What an operator has made gets the address, and stays in the end."""
        run("ip", "tuntap", "add", SETTINGS.name, "mode", "tap")
        self.assertEqual(["169.254.2.1 added", "set up"], ensure(SETTINGS))
        remove(SETTINGS)
        self.assertEqual(["169.254.2.1/32"], self.addresses())

    def test_hardware(self) -> None:
        """What is no interface of this sort is left alone."""
        error = self.assertRaises(SteeringFailed, ensure, InterfaceSettings("lo", SETTINGS.address))
        self.assertIn("--dummy-if-name", str(error))
        self.assertNotIn("169.254", run("ip", "address", "show", "lo"))


class FakeLinks:
    """Interfaces in memory; the kernel refuses those of either kind, if an error is set for it."""

    def __init__(self, dummy: int = 0, tap: int = 0) -> None:
        self.dummy, self.tap = dummy, tap
        self.link: Link | None = None
        self.calls: list[object] = []

    def opened(self):
        """Be what is spoken to in a block."""
        return self

    def __enter__(self):
        return self

    def __exit__(self, *reason: object) -> None:
        self.calls.append("closed")

    def find(self, name):
        """Return the interface."""
        return self.link

    def add_dummy(self, name):
        """Make one, or refuse."""
        if self.dummy:
            raise KernelRefused(self.dummy)
        self.calls.append("dummy")
        self.link = Link(7, "dummy", "", False)

    def add_tap(self, name):
        """Make the other."""
        if self.tap:
            raise OSError(self.tap, "refused")
        self.calls.append("tap")
        self.link = Link(7, "tun", "", False)

    def addresses(self, link, version):
        """Return none."""
        return set()

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name)


class KindTests(SynchronousTestCase):
    """Dummy or TAP: here one of them may be missing."""

    def ensure(self, links: FakeLinks) -> list[str]:
        """Have the interface in a kernel of the test's."""
        with (
            patch.object(interface, "Links", links),
            patch.object(interface, "add_tap", links.add_tap),
        ):
            return ensure(SETTINGS)

    def test_dummy(self) -> None:
        """Where the kernel has dummy interfaces, it is one."""
        links = FakeLinks()
        self.assertEqual("made, as a dummy", self.ensure(links)[0])
        self.assertEqual(["dummy", "mark", "add_address", "set_up", "closed"], links.calls)

    def test_tap(self) -> None:
        """Where it has none, it is a TAP device."""
        links = FakeLinks(errno.EOPNOTSUPP)
        self.assertEqual("made, as a TAP device", self.ensure(links)[0])
        self.assertEqual(["tap", "mark", "add_address", "set_up", "closed"], links.calls)

    def test_not_permitted(self) -> None:
        """What is not permitted says what is missing, on one line."""
        error = str(self.assertRaises(SteeringFailed, self.ensure, FakeLinks(errno.EPERM)))
        self.assertIn("NET_ADMIN", error)
        self.assertNotIn("\n", error)

    def test_neither(self) -> None:
        """Where there is neither, it says how to get one."""
        links = FakeLinks(errno.EOPNOTSUPP, tap=errno.ENOENT)
        self.assertIn("modprobe", str(self.assertRaises(SteeringFailed, self.ensure, links)))


class LifeTests(SynchronousTestCase):
    """The part of the process that looks after it."""

    def setUp(self) -> None:
        """Make it, with a kernel that does what the test says."""
        self.clock = Clock()
        self.result: object = ["made"]
        self.jobs: list[str] = []
        self.interface = NodeInterface(self.clock, SETTINGS, self.run_job)
        self.ready: list[int] = []
        self.interface.on_ready.append(lambda: self.ready.append(1))
        self.refused: list[int] = []
        self.interface.on_refused.append(lambda: self.refused.append(1))
        self.told: list[str] = []
        globalLogPublisher.addObserver(observer := self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def observe(self, event) -> None:
        """Keep warnings."""
        if event["log_level"].name == "warn":
            self.told.append(formatEvent(event))

    def run_job(self, job) -> Deferred:
        """Answer at once."""
        self.jobs.append(job.func.__name__)
        return fail(self.result) if isinstance(self.result, Exception) else succeed(self.result)

    def test_kept(self) -> None:
        """It is looked at again within a minute; who waits for the address is told."""
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
        """What cannot be repaired is told once, until it is back."""
        self.interface.startService()
        self.result = SteeringFailed("not permitted")
        self.clock.pump([INTERVAL] * 3)
        self.assertEqual(([1], [1]), (self.ready, self.refused))
        self.result = []
        self.clock.advance(INTERVAL)
        self.assertEqual(([1, 1], [1]), (self.ready, self.refused))
        self.successResultOf(self.interface.stopService())

    def test_refused(self) -> None:
        """What cannot be had is told once, and tried again."""
        self.result = SteeringFailed("not permitted")
        self.interface.startService()
        for _ in range(3):
            self.clock.advance(INTERVAL)
        self.assertEqual("not permitted", self.interface.problem())
        self.assertEqual(1, len(self.told), self.told)
        self.assertIn("pods with their own network", self.told[0])
        self.result = ["made"]
        self.clock.advance(INTERVAL)
        self.assertIsNone(self.interface.problem())
        self.assertEqual(([1], [1]), (self.ready, self.refused))
        self.result = SteeringFailed("cannot be removed")
        self.successResultOf(self.interface.stopService())
        self.assertEqual(
            ["not permitted", "cannot be removed"], [t.split(";")[0] for t in self.told]
        )


class ThreadTests(TestCase):
    """With the thread that waits for the kernel."""

    async def test_whole(self) -> None:
        """It comes and goes with the service."""
        former, own = Namespace(current=True), Namespace()
        for each in (former.close, own.close, former.enter):
            self.addCleanup(each)
        own.enter()
        there: Deferred[None] = Deferred()
        node = NodeInterface(reactor, SETTINGS, KernelWorker(reactor).run)
        node.on_ready.append(lambda: there.callback(None))
        node.startService()
        await there
        self.assertIn("169.254.2.1/32", run("ip", "address", "show", SETTINGS.name))
        await node.stopService()
        self.assertNotIn(SETTINGS.name, run("ip", "link"))
