"""The program of a worker: sessions with the agents that it is given, and the streams in them."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IAddress, IProtocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger, globalLogBeginner
from twisted.python.failure import Failure

from yurttunnel import __version__
from yurttunnel.ops.clocks import make_steady
from yurttunnel.ops.freed_memory import FreedMemory
from yurttunnel.ops.lag import ReactorLag
from yurttunnel.ops.log_floods import FloodLimit
from yurttunnel.ops.status.streams import oldest_streams
from yurttunnel.ops.status.view import MOST_STREAMS
from yurttunnel.pki.authority import utc_now
from yurttunnel.pki.contexts import ServerContexts
from yurttunnel.pki.credentials import BadCredentials
from yurttunnel.server.agents import AgentListenerSettings, RefuseStreams
from yurttunnel.server.audit import Audit
from yurttunnel.server.frontends.connect import ConnectFactory
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.server.service import ServerService
from yurttunnel.server.siblings.acceptor import SiblingStreams
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.admission import AdmittedAgents
from yurttunnel.server.workers.channel import ENDED, Channel, Message
from yurttunnel.server.workers.link import Link, carry_link, link_session
from yurttunnel.server.workers.log import LogToFirst
from yurttunnel.server.workers.settings import (
    CONTROL_DESCRIPTOR,
    LINK_DESCRIPTOR,
    STACK_DESCRIPTOR,
    WorkerSettings,
)
from yurttunnel.server.workers.stats import Growth, SnapshotChanges
from yurttunnel.tunnel import tls
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.reactor import installed_reactor
from yurttunnel.tunnel.session import SessionContext
from yurttunnel.tunnel.statistics import TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.hello import Limits
from yurttunnel.wire.stream_table import Side

if TYPE_CHECKING:
    # It takes memory, and most workers are never asked.
    from yurttunnel.ops.debug.service import ProcessPages
    from yurttunnel.server.workers.pages import AnsweredPages

REPORT_INTERVAL = 1.0
"""Seconds between two reports of figures."""

_SESSIONS_IN_ONE = 1000
"""Sessions in one message of figures, of some 400 bytes each."""

_STREAMS_EVERY = 5
"""Of the reports this one tells of streams: looking at 10,000 takes some milliseconds."""


class Worker:
    """The parts of a worker, once it has been told what it is to be.

    ``send`` sends to the first process, ``link`` is the connection for the session with it, and
    ``first_lost`` is called when that has ended.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: DirectReactor,
        settings: WorkerSettings,
        channel: Channel,
        link: socket.socket,
        first_lost: Callable[[], object],
    ) -> None:
        self._reactor = reactor
        self._channel = channel
        budget = MemoryBudget(settings.budget)
        counters = TunnelCounters()
        registry = SessionRegistry(reactor)
        self._budget = budget
        self._agents = AdmittedAgents(
            SessionContext(reactor, counters, budget, RefuseStreams()),
            registry,
            AgentListenerSettings(
                limits=Limits(resume_window=round(settings.resume_window * 1000)),
                return_grace=settings.return_grace,
                name="server",
                software=__version__,
                process=bytes.fromhex(settings.process),
            ),
            self._ask,
        )
        self._agents.on_ended.append(self._session_ended)
        self._callers = ConnectFactory(reactor, registry)
        if settings.audited:
            self._callers.audit = Audit(reactor, self._write_audit)
        context = SessionContext(reactor, TunnelCounters(), budget, SiblingStreams(registry))
        session = link_session(context, Side.SERVER, settings.number)
        carry_link(reactor, link, session, first_lost)
        self._service = ServerService(
            reactor,
            [],
            [self._agents, Link(session)],
            [self._callers],
            settings.drain_timeout,
        )
        self._contexts: ServerContexts | None = None
        self._growth = Growth(counters, self._agents.refusals)
        self._changes = SnapshotChanges()
        self._lag = ReactorLag(reactor)
        self._freed = FreedMemory(reactor)
        self._pages: tuple[ProcessPages, AnsweredPages] | None = None
        self._reported = 0
        self._reports = LoopingCall(self._report)
        self._reports.clock = reactor

    def start(self) -> None:
        """Begin to tell figures."""
        self._service.startService()
        self._lag.startService()
        self._freed.startService()
        _ = self._reports.start(REPORT_INTERVAL, now=False).addErrback(self._defect)

    async def stop(self) -> None:
        """Let streams end within the drain timeout, then end the rest, and tell the last of it."""
        await self._service.stopService()
        self._lag.stopService()
        self._freed.stopService()
        if self._pages is not None:
            await maybeDeferred(self._pages[0].stopService)
        if self._reports.running:
            self._reports.stop()
            self._report()
        await self._channel.all_sent()

    # -- what the first process says -----------------------------------------------------------

    def use_credentials(self, message: Message) -> None:
        """Show itself to agents in another way from now on."""
        credentials = messages.credentials_from_fields(message.fields)
        if self._contexts is None:
            self._contexts = ServerContexts(credentials)
            self._secured = tls.server_side(self._reactor, self._contexts, self._agents)
            self._channel.send(messages.READY)
            return
        try:
            self._contexts.rotate(credentials, utc_now(self._reactor))
        except BadCredentials as error:
            # The first process uses them, and says what there is to say.
            self._log.debug("a certificate is not used: {error}", error=error)

    def take_agent(self, message: Message) -> None:
        """Begin TLS with an agent."""
        self._take(message, self._build_secured)

    def take_caller(self, message: Message) -> None:
        """Serve a caller."""
        node, flag = message.fields["node"], message.fields["flag"]
        self._take(message, lambda _: self._callers.passed_on_here(node, flag))

    def admitted(self, message: Message) -> None:
        """Let an agent in."""
        fields = message.fields
        identity = messages.identity_from_fields(fields["identity"])
        self._agents.admitted(fields["number"], identity, fields["servers"])

    def tell_servers(self, message: Message) -> None:
        """Notify agents how many servers there are now."""
        self._agents.servers_changed(message.fields["servers"])

    def refused(self, message: Message) -> None:
        """Turn an agent away."""
        fields = message.fields
        self._agents.refused(fields["number"], Code(fields["code"]), fields["text"])

    def check(self, message: Message) -> None:
        """Report who has been let in as a node, of which something has been revoked."""
        for identity in self._agents.identities(message.fields["node"]):
            self._channel.send(messages.CHECKED, messages.identity_to_fields(identity))

    def end(self, message: Message) -> None:
        """End the sessions of a node."""
        fields = message.fields
        written = fields.get("identity")
        identity = None if written is None else messages.identity_from_fields(written)
        self._agents.end(fields["node"], Code(fields["code"]), fields["text"], identity)

    def show_page(self, message: Message) -> None:
        """Make a page of /debug."""
        if self._pages is None:
            from yurttunnel.ops.debug.service import ProcessPages
            from yurttunnel.server.workers.pages import AnsweredPages

            own = ProcessPages(self._reactor, self._agents.sessions, self._lag)
            own.startService()
            self._pages = own, AnsweredPages(own.pages, self._channel.send)
        self._pages[1].show(message.fields)

    # -- what it says --------------------------------------------------------------------------

    def _ask(self, number: int, certificate: bytes) -> None:
        self._channel.send(messages.ADMIT, {"number": number}, certificate)

    def _session_ended(self, node: str, why: str) -> None:
        self._channel.send(messages.ENDED, {"node": node, "why": why})

    def _write_audit(self, line: bytes) -> None:
        self._channel.send(messages.AUDIT, {}, line)

    def _report(self) -> None:
        sessions = [session.snapshot() for session in self._agents.sessions()]
        changed, gone = self._changes.take(sessions)
        fields: dict[str, Any] = {
            "growth": self._growth.take(),
            "memory": self._budget.used,
            "lag": self._lag.worst(),
            "gone": gone,
        }
        self._reported += 1
        if self._reported % _STREAMS_EVERY == 0:
            oldest = oldest_streams(self._agents.sessions(), MOST_STREAMS, lambda report: True)
            fields["streams"] = list(map(asdict, oldest))
        first, rest = changed[:_SESSIONS_IN_ONE], changed[_SESSIONS_IN_ONE:]
        fields["changed"] = list(map(messages.snapshot_to_fields, first))
        self._channel.send(messages.FIGURES, fields)
        while rest:
            first, rest = rest[:_SESSIONS_IN_ONE], rest[_SESSIONS_IN_ONE:]
            more = list(map(messages.snapshot_to_fields, first))
            self._channel.send(messages.FIGURES, {"changed": more})

    # -- helpers -------------------------------------------------------------------------------

    def _take(self, message: Message, build: Callable[[IAddress], IProtocol | None]) -> None:
        if message.connection is None:
            return
        protocol = self._reactor.adopt(message.connection, build)
        if protocol is not None and message.data:
            protocol.dataReceived(message.data)

    def _build_secured(self, address: IAddress) -> IProtocol | None:
        built: IProtocol | None = self._secured.buildProtocol(address)
        return built

    def _defect(self, failure: Failure) -> None:
        self._log.failure("Defect: the figures of a worker are not told any longer", failure)


