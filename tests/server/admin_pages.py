"""The pages of the programs' admin sockets in memory, composed as in the programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from twisted.application.service import IService, MultiService
from twisted.internet.protocol import connectionDone
from twisted.internet.testing import MemoryReactorClock

from tests.fakes import FakeSession
from tests.ops.admin_sites import AdminSite
from yurttunnel.agent import standalone
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.settings import StandaloneSettings
from yurttunnel.hub import process as hub
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.ops.admin_socket import AdminSocket
from yurttunnel.ops.debug.service import Debug
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.pki.directory import StateDirectory
from yurttunnel.proxy import process as proxy
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.server.admin import server_socket, standalone_pages
from yurttunnel.server.expected_nodes import EnrolledNodes
from yurttunnel.server.frontends.forward import ForwardFactory
from yurttunnel.server.frontends.forwards import Forwards
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.standalone_trust import StandaloneServerTrust

CONNECTED, LOST = "edge-1", "edge-2"
"""The nodes that a server in memory knows."""

BOOTSTRAP_TOKEN = "abcdef.0123456789abcdef"
"""The bootstrap token with which a hub in memory would join."""

THREAD_SECONDS = 10.0
"""The timeout for a thread's work, which takes milliseconds on an idle disk."""


class ThreadlessReactor(MemoryReactorClock):
    """A reactor whose calls from threads wait for :meth:`run_stored_calls`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list = []

    def callFromThread(self, function, *arguments):  # Twisted's name
        """Store the call."""
        self._calls.append((function, arguments))

    def run_stored_calls(self) -> bool:
        """Make the stored calls; return whether there were any."""
        calls, self._calls = self._calls, []
        for function, arguments in calls:
            function(*arguments)
        return bool(calls)

    def run_due(self) -> None:
        """Run everything that is due, and the work of threads, until nothing is left."""
        busy = True
        while busy:
            for thread in threading.enumerate():
                if thread.name.startswith("yurttunnel "):
                    thread.join(THREAD_SECONDS)
            busy = any(call.getTime() <= self.seconds() for call in self.getDelayedCalls())
            self.advance(0)
            busy = self.run_stored_calls() or busy


class SocketPages:
    """The pages of a program's admin socket, served by ``site``; no part of the program runs.

    ``parts`` include the socket, and what ends the work that requests to ``/debug`` have started.
    """

    def __init__(self, reactor: ThreadlessReactor, *parts: IService) -> None:
        self.reactor = reactor
        every = [each for part in parts for each in _all(part)]
        [socket] = (each for each in every if isinstance(each, AdminSocket))
        [self._debug] = (each for each in every if isinstance(each, Debug))
        self.site = AdminSite(reactor, socket._site.pages)

    def send(self, data: bytes) -> bytes:
        """Send ``data`` on a new connection; return the whole response, however late."""
        channel, transport = self.site.begin(data)
        self.reactor.run_due()
        channel.connectionLost(connectionDone)
        return transport.value()

    def reset_debug(self) -> None:
        """Stop memory tracing, and reset the log levels."""
        self._debug.stopService()


def _all(part: IService) -> Iterator[IService]:
    yield part
    if isinstance(part, MultiService):
        for each in part:
            yield from _all(each)


Make = Callable[[ThreadlessReactor, Path], SocketPages]
"""Composes a program, with its state in a directory."""


class ServerPages(SocketPages):
    """The pages of a server without a cluster, with one connected node and a lost one."""

    def __init__(self, reactor: ThreadlessReactor, directory: StateDirectory) -> None:
        self.settings = settings = Options({}).settings_of(
            "--standalone", f"--state-dir={directory.path}", "--cert-ips=203.0.113.10"
        )
        self.trust = trust = StandaloneServerTrust(reactor, directory.path, ["127.0.0.1"])
        self.tokens, self.revocations = trust.tokens, trust.revocations
        expected = EnrolledNodes(trust.records, trust.revocations)
        process = ServerProcess(reactor, settings, trust.certificates, expected)
        process.registry.add(FakeSession(CONNECTED))
        process.history.lost(LOST, "silent")
        process.forwards = Forwards(
            lambda forward: ForwardFactory(process.registry, forward),
            partial(listen_tcp, reactor),
            (),
        )
        process.forwards.listen()
        own = standalone_pages(reactor, settings, directory.path, trust)
        socket = server_socket(directory.path, process, own)
        super().__init__(reactor, process.meta, socket)


def server_pages(reactor: ThreadlessReactor, directory: Path) -> SocketPages:
    """Return the pages of a server without a cluster."""
    return ServerPages(reactor, StateDirectory.open(directory / "S"))


def agent_pages(reactor: ThreadlessReactor, directory: Path) -> SocketPages:
    """Return the pages of an agent without a cluster."""
    settings = AgentOptions({}).settings_of(
        *("--standalone", f"--state-dir={directory / 'A'}", "--node-name=edge-1"),
        "--tunnelserver-addr=127.0.0.1:1",
    )
    mode = settings.mode
    assert isinstance(mode, StandaloneSettings)
    return SocketPages(reactor, standalone.build(reactor, settings, mode))


def hub_pages(reactor: ThreadlessReactor, directory: Path) -> SocketPages:
    """Return the pages of a hub whose node has not joined yet."""
    settings = HubOptions({}).settings_of(
        *(f"--root-dir={directory / 'H'}", f"--disk-cache-path={directory / 'C'}"),
        *("--node-name=edge-1", "--server-addr=https://127.0.0.1:1"),
        *(f"--join-token={BOOTSTRAP_TOKEN}", "--discovery-token-unsafe-skip-ca-verification"),
    )
    return SocketPages(reactor, hub.build(reactor, settings))


def proxy_pages(reactor: ThreadlessReactor, directory: Path) -> SocketPages:
    """Return the pages of a service proxy."""
    settings = ProxyOptions({}).settings_of(
        *(f"--state-dir={directory / 'P'}", "--hostname-override=edge-1"),
        "--master=http://127.0.0.1:1",
    )
    return SocketPages(reactor, proxy.build(reactor, settings))
