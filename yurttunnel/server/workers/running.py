"""One worker process, from its start to its end, as the first process sees it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.interfaces import IDelayedCall, IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from yurttunnel.ops.debug.pages import Answer, Parameters
from yurttunnel.ops.status.streams import StreamReport
from yurttunnel.pki.credentials import Credentials
from yurttunnel.pki.identity import NodeIdentity
from yurttunnel.server.agents import RefuseStreams, revoked
from yurttunnel.server.registry import INodeSession, SessionRegistry
from yurttunnel.server.siblings.session import SiblingSession
from yurttunnel.server.workers import messages
from yurttunnel.server.workers.admission import certificate_from_der
from yurttunnel.server.workers.channel import ENDED, Channel, Message
from yurttunnel.server.workers.link import carry_link, link_session
from yurttunnel.server.workers.log import write_log
from yurttunnel.server.workers.nodes import WorkerNodes
from yurttunnel.server.workers.pages import AskedPages
from yurttunnel.server.workers.settings import (
    CONTROL_DESCRIPTOR,
    LINK_DESCRIPTOR,
    STACK_DESCRIPTOR,
    WorkerSettings,
)
from yurttunnel.server.workers.stats import add_growth
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.reactor import IReactor
from yurttunnel.tunnel.session import SessionContext, TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import Violation
from yurttunnel.wire.stream_table import Side

SILENCE = 15
"""Seconds without a report, of which one comes each second, after which a worker has hung. Callers
that it was given have waited as long as a dial may take."""

START_TIMEOUT = 60
"""Seconds that a worker may take until it is ready."""

STACK_TIME = 1.0
"""Seconds in which a worker that has failed may leave its stack, before it is killed."""

_LONGEST_STACK = 64 * 1024
"""Bytes of stacks that are logged."""

_NOT_FOR_WORKERS = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
"""Beginnings of environment variables that systemd means for the first process alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstProcess:
    """What workers need of the first process.

    ``identity_of`` and ``is_revoked`` are those of the agents' listener, ``replicas()`` is how
    many servers there are. ``drains`` is told of ways by which nothing new is opened, ``ended``
    of each session's end by its node, and why. ``counters`` and ``refusals`` are what to add
    to. ``audit`` takes lines of the audit log, ``None`` without one.
    """

    registry: SessionRegistry
    budget: MemoryBudget
    identity_of: Callable[[Any], NodeIdentity]
    is_revoked: Callable[[NodeIdentity], bool]
    replicas: Callable[[], int | None]
    drains: Callable[[frozenset[INodeSession]], object]
    ended: Callable[[str, str], object]
    counters: TunnelCounters
    refusals: Counter[str]
    audit: Callable[[bytes], None] | None


Spawn = Callable[[ProcessProtocol, Mapping[int, int]], IProcessTransport]
"""Starts a process that has descriptors under the numbers that workers know."""


