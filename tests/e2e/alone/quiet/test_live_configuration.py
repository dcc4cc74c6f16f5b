"""Forwards that are added and removed, by a configuration file and by command, under load."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports, is_free
from tests.e2e.alone import request_load
from tests.e2e.clients import RequestClient, Sink
from tests.e2e.configuration_file import TIMEOUT, ConfigurationFile
from tests.e2e.crowds import Crowd
from tests.e2e.kubectl import Running
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import Tunnel
from yurttunnel.cli.client import Process

STREAMS = 200
"""The number of streams during the whole test; there is one more for each forward in the file."""

CALLERS, RATE = 32, 1000
"""The number of callers, and their requests per second in total, if the machine is fast enough."""

REWRITES, AT_ONCE = 10, 10
"""How often the file is rewritten, and how many forwards each rewrite adds, and later removes.

A program checks its file each second, and reads it if two checks find the same content: 100
consecutive rewrites with one forward each would take more than three minutes. So there are 100
forwards in 10 rewrites; at the same time as many are added and removed one by one by command.
"""

USUAL_SECONDS = 5.0
"""The seconds for which the rate is measured before the first change."""

MIN_FRACTION = 0.9
"""The minimum rate during the changes, as a fraction of the rate before them."""

QUESTION = os.urandom(20_000)
"""The data that is sent through a forward that was added by command."""


class LoadTests(LeakTestCase):
    """A server with a file, 200 streams, and 1,000 requests/s."""

    async def setUp(self) -> None:
        """Create the file and a target."""
        await super().setUp()
        self.file = ConfigurationFile(self.directory)
        self.sink = self.listen(Sink)
        self.responder = self.listen(Sink)

    async def test_forwards_are_added_and_removed_under_load(self) -> None:
        """Adding and removing forwards, and a broken file, lose nothing and slow nothing down."""
        standing = free_ports.take()
        self.write(standing)
        tunnel = await self.start_tunnel(server_extra=self.file.flags)
        await self.watch(tunnel.server, tunnel.agent, streams=STREAMS + CALLERS)
        self.process = Process(Path(tunnel.server.state, "yurttunnel.sock"))
        load = await self.start_load(tunnel)
        ports = [standing]
        crowd = Crowd(self, self.sink, lambda one: self.dial(ports[-1], one))
        await crowd.open_all(STREAMS)
        await self.rate_of(load)
        await self.pause(USUAL_SECONDS)
        usual = await self.rate_of(load)

        old: list[int] = []
        for number in range(REWRITES):
            new = [free_ports.take() for _ in range(AT_ONCE)]
            self.write(standing, *new)
            for _ in range(AT_ONCE):
                await self.come_and_go_by_command()
            await self.are_open({standing, *new})
            # A listener is closed one reactor turn after its forward is removed from the list.
            await self.eventually(
                lambda ports=old: all(map(is_free, ports)), "the ports of those before are free"
            )
            for port in new:
                ports.append(port)
                await crowd.open_all(len(crowd) + 1)
            old = new
            if number == REWRITES // 2:
                await self.broken(tunnel, {standing, *new})
        self.write(standing)
        await self.are_open({standing})

        during = await self.rate_of(load)
        print(f"\n{usual:.0f} requests/s before the changes, {during:.0f} during them")
        self.assertGreaterEqual(during, MIN_FRACTION * min(RATE, usual))
        await crowd.assert_progress()
        load.transport.closeStdin()
        ended = await load.finished()
        self.assertEqual(0, ended.status, ended.error.decode())
        await crowd.assert_complete()
        self.assertEqual(STREAMS + REWRITES * AT_ONCE, len(crowd))
        self.assertEqual(1, tunnel.server.log.count("it is not TOML"))

    def write(self, *ports: int) -> None:
        """Write a file with forwards from these ports to the sink, after a comment."""
        entries = "".join(f'  "{port}=edge-1/127.0.0.1:{self.sink.port}",\n' for port in ports)
        self.file.write(f"# the forwards\nforward = [\n{entries}]\n")

    async def start_load(self, tunnel: Tunnel) -> Running:
        """Start requests through the port for requests to kubelets."""
        numbers = (str(tunnel.server.insecure_port), "edge-1", str(CALLERS), str(RATE))
        load = Running(reactor, [sys.executable, request_load.__file__, *numbers])
        reactor.spawnProcess(load, sys.executable, load.command, env=os.environ)
        self.addCleanup(lambda: load.running and load.kill())
        await load.wait_for_output("connected")
        return load

    async def rate_of(self, load: Running) -> float:
        """Return the requests per second since the last call."""
        load.out.clear()
        load.transport.write(b"\n")
        return float((await load.wait_for_output(r"(\d+) requests/s"))[1])

    async def are_open(self, ports: Collection[int]) -> None:
        """Wait until exactly these forwards are open."""

        async def are_configured() -> bool:
            forwards = (await deferToThread(self.process.get, "/v1/forwards"))["forwards"]
            return {int(each["listen"].rpartition(":")[2]) for each in forwards} == set(ports)

        await self.eventually(are_configured, f"{len(ports)} forwards are open", TIMEOUT, 0.1)

    async def come_and_go_by_command(self) -> None:
        """Add one forward, send data through it, and remove it."""
        port = free_ports.take()
        forward = f"{port}=edge-1/127.0.0.1:{self.responder.port}"
        await deferToThread(self.process.post, "/v1/forwards", forward=forward)
        caller = await self.dial(port, RequestClient(QUESTION, finish=True))
        await caller.when_read_ended()
        self.assertEqual(hashlib.sha256(QUESTION).hexdigest(), caller.answer.decode())
        await deferToThread(self.process.post, "/v1/forwards/remove", listen=str(port))
        self.assertTrue(is_free(port))

    async def broken(self, tunnel: Tunnel, ports: Collection[int]) -> None:
        """Break the file: its last valid content stays in use, and commands still work."""
        self.file.write('forward = [ "cut off')

        async def is_reported() -> bool:
            status, body = await tunnel.server.get("/readyz")
            self.assertEqual(200, status, body)
            return "it is not TOML" in body

        await self.eventually(is_reported, "/readyz tells that the file is broken", TIMEOUT, 0.1)
        await self.come_and_go_by_command()
        await self.are_open(ports)
