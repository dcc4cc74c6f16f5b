"""The search for leftover processes, and the guardian that outlives the node."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid

from twisted.internet import reactor
from twisted.logger import capturedLogs
from twisted.trial.unittest import TestCase

from tests.processes import children_of
from tests.waiting import until
from tests.yurtlab.node.support import PYTHON, Ran, is_running, program
from yurtlab.node import leftovers
from yurtlab.node.leftovers import (
    VARIABLE,
    Found,
    kill_all,
    kill_session,
    marked_processes,
    running,
)
from yurtlab.node.node import Guardian

# A node that runs one process with a guardian, and says which.
NODE = """
import sys
from twisted.internet import reactor
from yurtlab.node.node import Guardian
from yurtlab.node.leftovers import VARIABLE
from yurtlab.node.processes import Process, Program

def begin():
    Guardian(reactor, sys.argv[1]).startService()
    mark = {VARIABLE: f"{sys.argv[1]}/pod/main/0", "PATH": "/usr/bin:/bin"}
    script = (
        "trap '' TERM HUP; echo $$; setsid sleep 1000 & echo $!;"
        " env -i setsid sleep 1000 & echo $!; sleep 1000"
    )
    Process(reactor, Program(["sh", "-c", script], mark, "/"), said, print)

def said(stream, data):
    sys.stdout.write(data.decode())
    sys.stdout.flush()

reactor.callWhenRunning(begin)
reactor.run()
"""


class LeftoversTests(TestCase):
    """Processes by their mark."""

    def setUp(self):
        """Choose a unique mark."""
        self.run_name = uuid.uuid4().hex

    def marked(self, script, mark="pod/main/0"):
        """Run a script with a mark."""
        ran = Ran(program("sh", "-c", script, **{VARIABLE: f"{self.run_name}/{mark}"}))
        self.addCleanup(self.end, ran)
        return ran

    async def end(self, ran):
        """Kill the remaining processes."""
        kill_all(f"{self.run_name}/")
        await ran.ended()

    async def test_found(self):
        """Exactly the processes started by the marked one are found."""
        ran = self.marked("setsid sleep 1000 & env -i sleep 1000 & echo ok; wait")
        other = self.marked("echo ok; exec sleep 1000", "pod/other/0")
        await ran.wait_for_output(b"ok")
        await other.wait_for_output(b"ok")
        own = f"{self.run_name}/pod/main/"
        await until(lambda: len(marked_processes(running(), own)) == 3, "all three are there")
        (found,) = marked_processes(running(), f"{self.run_name}/pod/other/")
        self.assertEqual(found.pid, other.process.pid)
        self.assertEqual(len(marked_processes(running(), f"{self.run_name}/")), 4)
        self.assertEqual(marked_processes(running(), f"{self.run_name}/pod/mai/"), [])

    async def test_descendants(self):
        """A descendant without the mark and the session is found while its parents run."""
        ran = self.marked("env -i setsid sh -c 'sleep 1000 & wait' & echo ok; wait")
        await ran.wait_for_output(b"ok")
        own = f"{self.run_name}/pod/main/"
        await until(lambda: len(marked_processes(running(), own)) == 3, "all three are there")
        pids = [one.pid for one in marked_processes(running(), own)]
        kill_all(own)
        await until(lambda: not any(map(is_running, pids)), "they have ended")

    def scans(self, *found):
        """Return how often processes are listed when these are running."""
        scans = []

        def running():
            scans.append(found)
            return list(found)

        self.patch(leftovers, "running", running)
        kill_all(self.run_name)
        return len(scans)

    def test_unsettled(self):
        """If a process has no environment yet, processes are listed once more only."""
        self.assertEqual(self.scans(Found(1, 0, 1, "", False)), 1)
        self.assertEqual(self.scans(Found(1, 0, 1, "", True)), 2)

    async def test_killed(self):
        """Processes are killed, also if they ignore signals."""
        ran = self.marked("trap '' TERM HUP; sleep 1000 & setsid sleep 1000 & echo ok; wait")
        await ran.wait_for_output(b"ok")
        kill_all(f"{self.run_name}/pod/")
        self.assertEqual(await ran.ended(), 137)
        await until(lambda: not marked_processes(running(), self.run_name), "nothing is left")

    async def test_session(self):
        """Exactly the processes of a session are killed."""
        ran = self.marked("sleep 1000 & echo ok; wait")
        other = self.marked("echo ok; exec sleep 1000")
        await ran.wait_for_output(b"ok")
        await other.wait_for_output(b"ok")
        kill_session(ran.process.pid)
        self.assertEqual(await ran.ended(), 137)
        await until(
            lambda: len(marked_processes(running(), self.run_name)) == 1, "no other is left"
        )
        (left,) = marked_processes(running(), self.run_name)
        self.assertEqual(left.pid, other.process.pid)


class GuardianTests(TestCase):
    """The guardian."""

    async def test_stop(self):
        """When the guardian stops, all processes of the run are killed."""
        run = uuid.uuid4().hex
        guardian = Guardian(reactor, run)
        guardian.startService()
        ran = Ran(program("sleep", "1000", **{VARIABLE: f"{run}/pod/main/0"}))
        await guardian.stopService()
        self.assertEqual(await ran.ended(), 137)
        self.assertRaises(ChildProcessError, os.waitpid, -1, os.WNOHANG)

    async def test_settled(self):
        """A started guardian does not look like a process that executes another program."""
        guardian = Guardian(reactor, uuid.uuid4().hex)
        guardian.startService()
        self.addCleanup(guardian.stopService)
        pid = guardian._process.pid

        def is_settled():
            (found,) = [one for one in running() if one.pid == pid]
            return not found.unsettled

        # Its start ends when the kernel begins to replace the program.
        await until(is_settled, "its environment is seen")

    async def test_node_is_killed(self):
        """When the node is killed, none of its processes survives, nor does the guardian."""
        run = uuid.uuid4().hex
        self.addCleanup(kill_all, run)
        node = subprocess.Popen([PYTHON, "-c", NODE, run], stdout=subprocess.PIPE)
        self.addCleanup(node.stdout.close)
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        os.set_blocking(node.stdout.fileno(), False)
        said = bytearray()

        def listen():
            said.extend(node.stdout.read() or b"")
            return said.count(b"\n") == 3

        await until(listen, "all three processes are there")
        pids = [int(line) for line in said.split()]
        guardians = children_of(node.pid) - set(pids)
        self.assertTrue(all(map(is_running, pids)))
        self.assertEqual(len(guardians), 1)
        node.send_signal(signal.SIGKILL)
        await until(lambda: not any(map(is_running, [*pids, *guardians])), "all have ended")

    async def test_guardian_is_killed(self):
        """When the guardian ends by itself, the log says what that means."""
        guardian = Guardian(reactor, uuid.uuid4().hex)
        guardian.startService()
        with capturedLogs() as events:
            guardian._process.signal(signal.SIGKILL)
            await until(lambda: events, "it is told")
        self.assertIn("survive", events[0]["log_format"])
        await guardian.stopService()
