"""Uses of kubectl that work in the quickstart and in a cluster."""

from __future__ import annotations

import hashlib
import random
import socket
from pathlib import Path

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread

from tests.e2e.kubectl import Kubectl, Running
from tests.e2e.support import EndToEndTestCase

MEBIBYTE = 1024 * 1024

COPIED = 50 * MEBIBYTE


class KubectlTestCase(EndToEndTestCase):
    """A test case that uses kubectl, with any API."""

    def start_kubectl(self, kubectl: Kubectl, *arguments: str, **options) -> Running:
        """Start a kubectl, which ends with the test at the latest."""
        running = kubectl.start(*arguments, **options)

        def end():
            if running.running:
                running.kill()
                return Deferred.fromCoroutine(running.finished())
            return None

        self.addCleanup(end)
        return running

    async def open_terminal(self, kubectl: Kubectl, pod: str) -> Running:
        """Start a shell in a terminal, change the terminal's size, and return the shell."""
        shell = self.start_kubectl(kubectl, "exec", "-it", pod, "--", "sh", tty=(100, 40))
        await shell.wait_for_output(r"[#$] ")
        await self.eventually(lambda: shell.reported_size("40 100"), "the shell sees its size")
        shell.resize(120, 50)
        await self.eventually(lambda: shell.reported_size("50 120"), "the shell sees the new size")
        return shell

    async def attach(self, kubectl: Kubectl, pod: str) -> None:
        """Attach to a pod that writes what it reads, and something to the other output."""
        attached = self.start_kubectl(kubectl, "attach", "-i", pod)
        attached.transport.write(b"is anybody there\n")
        await attached.wait_for_output("heard is anybody there\n")
        # The order of the two outputs is undefined.
        await self.eventually(lambda: b"noise\n" in attached.error, "its other output is there")
        attached.signal("INT")
        await attached.finished(10)

    async def forward_port(
        self, kubectl: Kubectl, pod: str, port: int | str, connections: int, size: int
    ) -> None:
        """Send ``size`` bytes over each of some connections to a pod that returns upper case."""
        forward = self.start_kubectl(kubectl, "port-forward", pod, f":{port}")
        local = int((await forward.wait_for_output(r"Forwarding from 127\.0\.0\.1:(\d+)"))[1])
        questions = [random.randbytes(size // 2).hex().encode() for _ in range(connections)]
        requests = [deferToThread(ask, local, question) for question in questions]
        answers = await gatherResults(requests, consumeErrors=True)
        for question, answer in zip(questions, answers, strict=True):
            self.assertEqual(sha256(answer), sha256(question.upper()))
        forward.signal("INT")
        await forward.finished(10)

    async def copy(self, kubectl: Kubectl, pod: str) -> None:
        """Copy a large file to a pod and back."""
        content = random.randbytes(COPIED)
        sent, returned = Path(self.directory, "sent"), Path(self.directory, "returned")
        sent.write_bytes(content)
        await kubectl.output("cp", str(sent), f"{pod}:big", seconds=90)
        remote = await kubectl.output("exec", pod, "--", "sha256sum", "big")
        self.assertEqual(remote.split()[0], sha256(content))
        await kubectl.output("cp", f"{pod}:big", str(returned), seconds=90)
        self.assertEqual(sha256(returned.read_bytes()), sha256(content))


def ask(port: int, question: bytes) -> bytes:
    """Send data, end the direction, and read the answer to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        answer = bytearray()
        while data := connection.recv(65536):
            answer += data
        return bytes(answer)


def sha256(data: bytes) -> str:
    """Return the digest of data, in hex."""
    return hashlib.sha256(data).hexdigest()
