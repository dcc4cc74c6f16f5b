"""The base class of the end-to-end tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.error import ConnectError
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SkipTest, TestCase

from tests.e2e.clients import ConnectAnswer, Peer, RequestClient, Target, connect, connect_directly
from tests.e2e.faults import FaultProxy
from tests.e2e.fork_server import fork_server
from tests.e2e.programs import ROOT, Program, Tunnel
from tests.e2e.scheduling import Concurrency, acquire_slot
from tests.e2e.stopwatch import Deadline, DeadlineExceeded, within

CONCURRENCY = {
    "tests.e2e.alone.quiet.": Concurrency.MEASURING,
    "tests.e2e.alone.": Concurrency.EXCLUSIVE,
}
"""The concurrency of tests that measure, by prefix of the module's name; the first match applies.
All other tests are shared."""

MODULE_SECONDS = 60.0
"""The timeout of a command that the fork server starts, and that ends by itself."""

POLL_FRACTION = 0.05
"""The interval between two polls, as a fraction of the time waited so far."""

MAX_POLL_INTERVAL = 0.2
"""The maximum interval between two polls in seconds."""


def copy_state(source: str, target: str) -> None:
    """Copy a state directory in use, without the files that belong to its process."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.sock", ".lock", ".new-*"))


class EndToEndTestCase(TestCase):
    """A test case with programs, clients, targets and faults, which it cleans up."""

    timeout = 600
    """Seconds after which trial aborts a test, including time without a processor."""

    def run(self, result) -> None:
        """Wait for the test's slot, before the timeout starts."""
        module = type(self).__module__
        kinds = (kind for package, kind in CONCURRENCY.items() if module.startswith(package))
        with acquire_slot(next(kinds, Concurrency.SHARED)):
            super().run(result)

    async def setUp(self) -> None:
        """Create a directory with a short name: the path of a Unix socket has at most 107 bytes."""
        self.directory = tempfile.mkdtemp(prefix="yurttunnel-")
        self.addCleanup(self._keep_logs)

    def _keep_logs(self) -> None:
        """Copy the logs to trial's directory, where they can be read after a failure."""
        saved = self.mktemp()
        os.makedirs(saved)
        for name in os.listdir(self.directory):
            if name.endswith(".log"):
                shutil.copy(os.path.join(self.directory, name), saved)
        shutil.rmtree(self.directory, ignore_errors=True)

    async def start_tunnel(self, **options) -> Tunnel:
        """Start a server and an agent, and wait until both are ready."""
        tunnel = self.make_tunnel(**options)
        await tunnel.start()
        return tunnel

    def make_tunnel(self, **options) -> Tunnel:
        """Prepare a server and an agent that are stopped and checked at the end of the test."""
        tunnel = Tunnel(reactor, self.directory, **options)
        self.addCleanup(self._end, tunnel)
        return tunnel

    def _end(self, tunnel: Tunnel) -> Deferred:
        return Deferred.fromCoroutine(tunnel.stop_and_check())

    def listen(self, build, port: int = 0, address: str = "127.0.0.1") -> Target:
        """Start a target; it is stopped at the end of the test."""
        target = Target(reactor, build, port, address)
        self.addCleanup(lambda: Deferred.fromCoroutine(target.stop()))
        return target

    def fault_proxy(self, target_port: int) -> FaultProxy:
        """Start a proxy for a loopback port; it is stopped at the end of the test."""
        proxy = FaultProxy(reactor, target_port)
        proxy.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(self._stop_proxy(proxy)))
        return proxy

    async def _stop_proxy(self, proxy: FaultProxy) -> None:
        await proxy.stop()
        await self.eventually(lambda: not proxy.links, "the fault proxy's sockets are closed")

    async def connect(
        self, tunnel: Tunnel, authority: str, peer: Peer, headers=None, early: bytes = b""
    ) -> ConnectAnswer:
        """Send CONNECT to the server's socket; the peer is closed at the end of the test."""
        endpoint = UNIXClientEndpoint(reactor, tunnel.socket_path)
        answer = await connect(endpoint, authority, peer, headers, early)
        self._end_peer_with_test(peer)
        return answer

    async def connected(self, tunnel: Tunnel, target: Target, peer: Peer) -> Peer:
        """Connect ``peer`` to the target through the CONNECT socket; require status 200."""
        answer = await self.connect(tunnel, f"127.0.0.1:{target.port}", peer)
        self.assertEqual(answer.status, 200, answer.body)
        return peer

    async def dial(self, port: int, peer: Peer, source: str = "127.0.0.1") -> Peer:
        """Connect ``peer`` to a loopback port from an address; it is closed with the test."""
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", port, bindAddress=(source, 0))
        await connect_directly(endpoint, peer)
        self._end_peer_with_test(peer)
        return peer

    def _end_peer_with_test(self, peer: Peer) -> None:
        def end():
            if peer.transport is None or peer.lost_reason is not None:
                return None
            peer.drop()
            return peer.when_lost()

        self.addCleanup(end)

    async def run_command(
        self, *command: str, standard_input: bytes | None = None
    ) -> tuple[bytes, bytes, int]:
        """Run a program; return standard output, standard error and exit status."""
        path = which(command[0])
        extra = {} if standard_input is None else {"stdinBytes": standard_input}
        return await getProcessOutputAndValue(path, command[1:], reactor=reactor, **extra)

    async def run_module(
        self, *command: str, prefix: tuple[str, ...] = ()
    ) -> tuple[bytes, bytes, int]:
        """Run ``python -m`` in the test's directory; return what `run_command` does.

        The fork server starts it, unless ``prefix`` is a command that starts the interpreter.
        """
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if prefix:
            executable, *options = [*prefix, sys.executable, "-m", *command]
            return await getProcessOutputAndValue(
                executable, options, environment, self.directory, reactor
            )
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            files = (output.fileno(), errors.fileno())
            process = fork_server().start([*command], *files, self.directory, environment)
            try:
                await self.eventually(
                    lambda: process.poll() is not None, f"{command} ends", MODULE_SECONDS
                )
            finally:
                if process.returncode is None:
                    os.kill(process.pid, signal.SIGKILL)
            output.seek(0)
            errors.seek(0)
            return output.read(), errors.read(), process.returncode

    async def eventually(self, condition, what: str, seconds: float = 10.0, interval: float = 0.02):
        """Wait until ``condition()`` (or its awaited result) is true; fail after ``seconds`` in
        which programs could run (`Stopwatch`).

        It is called every ``interval``. Awaitables mostly fetch a page of a program, so they are
        polled less often the longer it takes (`POLL_FRACTION`, `MAX_POLL_INTERVAL`).
        """
        began, deadline = reactor.seconds(), Deadline(reactor, seconds)
        while True:
            result = condition()
            if asks := hasattr(result, "__await__"):
                result = await result
            if result:
                return result
            if deadline.passed:
                raise self.failureException(f"after {seconds} s it was not so that {what}")
            seldom = (
                min((reactor.seconds() - began) * POLL_FRACTION, MAX_POLL_INTERVAL) if asks else 0.0
            )
            await deferLater(reactor, max(interval, seldom))

    async def descriptors_return(
        self, program: Program, before: dict[str, str], seconds: float = 20
    ) -> None:
        """Wait until the program has no more descriptors than before."""
        await self.eventually(
            lambda: len(program.descriptors()) <= len(before),
            f"the descriptors are back to {len(before)}",
            seconds,
        )

    async def pause(self, seconds: float) -> None:
        """Let load run for a time that is part of the measurement."""
        await deferLater(reactor, seconds)

    async def assert_disconnects(self, port: int) -> None:
        """Require that a forward closes a connection without sending data."""
        try:
            client = await self.dial(port, RequestClient(b"anybody?"))
        except ConnectError:
            return  # The reset may arrive before the client notices that it is connected.
        await self.within(5, client.when_lost(), "the connection ends")
        self.assertEqual(client.answer, b"")

    async def within(self, seconds: float, awaitable, what: str):
        """Return the result of ``awaitable``; fail if it takes longer than ``seconds`` in which
        programs could run (`Stopwatch`).
        """
        try:
            return await within(reactor, seconds, awaitable)
        except DeadlineExceeded as error:
            raise self.failureException(f"{error}: {what}") from error


class TwistedTransports(EndToEndTestCase):
    """A mixin for test cases: their tests use Twisted's own transports."""

    def make_tunnel(self, server_extra=(), agent_extra=(), **options) -> Tunnel:
        """Select them on both sides."""
        return super().make_tunnel(
            server_extra=(*server_extra, "--transport", "twisted"),
            agent_extra=(*agent_extra, "--transport", "twisted"),
            **options,
        )


def which(program: str) -> str:
    """Return the path of a program; skip the test, with the reason, if it is missing."""
    path = shutil.which(program)
    if path is None:
        raise SkipTest(f"{program} is not installed")
    return path