class Program:
    """The process: waits to be told what it is to be, and ends when it is told, or left alone."""

    _log = Logger()

    def __init__(self, reactor: DirectReactor, control: socket.socket, link: socket.socket) -> None:
        self._reactor = reactor
        self._link = link
        self._channel = Channel(reactor, control, self._received, self._left_alone)
        self._worker: Worker | None = None
        self._log_to_first = LogToFirst(self._channel, verbose=False)
        self._stopping: Deferred[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Listen to the first process."""
        self._channel.start()

    def _received(self, message: Message) -> None:
        if message.kind == messages.START:
            self._begin(WorkerSettings(**message.fields))
        elif message.kind == messages.DRAIN:
            self._drain()
        elif message.kind == messages.VERBOSE:
            self._log_to_first.verbose = message.fields["verbose"]
        elif self._worker is not None:
            _HANDLERS[message.kind](self._worker, message)

    def _begin(self, settings: WorkerSettings) -> None:
        self._log_to_first.verbose = settings.verbose
        globalLogBeginner.beginLoggingTo([FloodLimit(self._log_to_first)], redirectStandardIO=False)
        self._worker = Worker(self._reactor, settings, self._channel, self._link, self._link_lost)
        self._worker.start()

    def _drain(self) -> None:
        if self._worker is not None and self._stopping is None:
            self._stopping = Deferred.fromCoroutine(self._worker.stop())
            _ = self._stopping.addBoth(self._stop)

    def _stop(self, result: object) -> None:
        if isinstance(result, Failure):
            self._log.failure("Defect: a worker could not end cleanly", result)
        self._stopped = True
        self._reactor.stop()

    def _link_lost(self) -> None:
        if self._stopping is None:
            self._left_alone("its session with the first process has ended")

    def _left_alone(self, reason: str) -> None:
        """End at once: without the first process nobody comes, and nobody would be told."""
        if self._stopped:
            return
        if reason != ENDED:
            # The way to the log is what is broken.
            os.write(2, f"a worker of yurttunnel-server ends: {reason}\n".encode())
        os._exit(1)


_HANDLERS: dict[str, Callable[[Worker, Message], None]] = {
    messages.CREDENTIALS: Worker.use_credentials,
    messages.AGENT: Worker.take_agent,
    messages.CALLER: Worker.take_caller,
    messages.ADMITTED: Worker.admitted,
    messages.SERVERS: Worker.tell_servers,
    messages.REFUSED: Worker.refused,
    messages.CHECK: Worker.check,
    messages.END: Worker.end,
    messages.PAGE: Worker.show_page,
}


def main() -> None:
    """Run a worker, as the first process has started it."""
    # The first process aborts a worker that hangs, and logs what it leaves there.
    os.set_inheritable(STACK_DESCRIPTOR, False)
    faulthandler.enable(STACK_DESCRIPTOR)
    # A terminal and systemd signal all processes; the first one decides what is done about it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # To import it is to install it, which only a program may do.
    reactor = installed_reactor()
    control = socket.socket(fileno=CONTROL_DESCRIPTOR)
    link = socket.socket(fileno=LINK_DESCRIPTOR)
    for each in (control, link):
        each.set_inheritable(False)
    make_steady(reactor)
    Program(DirectReactor(reactor), control, link).start()
    reactor.run(installSignalHandlers=False)  # type: ignore[call-arg] # the interface lacks it
