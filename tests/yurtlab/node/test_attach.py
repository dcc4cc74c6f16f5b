"""Attach: several clients of one process, its input, its terminal, and slow clients."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.yurtlab.node.support import PYTHON, FakeClient, World, container
from yurtlab.node.attach import STALL_SECONDS, Attachment
from yurtlab.node.interfaces import ICommandSession

SUCCESS = {"metadata": {}, "status": "Success"}


class AttachTests(TestCase):
    """Clients of a container's process."""

    def setUp(self):
        """Create the world."""
        self.world = World(self)

    async def running(self, script, **given):
        """Run a container, and return it."""
        pod = self.world.pod(container(script, **given), restartPolicy="Never")
        await self.world.until_phase("Running")
        return pod.find("")

    def attach(self, to, stdin=True):
        """Attach a client."""
        session, client = Attachment(to.attachments, stdin), FakeClient()
        session.client_ready(client)
        return session, client

    async def wait_for_output(self, client, text):
        """Wait for output."""
        await self.world.reactor.until(lambda: text in client.stdout, f"{text!r} comes")

    async def finished(self, client):
        """Wait for the end."""
        return await self.world.reactor.until(lambda: client.status, "it is over")

    async def test_is_a_session(self):
        """It provides the interface that the streaming protocols expect."""
        verifyObject(ICommandSession, Attachment(None, False))

    async def test_conversation(self):
        """A client's input reaches the process, and its output the client, until the process
        ends.
        """
        main = await self.running("read word; echo heard $word; echo err >&2", stdin=True)
        session, client = self.attach(main)
        session.stdin_received(b"hello\n")
        self.assertEqual(await self.finished(client), SUCCESS)
        self.assertEqual((client.stdout, client.stderr), (b"heard hello\n", b"err\n"))
        self.assertIn(b"heard hello", main.log.segments[0].path.read_bytes())

    async def test_from_now_on(self):
        """A client does not get output from before it attached, which is in the log."""
        main = await self.running("echo early; read word; echo late", stdin=True)
        await self.world.reactor.until(
            lambda: b"early" in main.log.segments[0].path.read_bytes(), "it has written"
        )
        session, client = self.attach(main)
        session.stdin_received(b"\n")
        await self.finished(client)
        self.assertEqual(client.stdout, b"late\n")

    async def test_several(self):
        """All clients get all output, and one that disconnects does not affect the others."""
        main = await self.running("while read word; do echo $word; done", stdin=True)
        first, one = self.attach(main)
        second, other = self.attach(main)
        first.stdin_received(b"a\n")
        await self.wait_for_output(one, b"a\n")
        await self.wait_for_output(other, b"a\n")
        first.client_lost()
        second.stdin_received(b"b\n")
        await self.wait_for_output(other, b"b\n")
        self.assertEqual(one.stdout, b"a\n")
        self.assertTrue(main.running)

    async def test_input_stays_open(self):
        """The end of a client's input does not end the process's input."""
        main = await self.running("while read word; do echo $word; done", stdin=True)
        first, _ = self.attach(main)
        first.stdin_ended()
        second, other = self.attach(main)
        second.stdin_received(b"on\n")
        await self.wait_for_output(other, b"on\n")

    async def test_input_once(self):
        """With stdinOnce it does, whether the client ended its input or disconnected."""
        for how in ("stdin_ended", "client_lost"):
            name = how.replace("_", "-")
            pod = self.world.pod(
                container("cat", stdin=True, stdinOnce=True), name=name, restartPolicy="Never"
            )
            await self.world.until_phase("Running", name)
            session, _ = self.attach(pod.find(""))
            getattr(session, how)()
            await self.world.until_phase("Succeeded", name)

    async def test_only_looking(self):
        """A client without input does not end the process's input."""
        main = await self.running("cat", stdin=True, stdinOnce=True)
        session, _ = self.attach(main, stdin=False)
        session.stdin_received(b"not mine\n")
        session.stdin_ended()
        session.client_lost()
        second, client = self.attach(main)
        second.stdin_received(b"mine\n")
        second.stdin_ended()
        await self.finished(client)
        self.assertEqual(client.stdout, b"mine\n")

    async def test_terminal(self):
        """The size of a terminal is passed on, and the terminal stays open for the next client."""
        main = await self.running("stty size; sh -i", stdin=True, stdinOnce=True, tty=True)
        first, _ = self.attach(main)
        first.resized(132, 43)
        first.client_lost()
        second, client = self.attach(main)
        second.stdin_received(b"stty size\n")
        await self.wait_for_output(client, b"43 132")
        second.stdin_received(b"exit 0\n")
        self.assertEqual(await self.finished(client), SUCCESS)

    async def test_slow_client(self):
        """The process waits for a slow client, which gets all output."""
        written = Path(self.mktemp()).absolute()
        script = f"read w; head -c 1000 /dev/zero; touch {written}; head -c 999000 /dev/zero"
        main = await self.running(script, stdin=True)
        session, client = self.attach(main)
        _, other = self.attach(main)
        client.source.pauseProducing()
        session.stdin_received(b"\n")
        await self.world.reactor.until(written.exists, "it has written something")
        for _ in range(20):
            await self.world.reactor.until(lambda: True)
        self.assertEqual((client.stdout, other.stdout), (b"", b""))
        client.source.resumeProducing()
        await self.finished(client)
        self.assertEqual((len(client.stdout), len(other.stdout)), (1_000_000, 1_000_000))

    async def test_stalled_client(self):
        """A client that reads nothing for long is detached, and the process continues."""
        main = await self.running("read w; head -c 1000000 /dev/zero; echo end", stdin=True)
        session, client = self.attach(main)
        _, other = self.attach(main)
        client.source.pauseProducing()
        session.stdin_received(b"\n")
        self.world.reactor.advance(STALL_SECONDS)
        self.assertEqual(client.status["status"], "Failure")
        self.assertIn("has read no output", client.status["message"])
        self.assertEqual(await self.finished(other), SUCCESS)
        self.assertTrue(other.stdout.endswith(b"end\n"))

    async def test_slow_client_goes(self):
        """When a slow client disconnects, the process continues."""
        main = await self.running("read w; head -c 1000000 /dev/zero", stdin=True)
        session, client = self.attach(main)
        client.source.pauseProducing()
        session.stdin_received(b"\n")
        session.client_lost()
        await self.world.until_phase("Succeeded")
        self.assertEqual(self.world.reactor.getDelayedCalls(), [])

    async def test_slow_process(self):
        """Clients with input are paused while the process does not read, others are not."""
        script = "import sys, time\nsys.stdin.readline()\nprint(len(sys.stdin.read()))"
        pod = self.world.pod(
            {
                "name": "main",
                "image": "none",
                "command": [PYTHON, "-c", script],
                "stdin": True,
                "stdinOnce": True,
            },
            restartPolicy="Never",
        )
        await self.world.until_phase("Running")
        main = pod.find("")
        session, client = self.attach(main)
        _, looking = self.attach(main, stdin=False)
        session.stdin_received(b"\n" + bytes(300_000))
        self.assertEqual((client.stdin_paused, looking.stdin_paused), (True, False))
        await self.world.reactor.until(lambda: not client.stdin_paused, "it may go on")
        session.stdin_ended()
        await self.finished(client)
        self.assertEqual(client.stdout, b"300000\n")

    async def test_too_late(self):
        """A client that attaches to a process that has just ended gets an error."""
        main = await self.running("true")
        await self.world.until_phase("Succeeded")
        _, client = self.attach(main)
        self.assertEqual(client.status, SUCCESS)
