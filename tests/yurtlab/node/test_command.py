"""Exec: output and status for the client, and the command's end after the client's."""

from __future__ import annotations

import os
import re
import signal

from twisted.internet import reactor
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.waiting import until
from tests.yurtlab.node.support import FakeClient, descriptors, is_running, is_stopped, program
from yurtlab.node.command import Command
from yurtlab.node.interfaces import ICommandClient, ICommandSession


class CommandTests(TestCase):
    """One client, one command."""

    def run_command(self, what):
        """Run it for a client."""
        self.over = 0
        client = FakeClient()
        session = Command(reactor, what, self._over)
        session.client_ready(client)
        return session, client

    def _over(self):
        self.over += 1

    def test_is_a_session(self):
        """It provides the interface that the streaming protocols expect."""
        verifyObject(ICommandSession, Command(reactor, program("true"), list))
        verifyObject(ICommandClient, FakeClient())

    async def test_success(self):
        """Success is reported after all output."""
        _, client = self.run_command(program("sh", "-c", "echo out; echo err >&2"))
        self.assertEqual(await client.finished(), {"metadata": {}, "status": "Success"})
        self.assertEqual((client.stdout, client.stderr), (b"out\n", b"err\n"))
        self.assertEqual(self.over, 1)

    async def test_exit_code(self):
        """Another exit code is reported as kubectl expects it."""
        _, client = self.run_command(program("sh", "-c", "exit 42"))
        status = await client.finished()
        self.assertEqual(status["status"], "Failure")
        self.assertEqual(status["reason"], "NonZeroExitCode")
        self.assertEqual(status["details"]["causes"], [{"reason": "ExitCode", "message": "42"}])

    async def test_signal(self):
        """A command killed by a signal has the exit code 128 plus the signal's number."""
        _, client = self.run_command(program("sh", "-c", "kill -TERM $$"))
        status = await client.finished()
        self.assertEqual(status["details"]["causes"][0]["message"], "143")

    def test_not_found(self):
        """An unknown command fails at once, with the reason."""
        _, client = self.run_command(program("no-such"))
        self.assertEqual(client.status["reason"], "InternalError")
        self.assertIn(
            'exec: "no-such": executable file not found in $PATH', client.status["message"]
        )
        self.assertEqual(self.over, 1)

    async def test_input(self):
        """The command gets the input and its end."""
        session, client = self.run_command(program("cat", stdin=True))
        session.stdin_received(b"to and ")
        session.stdin_received(b"fro")
        session.stdin_ended()
        await client.finished()
        self.assertEqual(client.stdout, b"to and fro")

    async def test_slow_command(self):
        """A client is paused while its input is not read, and resumed afterwards."""
        session, client = self.run_command(
            program("sh", "-c", "kill -STOP $$; cat | wc -c", stdin=True)
        )
        session.stdin_received(bytes(500_000))
        self.assertTrue(client.stdin_paused)
        # A signal to go on that comes before it has stopped would be lost.
        await until(lambda: is_stopped(session._process.pid), "the command has stopped")
        session._process.signal(signal.SIGCONT)
        await until(lambda: not client.stdin_paused, "the client may go on")
        session.stdin_ended()
        await client.finished()
        self.assertEqual(client.stdout.split(), [b"500000"])

    async def test_command_that_reads_nothing(self):
        """A client whose input is never read is resumed: the end of the command waits there."""
        session, client = self.run_command(
            program(
                "sh", "-c", "read word; exec 0<&-; echo closed; read word < /dev/null", stdin=True
            )
        )
        session.stdin_received(b"word\n" + bytes(500_000))
        self.assertTrue(client.stdin_paused)
        await client.finished()
        self.assertFalse(client.stdin_paused)

    async def test_slow_client(self):
        """The command waits for a slow client, which gets all output."""
        _, client = self.run_command(program("head", "-c", "1000000", "/dev/zero"))
        client.source.pauseProducing()
        other = FakeClient()
        Command(reactor, program("true"), list).client_ready(other)
        await other.finished()
        self.assertIsNone(client.status)
        self.assertEqual(client.stdout, b"")
        client.source.resumeProducing()
        await client.finished()
        self.assertEqual(len(client.stdout), 1_000_000)

    async def test_client_goes(self):
        """The command is terminated when its client disconnects."""
        session, client = self.run_command(program("sh", "-c", "echo $$; sleep 1000"))
        await client.wait_for_output(b"\n")
        session.client_lost()
        await until(lambda: self.over, "the command is over")
        self.assertFalse(is_running(int(client.stdout)))
        self.assertIsNone(client.status)

    async def test_client_goes_from_shell(self):
        """So is an interactive shell, with the programs in it."""
        session, client = self.run_command(
            program("sh", "-i", stdin=True, terminal=True, PS1="> ", TERM="xterm")
        )
        session.stdin_received(b"sleep 1000 & echo pid $!.\n")
        # The terminal shows the command first.
        printed = await until(lambda: re.search(rb"pid (\d+)\.", client.stdout), "it began")
        session.client_lost()
        await until(lambda: self.over, "the shell is over")
        await until(lambda: not is_running(int(printed[1])), "its job is over")

    def test_client_goes_before(self):
        """A client that disconnects before it was ready leaves nothing behind."""
        self.over = 0
        Command(reactor, program("true"), self._over).client_lost()
        self.assertEqual(self.over, 1)

    async def test_size_before(self):
        """A size set before the command starts is its initial size."""
        client = FakeClient()
        what = program("stty", "size", stdin=True, terminal=True)
        session = Command(reactor, what, list)
        session.resized(132, 43)
        session.client_ready(client)
        await client.finished()
        self.assertEqual(client.stdout, b"43 132\r\n")

    async def test_many(self):
        """A hundred commands, ten at a time, all succeed and leave nothing behind."""
        _, warm = self.run_command(program("true"))
        await warm.finished()
        before = descriptors()
        for _ in range(10):
            clients = [self.run_command(program("echo", "x"))[1] for _ in range(10)]
            for client in clients:
                self.assertEqual((await client.finished())["status"], "Success")
                self.assertEqual(client.stdout, b"x\n")
        self.assertEqual(descriptors(), before)
        self.assertRaises(ChildProcessError, os.waitpid, -1, os.WNOHANG)
