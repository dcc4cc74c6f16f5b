"""Full disks: of the audit log, and of the state of server and agent."""

from __future__ import annotations

import errno
import json
import os
import time
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
    """A program has a small disk, mounted only for itself, which the test fills."""

    async def setUp(self) -> None:
        """Create the mount point."""
        await super().setUp()
        if os.geteuid() != 0:
            raise SkipTest("only root can mount a disk")
        self.mount_point = os.path.join(self.directory, DISK)
        os.mkdir(self.mount_point, 0o700)

    def own_disk(self, first: str = "true") -> tuple[str, ...]:
        """Return the command prefix that mounts the disk for a program.

        ``first`` runs before it, and must succeed; ``"$@"`` in it is the program.
        """
        mount = f"mount -t tmpfs -o mode=0700,size={SIZE} tmpfs {self.mount_point}"
        script = f'{mount} && (cd {self.mount_point} && {first}) && exec "$@"'
        return (which("unshare"), "--mount", "sh", "-c", script, "sh")

    def disk(self, program: Program) -> Path:
        """Return the path of the disk as seen from here."""
        return Path(f"/proc/{program.pid}/root{self.mount_point}")

    def fill(self, program: Program) -> Path:
        """Fill the disk of a program to the last byte; return the file."""
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

    async def test_traffic_continues_without_an_audit_log(self) -> None:
        """A full disk of the audit log loses its lines, which are counted, and nothing else."""
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

    async def test_an_agent_on_a_full_disk_reports_it_and_stores_no_partial_key(self) -> None:
        """It exits and names the fix; restarted with free space, it enrols."""
        tunnel = self.make_tunnel()
        tunnel.server.start()
        await tunnel.server.ready()
        first = f'{FILL}; ! "$@" && rm filler && test "$(ls -A)" = .held'
        agent = tunnel.another_agent(state=DISK, prefix=self.own_disk(first))
        agent.start()
        await agent.ready()
        self.assertIn("the disk is full: make room", agent.log)
        identity_of(str(self.disk(agent)))

    async def readiness(self, program: Program) -> dict[str, str]:
        """Return the results of a program's checks, which must be ready."""
        status, body = await program.get("/readyz")
        self.assertEqual(status, 200, body)
        return dict(line.split(": ", 1) for line in body.splitlines() if ": " in line)

    async def test_a_server_without_room_refuses_an_enrolment_with_the_reason(self) -> None:
        """Connected nodes are not affected, and the node is enrolled when there is free space."""
        echo = self.listen(Echo)
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state=DISK, prefix=self.own_disk())
        server.start()
        await server.ready()
        disk = self.disk(server)
        server.socket_path = str(disk / "connect.sock")
        agent_settings = {"server_port": server.agent_port, "token_path": str(disk / "join-token")}
        agent = tunnel.another_agent(**agent_settings)
        agent.start()
        await agent.ready()
        client = await self.connected(server, echo, EchoClient(reactor))
        await client.round_trip()
        await self.watch(server, agent)
        filler = self.fill(server)

        late = tunnel.another_agent(node="edge-2", state="late", **agent_settings)
        late.start()
        problem = "/disk/nodes/edge-2 cannot be written, the disk is full: make room"
        await self.eventually(
            lambda: f"{problem} (unavailable)" in late.log, "the agent says why", 20
        )
        self.assertIn(problem, (await self.readiness(server))["enrolment"])
        [line] = [line for line in server.log.splitlines() if problem in line]
        self.assertIn("error]", line)
        self.assertIn("whose record cannot be stored", line)
        await client.round_trip()
        await self.dial_through(server, echo.port)

        filler.unlink()
        # The longest pause of an agent that tries to enrol is 30 s.
        await late.ready(40)
        self.assertEqual((await self.readiness(server))["enrolment"], "ok")
        await client.round_trip()
        await late.stop()

    async def test_a_node_is_revoked_on_a_full_disk(self) -> None:
        """A revocation needs no free space, ends the session, and warns the user."""
        tunnel = self.make_tunnel()
        server = tunnel.another_server(state=DISK, prefix=self.own_disk())
        server.start()
        await server.ready()
        disk = self.disk(server)
        agent_settings = {"server_port": server.agent_port, "token_path": str(disk / "join-token")}
        agents = [
            tunnel.another_agent(node=f"edge-{n}", state=f"A{n}", **agent_settings) for n in (1, 2)
        ]
        for agent in agents:
            agent.start()
            await agent.ready()
        self.fill(server)

        def revoke(node: str) -> Program:
            command = Program(
                reactor,
                ["yurttunnel-server", "--standalone", "--state-dir", str(disk),
                 "--revoke-node", node],
                f"{self.directory}/revoke-{node}.log",
                0,
            )  # fmt: skip
            self.addCleanup(command.kill)
            command.start()
            return command

        first = revoke("edge-1")
        self.assertEqual(await first.ended(10), 0, first.log)
        self.assertIn("node edge-1 is revoked; the disk of ", first.log)

        async def connected() -> list[str]:
            return [entry["node"] for entry in await server.agents() if entry["connected"]]

        async def is_only_the_other() -> bool:
            return await connected() == ["edge-2"]

        await self.eventually(is_only_the_other, "the session of the node has ended", 2)

    async def test_an_agent_without_room_renews_its_certificate_all_the_same(self) -> None:
        """The new certificate is used when the first has expired, and is stored when there is
        space."""
        echo = self.listen(Echo)
        life = 12
        tunnel = self.make_tunnel(server_extra=("--node-certificate-lifetime", f"{life}s"))
        tunnel.server.start()
        await tunnel.server.ready()
        proxy = self.fault_proxy(tunnel.server.agent_port)
        agent = tunnel.another_agent(state=DISK, prefix=self.own_disk(), server_port=proxy.port)
        agent.start()
        await agent.ready()
        await self.watch(tunnel.server, agent)
        filler = self.fill(agent)
        first = identity_of(str(self.disk(agent))).certificate

        async def reports_renewal_failure(words: str) -> bool:
            return words in (await self.readiness(agent))["certificate renewal"]

        problem = f"{self.mount_point}/node.pem cannot be written, the disk is full: make room"
        await self.eventually(
            lambda: reports_renewal_failure(f"is in use but not stored for a restart: {problem}"),
            "there is a new certificate",
            life,
        )
        self.assertEqual(agent.log.count(problem), 1, agent.log)

        async def end_of_certificate() -> float:
            return await agent.metric("yurttunnel_agent_certificate_expiry_timestamp_seconds")

        first_end = first.not_valid_after_utc.timestamp()
        self.assertGreater(await end_of_certificate(), first_end)
        await self.eventually(lambda: time.time() > first_end + 1, "the first has ended", life)
        self.assertEqual(proxy.for_all("reset"), 1)
        await self.eventually(lambda: len(proxy.links) == 1, "it connects again")
        await self.dial_through(tunnel.server, echo.port)

        filler.unlink()
        await self.eventually(lambda: reports_renewal_failure("ok"), "the certificate is stored")
        stored = identity_of(str(self.disk(agent))).certificate
        self.assertNotEqual(stored.serial_number, first.serial_number)
