"""Programs that run out of descriptors."""

from __future__ import annotations

import resource
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.clients import Echo, EchoClient, Incomplete, Peer, Target
from tests.e2e.hub.programs import Hub
from tests.e2e.leaks import LeakTestCase
from tests.e2e.programs import Program, Tunnel
from tests.e2e.proxy.programs import IdleProxy

MAX_DESCRIPTORS = 64
"""Descriptors that the program may have: some 20 are its own."""

LOAD = 80
"""The number of connections that exceed the limit."""

BUSY_SHARE = 0.1
"""The maximum share of a processor that an idle program uses; it uses a hundredth."""

WATCHED = 1.5
"""Seconds for which that is measured."""

SOON = 5.0
"""Seconds in which a caller is served or rejected."""


class DescriptorTests(LeakTestCase):
    """``ulimit -n 64`` for one of the two programs, and more connections than that."""

    def limit(self, program: Program) -> None:
        """Limit the descriptors of a running program."""
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))

    async def rests(self, program: Program) -> None:
        """Require that a program uses little CPU time for a while."""
        before, began = self.processor_time(program), reactor.seconds()
        await self.pause(WATCHED)
        used = self.processor_time(program) - before
        share = used / (reactor.seconds() - began)
        print(f"\n{share:.2f} of a processor without descriptors")
        self.assertLess(share, BUSY_SHARE)

    def processor_time(self, program: Program) -> float:
        """Return the CPU seconds of a program."""
        fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    async def test_the_soft_limit_is_no_limit(self) -> None:
        """Each program raises its soft limit to the hard limit, which pods cannot do in their
        manifest."""
        limit = resource.RLIMIT_NOFILE
        hard = resource.getrlimit(limit)[1]
        tunnel = self.make_tunnel()
        hub = Hub(reactor, self.directory, "https://127.0.0.1:1")
        proxy = IdleProxy(reactor, self.directory)
        for program in (tunnel.server, tunnel.agent, hub, proxy):
            program.use_pod_limits()
        for program in (hub, proxy):
            program.start()
            self.addCleanup(program.kill)
        await tunnel.start()
        for program in (tunnel.server, tunnel.agent):
            self.assertEqual(hard, await program.metric("process_max_fds"))
        for program in (hub, proxy):
            await self.eventually(
                lambda pid=program.pid: resource.prlimit(pid, limit)[0] == hard, "it is raised", 20
            )

    async def test_an_agent_without_descriptors_refuses_dials_and_recovers(self) -> None:
        """New dials fail with 503 and the reason, existing streams continue, and dials succeed
        later."""
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel()
        self.limit(tunnel.agent)
        old = await self.connected(tunnel, echo, EchoClient(reactor))
        await old.round_trip()
        before = [(program, program.descriptors()) for program in (tunnel.server, tunnel.agent)]

        served, refused = [], []
        for _ in range(LOAD):
            answer = await self.connect(tunnel, f"127.0.0.1:{echo.port}", EchoClient(reactor))
            (served if answer.peer is not None else refused).append(answer)
        print(f"\n{len(served)} dials succeeded, {len(refused)} were refused")
        self.assertTrue(served)
        self.assertEqual({answer.status for answer in refused}, {503})
        self.assertIn("too many open files", refused[0].body)
        await old.round_trip()
        await gatherResults([self.finished(answer.peer) for answer in served[1:]])
        await served[0].peer.round_trip()
        await self.rests(tunnel.agent)

        await self.finished(served[0].peer)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()

    def finished(self, peer: Peer):
        """End a client's connection; the Deferred fires when it has ended."""
        peer.drop()
        return peer.when_lost()

    async def test_a_server_without_descriptors_serves_existing_callers_and_recovers(self) -> None:
        """New callers are closed at once while descriptors are missing, existing ones are served.

        They get no response, which would need a descriptor. The server does not spin, and recovers.
        """
        echo = self.listen(Echo)
        tunnel = await self.start_tunnel()
        self.limit(tunnel.server)
        old = await self.connected(tunnel, echo, EchoClient(reactor))
        await old.round_trip()
        before = [(program, program.descriptors()) for program in (tunnel.server, tunnel.agent)]

        callers = [await self.request_or_rejection(tunnel, echo) for _ in range(LOAD)]
        served = [peer for peer in callers if peer is not None]
        print(f"\n{len(served)} of {LOAD} callers were served, the others turned away")
        self.assertGreater(len(served), MAX_DESCRIPTORS // 4)
        self.assertLess(len(served), MAX_DESCRIPTORS)
        self.assertIsNone(callers[-1])
        await old.round_trip()
        await self.rests(tunnel.server)
        await gatherResults([Deferred.fromCoroutine(peer.round_trip()) for peer in (old, *served)])

        await gatherResults([self.finished(peer) for peer in served])
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)
        client = await self.connected(tunnel, echo, EchoClient(reactor))
        await client.round_trip()
        [session] = await tunnel.server.agents()
        self.assertEqual(session["resumptions"], 0)

    async def request_or_rejection(self, tunnel: Tunnel, echo: Target) -> EchoClient | None:
        """Request a stream; return `None` if the connection is closed soon, without a response."""
        client = EchoClient(reactor)
        dial = self.connect(tunnel, f"127.0.0.1:{echo.port}", client)
        try:
            answer = await self.within(SOON, dial, "the caller is served or turned away")
        except Incomplete:
            return None
        self.assertEqual(answer.status, 200, answer.body)
        await client.round_trip()
        return client
