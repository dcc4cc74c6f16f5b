"""``twist yurttunnel-quickstart --check``, the first command of a newcomer."""

from __future__ import annotations

import os
import re
import resource
import signal

from twisted.internet import reactor

from benchmarks.ports import free_ports
from tests.e2e.kubectl import CHECK_TIMEOUT
from tests.e2e.programs import Program
from tests.e2e.support import EndToEndTestCase
from yurttunnel.quickstart.options import PORT_COUNT

STEPS = (
    "run",
    "logs",
    "exec",
    "attach",
    "port-forward",
    "cp",
    "metrics",
    "service",
    "autonomy",
    "delete",
)


class QuickstartTests(EndToEndTestCase):
    """Start, check and exit."""

    def setUp(self):
        """Create temporary directories below the test's."""
        made = super().setUp()
        self.patch(os, "environ", {**os.environ})
        return made

    def program(self, *flags: str) -> Program:
        """Prepare the command with free ports."""
        os.environ["TMPDIR"] = self.directory
        first = free_ports.take_row(PORT_COUNT)
        log_path = f"{self.directory}/quickstart.log"
        program = Program(
            reactor, ["yurttunnel-quickstart", "--port", str(first), *flags], log_path, first + 5
        )
        self.addCleanup(program.kill)
        return program

    async def test_check(self):
        """It exits with status 0 after a line for each step, and leaves nothing behind."""
        program = self.program("--check")
        program.start()
        status = await program.ended(CHECK_TIMEOUT)
        self.assertEqual(status, 0, program.log)
        steps = re.findall(r"(?m)^ok +([a-z-]+) +\d+\.\d{3} s  \S", program.log)
        self.assertEqual(tuple(steps), STEPS)
        self.assertEqual(program.forbidden_log_lines(), [])
        self.assertEqual(os.listdir(self.directory), ["quickstart.log"])

    async def test_port_in_use(self):
        """The error for a port in use has the port and the fix."""
        first = self.program()
        first.start()
        await self.eventually(lambda: "KUBECONFIG=" in first.log, "the first one is ready", 30)
        second = self.program("--check", "--port", first.arguments[2])
        second.start()
        self.assertNotEqual(await second.ended(20), 0)
        self.assertIn("choose another first port", second.log)
        self.assertNotIn("Traceback", second.log)
        self.assertIn(await first.stop(), (0, -15))
        self.assertEqual(os.listdir(self.directory), ["quickstart.log"])

    async def test_several_at_once(self):
        """Quickstarts that start at the same time without a flag choose different ports."""
        programs = [self.without_ports(f"{self.directory}/{number}.log") for number in range(3)]
        for program in programs:
            program.start()
        for program in programs:
            self.assertEqual(await program.ended(CHECK_TIMEOUT), 0, program.log)

    def without_ports(self, log_path: str) -> Program:
        """Prepare the check as in the README."""
        os.environ["TMPDIR"] = self.directory
        program = Program(reactor, ["yurttunnel-quickstart", "--check"], log_path, 0)
        program.use_yurttunnel_command()
        self.addCleanup(program.kill)
        return program

    async def test_terminal_closes(self):
        """When its terminal is closed it exits normally, and removes its directory."""
        program = self.program()
        program.use_pod_limits()
        program.start()
        await self.eventually(lambda: "KUBECONFIG=" in program.log, "it is ready", 30)
        soft, hard = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
        # As the programs raise it that it is made of.
        self.assertEqual(hard, soft)
        program.signal(signal.SIGHUP)
        self.assertEqual(await program.ended(20), 0)
        self.assertEqual(os.listdir(self.directory), ["quickstart.log"])
        self.assertEqual(program.forbidden_log_lines(), [])
