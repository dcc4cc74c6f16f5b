"""Disks that are full, of the audit log and of an agent that enrols."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import SkipTest

from tests.e2e.certificates import identity_of
from tests.e2e.clients import Echo, EchoClient
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import Program, Server
from tests.e2e.support import which

DISK = "disk"
"""The directory, below that of the test, at which the program has a disk of its own."""

SIZE = "256k"
PAGE = 4096
FILL = "head -c 1M /dev/zero 2>/dev/null >filler"
"""The command that fills a disk of that size."""


class FullDiskTests(LeakTestCase):
    """A program has a small disk of its own, which only it sees and the test fills."""

    async def setUp(self) -> None:
        """Make the directory at which the disk is mounted."""
        await super().setUp()
        if os.geteuid() != 0:
            raise SkipTest("only root can mount a disk")
        self.mount_point = os.path.join(self.directory, DISK)
        os.mkdir(self.mount_point, 0o700)

    def own_disk(self, first: str = "true") -> tuple[str, ...]:
        """Give what a program has to be begun with that shall have a disk.

        ``first`` is run there before it, and has to succeed; ``"$@"`` in it is the program.
        """
        mount = f"mount -t tmpfs -o mode=0700,size={SIZE} tmpfs {self.mount_point}"
        script = f'{mount} && (cd {self.mount_point} && {first}) && exec "$@"'
        return (which("unshare"), "--mount", "sh", "-c", script, "sh")

    def disk(self, program: Program) -> Path:
        """Give the way to the disk from here."""
        return Path(f"/proc/{program.pid}/root{self.mount_point}")

    def fill(self, program: Program) -> Path:
        """Fill the disk of a program to the last byte; the file that does."""
        filler = self.disk(program) / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * PAGE)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENOSPC)
        return filler

    async def dial_through(self, server: Server, port: int) -> None:
        """Make one round trip on a new stream, which must succeed."""
        client = EchoClient(reactor)
        answer = await self.connect(server, f"127.0.0.1:{port}", client)
        self.assertEqual(answer.status, 200, answer.body)
        await client.round_trip()
        client.drop()
        await client.when_lost()

    async def test_traffic_goes_on_without_an_audit_log(self) -> None:
        """A full disk of the audit log costs its lines, which are counted, and nothing else."""
        path = os.path.join(self.mount_point, "audit.json")
        echo = self.listen(Echo)
        tunnel = self.make_tunnel()
        extra = ("--audit-log-path", path)
        server = tunnel.another_server(state="S2", prefix=self.own_disk(), extra=extra)
        agent = tunnel.another_agent(server_port=server.agent_port, token_path=server.token_path)
        for program in (server, agent):
            program.start()
            await program.ready()
        await self.dial_through(server, echo.port)
        await self.watch(server, agent)
        filler = self.fill(server)

        async def lines(name: str) -> float:
            return await server.metric(f"yurttunnel_server_audit_{name}_total")

        async def some_are_lost() -> bool:
            await self.dial_through(server, echo.port)
            return await lines("lines_lost") > 0

        await self.eventually(some_are_lost, "lines are counted as lost", 20)
        filler.unlink()
        written = await lines("lines")

        async def some_are_written() -> bool:
            await self.dial_through(server, echo.port)
            return await lines("lines") > written

        await self.eventually(some_are_written, "lines are written again", 20)
        entries = (self.disk(server) / "audit.json").read_text().splitlines()
        self.assertEqual({json.loads(entry)["kind"] for entry in entries}, {"connect"})
        self.assertIn(path, server.log)

    async def test_an_agent_without_room_says_so_and_keeps_no_half_of_a_key(self) -> None:
        """It ends and names the cure; started again when there is room, it enrols."""
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        first = f'{FILL}; ! "$@" && rm filler && test -z "$(ls -A)"'
        agent = tunnel.another_agent(state=DISK, prefix=self.own_disk(first))
        agent.start()
        await agent.ready()
        self.assertIn("the disk is full: make room", agent.log)
        identity_of(str(self.disk(agent)))