def spawn_worker(
    reactor: IReactor, protocol: ProcessProtocol, descriptors: Mapping[int, int]
) -> Any:
    """Start a worker by the interpreter that runs this process, with its output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_NOT_FOR_WORKERS)
    }
    # Nothing is imported from the working directory (-P).
    arguments = [sys.executable, "-P", "-m", "yurttunnel.server.workers"]
    with open(os.devnull, "rb") as nothing:
        return reactor.spawnProcess(
            protocol,
            sys.executable,
            arguments,
            env=environment,
            childFDs={0: nothing.fileno(), 1: 1, 2: 2, **descriptors},
        )


class RunningWorker(ProcessProtocol):
    """A worker; ``room`` is called when it takes connections, ``gone`` when it has ended.

    ``spawn`` starts the process. Whatever ends of what there is to it (the channel, the session,
    the process), all of it ends.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: DirectReactor,
        settings: WorkerSettings,
        first: FirstProcess,
        spawn: Spawn,
        room: Callable[[], object],
        gone: Callable[[str], object],
    ) -> None:
        self.number = settings.number
        self.is_ready = False
        self.memory = 0
        self.lag = 0.0
        self.snapshots: dict[str, SessionSnapshot] = {}
        self.streams: list[StreamReport] = []
        self._first = first
        self._room = room
        self._gone = gone
        self._failed = False
        self._problem = ""
        self._exited: list[Deferred[None]] = []
        self._running = True
        self._why_ended: dict[str, str] = {}
        control, its_control = socket.socketpair()
        link, its_link = socket.socketpair()
        link.setblocking(False)
        self._reactor = reactor
        self._link: socket.socket | None = link
        self._stack = os.memfd_create("yurttunnel-stack")
        self._kill_call: IDelayedCall | None = None
        with its_control, its_link:
            descriptors = {
                CONTROL_DESCRIPTOR: its_control.fileno(),
                LINK_DESCRIPTOR: its_link.fileno(),
                STACK_DESCRIPTOR: self._stack,
            }
            try:
                self._process = spawn(self, descriptors)
            except OSError:
                control.close()
                link.close()
                os.close(self._stack)
                raise
        self._channel = Channel(reactor, control, self._received, self._channel_lost, room)
        context = SessionContext(reactor, TunnelCounters(), first.budget, RefuseStreams())
        self.session: TunnelSession = link_session(context, Side.AGENT, self.number)
        self._nodes = WorkerNodes(
            reactor, first.registry, self.session, first.drains, self._channel, self._node_gone
        )
        self._sibling = SiblingSession(self.session, self._nodes)
        self.session.on_going_away.append(self._sibling.leave)
        self.session.on_closed.append(self._session_closed)
        self._pages = AskedPages(reactor, self.number, self._channel.send)
        self._channel.start()
        self._channel.send(messages.START, settings.to_fields())
        self._silent_for = 0
        # Each second counts once, however long this process itself was stopped.
        self._watch = LoopingCall(self._look)
        self._watch.clock = reactor
        _ = self._watch.start(1, now=False)

    @property
    def pid(self) -> int | None:
        """The process, for the figures of its resources; ``None`` when it has ended."""
        return self._process.pid if self._running else None

    # -- for the workers' service --------------------------------------------------------------

    def use_credentials(self, credentials: Credentials) -> None:
        """Have it show itself to agents by ``credentials`` from now on."""
        self._channel.send(messages.CREDENTIALS, messages.credentials_to_fields(credentials))

    def take_agent(self, connection: socket.socket, received: bytes) -> bool:
        """Pass an agent's connection on; ``False`` when there is no room, or it is not ready."""
        return self.is_ready and self._channel.pass_on(messages.AGENT, {}, received, connection)

    def check(self, node: str) -> None:
        """Have it say who is let in as ``node``, of which something has been revoked."""
        self._channel.send(messages.CHECK, {"node": node})

    def tell_servers(self, servers: int) -> None:
        """Have it tell its agents how many servers there are now."""
        self._channel.send(messages.SERVERS, {"servers": servers})

    def be_verbose(self, verbose: bool) -> None:
        """Have it log what helps to find defects, or no more."""
        self._channel.send(messages.VERBOSE, {"verbose": verbose})

    def ask_page(self, name: str, method: bytes, parameters: Parameters) -> Deferred[Answer]:
        """Have it answer for a page of /debug; the answer comes in any case."""
        return self._pages.ask(name, method, parameters)

    def drain(self) -> None:
        """Have it end when its streams have ended, or after the drain timeout."""
        self.is_ready = False
        self._channel.send(messages.DRAIN)

    def kill(self) -> None:
        """End it now."""
        self._signal(signal.SIGKILL)

    def exited(self) -> Deferred[None]:
        """Return what fires when the process has ended."""
        exited: Deferred[None] = Deferred()
        if self._running:
            self._exited.append(exited)
        else:
            exited.callback(None)
        return exited

    # -- ProcessProtocol -----------------------------------------------------------------------

    def processExited(self, reason: Failure) -> None:
        """Take what it has left behind, and tell that it has ended."""
        self._channel.read_rest()
        self._running = False
        if self._kill_call is not None and self._kill_call.active():
            self._kill_call.cancel()
        self._fail("")
        self._log_stack()
        self._gone(self._problem or _status(reason))
        exited, self._exited = self._exited, []
        for each in exited:
            each.callback(None)

    # -- what the worker says ------------------------------------------------------------------

    def _received(self, message: Message) -> None:
        _HANDLERS[message.kind](self, message)

    def _takes_connections(self, message: Message) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        # Not before: its session would be given up while the process is still being loaded.
        carry_link(self._reactor, link, self.session, lambda: self._fail(""))
        self._sibling.ask_for_nodes()
        self.is_ready = True
        self._silent_for = 0
        self._room()

    def _admit(self, message: Message) -> None:
        number = message.fields["number"]
        try:
            identity = self._first.identity_of(certificate_from_der(message.data))
        except Violation as violation:
            fields = {"number": number, "code": violation.code.value, "text": violation.text}
            self._channel.send(messages.REFUSED, fields)
            return
        fields = {
            "number": number,
            "identity": messages.identity_to_fields(identity),
            "servers": self._first.replicas(),
        }
        self._channel.send(messages.ADMITTED, fields)

    def _checked(self, message: Message) -> None:
        identity = messages.identity_from_fields(message.fields)
        if not self._first.is_revoked(identity):
            return
        node, text = identity.node, revoked(identity.node)
        self._log.info("{text}; its session is ended", text=text, node=node)
        fields = {"code": Code.REVOKED.value, "text": text, "identity": message.fields}
        self._channel.send(messages.END, {"node": node, **fields})

    def _session_ended(self, message: Message) -> None:
        node, why = message.fields["node"], message.fields["why"]
        if self._nodes.has(node):
            # Its list of nodes, which goes another way, does not say so yet.
            self._why_ended[node] = why
        else:
            self._first.ended(node, why)

    def _node_gone(self, node: str) -> None:
        why = self._why_ended.pop(node, None)
        if why is None and self._failed:
            why = "the process of the server that had the session has ended"
        if why is not None:
            self._first.ended(node, why)

    def _count(self, message: Message) -> None:
        self._silent_for = 0
        fields = message.fields
        add_growth(self._first.counters, self._first.refusals, fields.get("growth", {}))
        self.memory = fields.get("memory", self.memory)
        self.lag = fields.get("lag", self.lag)
        if "streams" in fields:
            self.streams = [StreamReport(**written) for written in fields["streams"]]
        for session_id in fields.get("gone", ()):
            self.snapshots.pop(session_id, None)
        for written in fields["changed"]:
            snapshot = messages.snapshot_from_fields(written)
            self.snapshots[snapshot.session_id] = snapshot

    def _page_made(self, message: Message) -> None:
        self._pages.answered(message.fields)

    def _write_audit(self, message: Message) -> None:
        if self._first.audit is not None:
            self._first.audit(message.data)

    def _write_log(self, message: Message) -> None:
        write_log(message.fields, self.number)

    # -- helpers -------------------------------------------------------------------------------

    def _look(self) -> None:
        self._silent_for += 1
        limit = SILENCE if self._link is None else START_TIMEOUT
        if self._silent_for >= limit:
            self._fail(f"it has hung: nothing was heard of it for {limit} s")

    def _channel_lost(self, reason: str) -> None:
        self._fail("" if reason == ENDED else reason)

    def _session_closed(self, code: Code, text: str) -> None:
        lost = code is Code.SESSION_LOST
        if code is not Code.GOING_AWAY:
            self._fail("" if lost else f"its session has ended: {text} ({code.name})")
        self._nodes.clear()

    def _fail(self, problem: str) -> None:
        """End all of it; ``problem`` says why, if it is not for the end of the process.

        That is mostly known first by the end of the sockets, and the status of the process says
        why. Of several problems the first one counts.
        """
        self._failed = True
        self._problem = self._problem or problem
        self.is_ready = False
        if self._watch.running:
            self._watch.stop()
        self._channel.close()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self.snapshots.clear()
        self.streams.clear()
        self.memory = 0
        if not self.session.closed:
            text = f"worker {self.number} of the server has ended"
            self.session.close(Code.SESSION_LOST, text)
        self._pages.end()
        if self._problem:
            self._abort()
        else:
            # It has ended, or has closed what it needs and is about to.
            self.kill()

    def _abort(self) -> None:
        """Have the process end by a signal at which it leaves its stack; if it hangs, kill it.

        One that was stopped (SIGSTOP) leaves none.
        """
        if self._running and self._kill_call is None:
            self._signal(signal.SIGABRT)
            self._kill_call = self._reactor.callLater(STACK_TIME, self.kill)

    def _signal(self, number: int) -> None:
        if self._running:
            try:
                self._process.signalProcess(number)
            except ProcessExitedAlready:
                # It has ended, of which the reactor is about to tell.
                return

    def _log_stack(self) -> None:
        stack = os.pread(self._stack, _LONGEST_STACK, 0).decode("utf-8", "backslashreplace")
        os.close(self._stack)
        # Of any other signal the first line says which it was.
        stack = stack.removeprefix("Fatal Python error: Aborted").strip()
        if stack:
            self._log.error(
                "worker {number} was here when it failed:\n{stack}",
                number=self.number,
                stack=stack,
            )


_HANDLERS: dict[str, Callable[[RunningWorker, Message], None]] = {
    messages.READY: RunningWorker._takes_connections,
    messages.ADMIT: RunningWorker._admit,
    messages.CHECKED: RunningWorker._checked,
    messages.ENDED: RunningWorker._session_ended,
    messages.FIGURES: RunningWorker._count,
    messages.PAGE_ANSWER: RunningWorker._page_made,
    messages.AUDIT: RunningWorker._write_audit,
    messages.LOG: RunningWorker._write_log,
}


def _status(reason: Failure) -> str:
    """Return how the process has ended."""
    if reason.check(ProcessDone):
        return "it has exited"
    error = reason.value
    if isinstance(error, ProcessTerminated) and error.signal is not None:
        return f"it was killed by signal {error.signal}"
    if isinstance(error, ProcessTerminated):
        return f"it has exited with status {error.exitCode}"
    return str(error)
