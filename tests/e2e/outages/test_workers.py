"""What goes wrong between the processes of one server (``--workers``)."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.endpoints import UNIXClientEndpoint

from tests.e2e.clients import Echo, EchoClient, Peer, Source, connect_directly
from tests.e2e.programs import BESIDES_BUFFERS, Agent, Tunnel
from tests.e2e.test_workers import IN_FIRST, IN_WORKER, WorkersTestCase, worker_pids
from yurttunnel.server.frontends.calls import DIAL_TIMEOUT
from yurttunnel.server.workers.running import SILENCE

MEBIBYTE = 1024 * 1024

CROWD = 400
"""Callers for a worker: more than the socket that leads to it takes."""

SLACK = 5.0
"""Seconds that a busy machine may add."""


class Asking(Peer):
    """A caller of a node, who keeps the answer."""

    def __init__(self, node: str, port: int) -> None:
        super().__init__()
        target = f"127.0.0.1:{port}"
        fields = f"Host: {target}\r\nX-Tunnel-Proxy-Host: {node}\r\n"
        self._head = f"CONNECT {target} HTTP/1.1\r\n{fields}\r\n"
        self.answer = b""

    def connectionMade(self) -> None:
        """Ask."""
        super().connectionMade()
        self.transport.write(self._head.encode())

    def dataReceived(self, data: bytes) -> None:
        """Keep it."""
        super().dataReceived(data)
        self.answer += data

    @property
    def over(self) -> bool:
        """Whether it has its answer, or its connection has ended."""
        return bool(self.answer) or self.read_ended or self.lost_reason is not None


class WorkerFaultTests(WorkersTestCase):
    """A server of two processes, with a node in each."""

    async def start(self) -> tuple[Tunnel, Agent, int]:
        """Start all; the process of the worker, too."""
        tunnel, other = await self.start_both()
        (worker,) = worker_pids(tunnel.server)
        return tunnel, other, worker

    async def crowd(self, tunnel: Tunnel, port: int, count: int) -> list[Asking]:
        """Have so many callers ask for the node in the worker."""
        endpoint = UNIXClientEndpoint(reactor, tunnel.socket_path)
        crowd = [Asking(IN_WORKER, port) for _ in range(count)]
        for caller in crowd:
            await connect_directly(endpoint, caller)
            self._end_peer_with_test(caller)
        return crowd

    async def recovers(self, tunnel: Tunnel, seconds: float = 30) -> None:
        """Require that the worker's node is there again, and carries bytes."""
        source = self.listen(lambda: Source(MEBIBYTE))

        async def back() -> bool:
            agents = await tunnel.server.agents()
            connected = [agent["node"] for agent in agents if agent["connected"]]
            return connected == [IN_WORKER, IN_FIRST]

        await self.eventually(back, "both nodes are there", seconds)
        for node in (IN_WORKER, IN_FIRST):
            await self.download(tunnel, node, source)

    async def test_a_stopped_worker_is_replaced(self) -> None:
        """Its callers are told, or their connections end, while the first process stays small.

        Those of the other node notice nothing.
        """
        echo = self.listen(Echo)
        tunnel, _, worker = await self.start()
        kept = EchoClient(reactor)
        await self.to(tunnel, IN_FIRST, echo, kept)
        descriptors, memory = tunnel.server.descriptors(), tunnel.server.resident()
        os.kill(worker, signal.SIGSTOP)
        began = reactor.seconds()
        crowd = await self.crowd(tunnel, echo.port, CROWD)
        await self.within(5, kept.round_trip(), "the other stream goes on")
        self.assertLess(tunnel.server.resident() - memory, BESIDES_BUFFERS)
        limit = max(SILENCE, DIAL_TIMEOUT) + SLACK
        await self.eventually(lambda: all(each.over for each in crowd), "all are told", limit)
        told = [each for each in crowd if each.answer]
        print(f"\n{len(told)} of {CROWD} have an answer after {reactor.seconds() - began:.1f} s")
        statuses = {each.answer.split(b" ")[1] for each in told}
        self.assertLessEqual(statuses, {b"502", b"503", b"504"})
        await self.within(5, kept.round_trip(), "the other stream still goes on")
        await self.recovers(tunnel)
        self.assertIn(f"it has hung: nothing was heard of it for {SILENCE} s", tunnel.server.log)
        self.assertFalse(Path(f"/proc/{worker}").exists())
        for each in crowd:
            each.drop()
        await self.within(5, kept.round_trip(), "the other stream goes on to the end")
        # The new worker has as many descriptors as the old one had.
        await self.descriptors_return(tunnel.server, descriptors)

    async def test_a_worker_that_is_aborted_says_where_it_was(self) -> None:
        """As one is that hangs: its stack is in the log of the first process."""
        tunnel, _, worker = await self.start()
        os.kill(worker, signal.SIGABRT)
        ended = "worker 1 has ended: it was killed by signal 6"
        await self.eventually(lambda: ended in tunnel.server.log, "its end is noticed", 10)
        await self.recovers(tunnel)
        log = tunnel.server.log
        said = log[log.index("worker 1 was here when it failed:") :]
        self.assertRegex(said, r'File ".*yurttunnel/server/workers/program\.py", line \d+ in main')

    async def test_callers_on_their_way_to_a_worker_that_dies_are_let_go(self) -> None:
        """Their connections end with it, and no process keeps them."""
        echo = self.listen(Echo)
        tunnel, _, worker = await self.start()
        descriptors = tunnel.server.descriptors()
        os.kill(worker, signal.SIGSTOP)
        crowd = await self.crowd(tunnel, echo.port, CROWD)
        os.kill(worker, signal.SIGKILL)
        await self.eventually(lambda: all(each.over for each in crowd), "all have ended", 10)
        await self.recovers(tunnel)
        self.assertIn("worker 1 has ended: it was killed by signal 9", tunnel.server.log)
        for each in crowd:
            each.drop()
        await self.descriptors_return(tunnel.server, descriptors)

    async def test_a_worker_without_descriptors_goes_on_with_those_it_has(self) -> None:
        """New callers are let go, the log says why, and room is used again."""
        echo = self.listen(Echo)
        tunnel, _, worker = await self.start()
        old = EchoClient(reactor)
        await self.to(tunnel, IN_WORKER, echo, old)
        most = max(map(int, os.listdir(f"/proc/{worker}/fd"))) + 1
        before = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (most, before[1]))
        crowd = await self.crowd(tunnel, echo.port, 20)
        await self.eventually(lambda: all(each.over for each in crowd), "all are let go", 10)
        await self.within(5, old.round_trip(), "the stream goes on")
        self.assertIn("all descriptors are in use", tunnel.server.log)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, before)
        for each in crowd:
            each.drop()
        await self.recovers(tunnel)
        self.assertEqual(worker_pids(tunnel.server), [worker])
        await self.within(5, old.round_trip(), "the stream still goes on")

    async def test_a_killed_server_leaves_nothing_of_its_streams(self) -> None:
        """With 100 of them in a worker that ends, too; the ports are free for the next server."""
        echo = self.listen(Echo)
        tunnel, _, worker = await self.start()
        clients = [EchoClient(reactor) for _ in range(100)]
        for client in clients:
            await self.to(tunnel, IN_WORKER, echo, client)
            await client.round_trip()
        tunnel.server.kill()
        await self.eventually(
            lambda: not Path(f"/proc/{worker}/fd").exists(), "the worker has ended", 5
        )
        for client in clients:
            await self.within(5, client.when_ended(), "its stream has ended")
        tunnel.server.start()
        await tunnel.server.ready()
        await self.recovers(tunnel)
