"""Tests of kernel mode on kernels without some features, and beside another process."""

from __future__ import annotations

import errno
import os

from twisted.internet import reactor
from twisted.logger import capturedLogs

from tests.proxy.kernel.lab import CLUSTER
from tests.proxy.kernel.support import KernelTestCase
from tests.steering.firewall.fakes import FakePrograms
from tests.waiting import until
from yurttunnel.ops.programs import Programs
from yurttunnel.proxy.kernel import mode
from yurttunnel.proxy.kernel.availability import kernel_mode_available
from yurttunnel.proxy.kernel.marks import SUPERVISED
from yurttunnel.proxy.kernel.packet_log import PacketLog
from yurttunnel.steering.netlink import owned_table


def fail_to_read(log):
    """Fail like a socket that cannot be read."""
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


class OtherKernelTests(KernelTestCase):
    """Kernels and machines without some features."""

    async def test_available(self):
        """This machine supports everything, in both families; the check changes nothing."""
        # The process may still be creating its own table.
        await self.mode.stopService()
        await self.mode.rules.remove()
        before = self.lab.node.run("nft", "list", "ruleset")
        for version in (4, 6):
            self.assertIsNone(await kernel_mode_available(reactor, Programs(reactor), version))
        self.assertEqual(before, self.lab.node.run("nft", "list", "ruleset"))

    async def test_without_nft(self):
        """The error says what is not installed."""
        self.assertIn(
            "nft is not installed", await kernel_mode_available(reactor, FakePrograms(), 4)
        )

    async def test_a_kernel_without_tables_of_processes(self):
        """It is logged, and refusals are dropped all the same."""
        await self.mode.stopService()
        self.patch(owned_table, "_OWNER", 1 << 30)
        self.mode = self.new()
        with capturedLogs() as logged:
            self.mode.startService()
            self.serve(0)
            await self.apply(self.service(numbers=[0, 1]))
            await until(lambda: [each for each in logged if "Linux 5.12" in str(each)])
            await until(lambda: f"{SUPERVISED:#010x}" not in self.chain("watch-reset"))
        await self.until_served_by({"0"})

    def chain(self, name):
        """Return the rules of a chain."""
        return self.lab.node.run("nft", "list", "chain", "ip", "yurtproxy", name)

    async def test_another_process(self):
        """A second process does not watch, and reports why, until the first has ended."""
        other = self.new()
        other.startService()
        self.addCleanup(other.stopService)
        self.assertIn("another yurtproxy", other.problem)
        await self.mode.stopService()
        await until(lambda: other.problem is None)
        self.serve(0)
        self.mode = other
        await self.apply(self.service(numbers=[0, 1]))
        await self.until_served_by({"0"})

    async def test_a_packet_log_that_fails(self):
        """While it cannot be read, that is reported and refusals pass; then detection goes on."""
        self.patch(mode, "RETRY_SECONDS", 0.5)
        await self.apply(self.service(numbers=[0, 1]))
        failing = self.patch(PacketLog, "doRead", fail_to_read)
        with capturedLogs() as logged:
            trying = self.clients(1, CLUSTER[4]).addErrback(lambda _: None)
            await until(lambda: self.mode.problem is not None)
        failing.restore()
        problem = "cannot read the kernel's packet log: [Errno 12] Cannot allocate memory"
        self.assertEqual(problem, self.mode.problem)
        self.assertIn(problem, [each["error"] for each in logged if "error" in each])
        self.assertEqual(1, len(self.flushLoggedErrors(OSError)))
        await until(lambda: "watch-reset" not in self.listed())
        await until(lambda: self.mode.problem is None and "watch-reset" in self.listed())
        self.serve(0)
        await self.until_served_by({"0"})
        self.assertTrue(self.mode.ejections.is_ejected(*self.target(1)))
        await trying
