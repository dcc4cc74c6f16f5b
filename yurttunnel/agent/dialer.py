"""Connects to the targets that servers request, as far as the node's policy allows.

A dial waits for its turn if its target has many, then passes the policy, the lookup (names only)
and the connection attempts, and has exactly one result: the stream is accepted and joined to the
socket, or fails with a code and a text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import (
    IAddress,
    IConnector,
    IDelayedCall,
    IReactorTCP,
    IReactorTime,
    ISystemHandle,
)
from twisted.internet.protocol import ClientFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.agent.dial_attempts import AttemptFailure, describe_failure, interleave_families
from yurttunnel.agent.dial_queue import DialQueue
from yurttunnel.agent.dialed_sockets import DialedSockets
from yurttunnel.agent.policy import DestinationPolicy, destination, dialed_host
from yurttunnel.agent.resolver import NodeResolver, TooManyLookups
from yurttunnel.http.authority import Address
from yurttunnel.metrics import Durations
from yurttunnel.tunnel.interfaces import IStreamAcceptor, IStreamRequest
from yurttunnel.tunnel.relay import LocalConnection
from yurttunnel.tunnel.sockets import tune_tcp_socket
from yurttunnel.wire.codes import Code

_Target = tuple[Address | str, int]


class DialLimits(NamedTuple):
    """The limits of the dialer; times are in seconds.

    ``max_pending``: dials without a result, as many as the streams that one session may have by
    default. Further ones are rejected at once, or evict one that waits for a target with more.
    ``max_concurrent``: dials to the same host and port that are in progress; others wait for their
    turn or their timeout. So a target that never responds leaves sockets for the others, and a
    burst is served in portions. ``max_timeout``: the agent's own maximum, whatever timeout the
    server requests. ``attempt_delay``: how long an attempt with one address of a name may take
    before the next is tried concurrently (RFC 8305 section 5 recommends 250 ms).
    ``max_addresses``: how many addresses of one name are tried.
    """

    max_pending: int = 1000
    max_concurrent: int = 250
    max_timeout: float = 30.0
    attempt_delay: float = 0.25
    max_addresses: int = 16


@implementer(IStreamAcceptor)
class Dialer:
    """Serves the requests of the servers' sessions with connections from this node.

    ``reactor`` provides ``IReactorTCP`` and ``IReactorTime``; ``node`` is the node's name, for
    messages. ``durations`` records how long each successful dial took. ``sockets`` knows this
    node's ends of the connections.
    """

    log = Logger()

    def __init__(
        self,
        reactor: object,
        policy: DestinationPolicy,
        resolver: NodeResolver,
        node: str,
        durations: Durations,
        limits: DialLimits | None = None,
    ) -> None:
        self.tcp = IReactorTCP(reactor)
        self.clock = IReactorTime(reactor)
        self.policy = policy
        self.node = node
        self.limits = limits or DialLimits()
        self.durations = durations
        self.sockets = DialedSockets(self.clock)
        self._resolver = resolver
        self._dials: set[_Dial] = set()
        self._queue: DialQueue[_Dial] = DialQueue(self.limits.max_concurrent)
        self._starting: set[_Target] = set()
        self._stopped = False

    def stream_requested(self, request: IStreamRequest) -> None:
        """Dial the target of ``request``, and respond within its timeout."""
        dial = _Dial(self, request)
        self._dials.add(dial)
        self._guard(dial, self._begin)

    def stop(self) -> None:
        """Abort all pending dials, and reject new ones."""
        self._stopped = True
        for dial in tuple(self._dials):
            dial.fail(Code.GOING_AWAY, f"the agent of node {self.node} is stopping")

    def dial_ended(self, dial: _Dial) -> None:
        """Make room for others; dials call this once."""
        self._dials.discard(dial)
        if dial.target is not None and self._queue.remove(dial.target, dial):
            self._start_queued(dial.target)

    def _guard(self, dial: _Dial, begin: Callable[[_Dial], None]) -> None:
        """Start ``dial``; a defect must not end the session with all other streams."""
        try:
            begin(dial)
        except Exception:
            dial.log_defect()
            dial.fail(Code.INTERNAL, f"connect {dial.target_text} from {self.node}: internal error")

    def _begin(self, dial: _Dial) -> None:
        """Reject ``dial``, or start it in the shortest way that its destination allows."""
        request = dial.request
        if self._stopped:
            dial.fail(Code.GOING_AWAY, f"the agent of node {self.node} is stopping")
        elif dial.deadline <= dial.started:
            dial.fail_to_connect(Code.TIMEOUT, "its deadline had passed already")
        elif not 1 <= request.port <= 65535:
            dial.fail(Code.BAD_DESTINATION, f"{request.port} is not a port")
        else:
            try:
                target = dialed_host(request.host), request.port
            except ValueError as reason:
                dial.fail(Code.BAD_DESTINATION, str(reason))
                return
            request.on_cancel(dial.cancel)
            if not dial.is_done:
                self._enqueue(dial, target)

    def _enqueue(self, dial: _Dial, target: _Target) -> None:
        """Start ``dial`` if it is its turn, queue it, or reject it if there is no room."""
        if len(self._dials) > self.limits.max_pending:
            evicted = self._queue.evictable_for(target)
            (evicted or dial).fail_to_connect(
                Code.OVERLOADED, f"{self.limits.max_pending} others are in progress there"
            )
            if evicted is None:
                return
        dial.target = target
        if self._queue.add(target, dial):
            self._start(dial)
        else:
            dial.wait_in_queue(self.limits.max_concurrent)

    def _start_queued(self, target: _Target) -> None:
        """Start the dials whose turn has come; some end synchronously, which must not recurse."""
        if target in self._starting or self._stopped:
            return
        self._starting.add(target)
        while (dial := self._queue.next(target)) is not None:
            self._guard(dial, self._start)
        self._starting.remove(target)

    def _start(self, dial: _Dial) -> None:
        """Connect at once to an address or one of the node's names; resolve other names."""
        dial.stop_timer()
        assert dial.target is not None  # it has its turn
        host, port = dial.target
        if not isinstance(host, str):
            dial.connect((host,), looked_up=False)
        elif (own_addresses := self._resolver.own_addresses(host)) is not None:
            dial.connect(own_addresses, looked_up=False)
        elif self.policy.may_look_up(host, port):
            dial.look_up(self._resolver, host)
        else:
            dial.fail(Code.DENIED, self.policy.denial(host, port))


class _Dial:
    """One request, until it has a result; everything it started ends with it."""

    __slots__ = (
        "_attempts",
        "_dialer",
        "_failures",
        "_lookup",
        "_timer",
        "_untried",
        "deadline",
        "is_done",
        "request",
        "sockets",
        "started",
        "target",
    )

    def __init__(self, dialer: Dialer, request: IStreamRequest) -> None:
        self._dialer = dialer
        self.request: IStreamRequest = request
        self.sockets = dialer.sockets
        self.started = dialer.clock.seconds()
        self.deadline = self.started + min(request.timeout, dialer.limits.max_timeout)
        self.is_done = False
        self.target: _Target | None = None
        self._lookup: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None
        self._untried: deque[Address] = deque()
        self._attempts: list[_Attempt] = []
        self._failures: list[AttemptFailure] = []

    @property
    def target_text(self) -> str:
        """The requested target, for messages."""
        return destination(self.request.host, self.request.port)

    # The turn

    def wait_in_queue(self, before: int) -> None:
        """Wait until the dialer continues this dial; ``before`` others are in progress."""
        self._timer = self._dialer.clock.callLater(self._remaining(), self._queue_timed_out, before)

    def _queue_timed_out(self, before: int) -> None:
        """Fail because the target has not responded."""
        self._timer = None
        self.fail_to_connect(Code.TIMEOUT, f"it has not answered {before} earlier dials in time")

    # The name

    def look_up(self, resolver: NodeResolver, name: str) -> None:
        """Resolve ``name``, then connect."""
        self._timer = self._dialer.clock.callLater(self._remaining(), self._lookup_timed_out)
        # It may have fired already; cancelling it then has no effect.
        self._lookup = (
            resolver.look_up(name)
            .addCallbacks(self._looked_up, self._lookup_failed)
            .addErrback(self._crashed)
        )

    def _looked_up(self, addresses: list[Address]) -> None:
        """Continue with the resolved addresses."""
        self.stop_timer()
        if addresses:
            self.connect(addresses, looked_up=True)
        else:
            self.fail_to_connect(Code.NAME_NOT_RESOLVED, "the name has no address there")

    def _lookup_failed(self, reason: Failure) -> None:
        """Fail with the reason of the lookup, unless this dial cancelled it."""
        if isinstance(reason.value, TooManyLookups):
            self.fail_to_connect(Code.OVERLOADED, str(reason.value))
        elif isinstance(reason.value, OSError):
            why = reason.value.strerror or str(reason.value)
            self.fail_to_connect(Code.OVERLOADED, f"the name could not be looked up: {why}")
        elif not (self.is_done and isinstance(reason.value, CancelledError)):
            self._crashed(reason)

    def _lookup_timed_out(self) -> None:
        """Fail because the name servers did not respond; the name may be right."""
        self._timer = None
        self.fail_to_connect(Code.TIMEOUT, "the name servers did not answer in time")

    # The addresses

    def connect(self, addresses: Sequence[Address], looked_up: bool) -> None:
        """Try the ``addresses`` that the policy allows, in order, with alternating families."""
        port = self.request.port
        allowed = [
            address
            for address in addresses
            if self._dialer.policy.may_connect(address, port, looked_up)
        ]
        if not allowed:
            text = self._dialer.policy.denial(addresses[0], port)
            if destination(addresses[0], port) != self.target_text:
                text = f"{self.target_text} leads to {destination(addresses[0], port)}: {text}"
            self.fail(Code.DENIED, text)
            return
        if len(allowed) > 1:
            allowed = interleave_families(allowed)[: self._dialer.limits.max_addresses]
        self._untried.extend(allowed)
        self._try_next()

    def _try_next(self) -> None:
        """Start an attempt with the next address, and schedule another one."""
        self.stop_timer()
        address = self._untried.popleft()
        attempt = _Attempt(self, address)
        self._attempts.append(attempt)
        dialer = self._dialer
        if self._untried:
            self._timer = dialer.clock.callLater(dialer.limits.attempt_delay, self._attempt_is_slow)
        try:
            attempt.connector = dialer.tcp.connectTCP(
                str(address), self.request.port, attempt, self._remaining()
            )
        except OSError as reason:
            # A zone id without an interface on this host is detected before any attempt.
            self.attempt_failed(attempt, reason)

    def _attempt_is_slow(self) -> None:
        """Try the next address concurrently with the current attempts."""
        self._timer = None
        self._try_next()

    def attempt_failed(self, attempt: _Attempt, reason: BaseException) -> None:
        """Continue with the next address, or fail if this was the last."""
        if self.is_done:
            return
        self._attempts.remove(attempt)
        failure = describe_failure(reason, attempt.address)
        self._failures.append(failure)
        if failure.code is Code.OVERLOADED:
            # The next address would need the same exhausted resource.
            self._answer_failure()
        elif self._untried and self._dialer.clock.seconds() < self.deadline:
            self._try_next()
        elif not self._attempts:
            self._answer_failure()

    def _answer_failure(self) -> None:
        """Fail with the most specific failure: a response from the host ranks above silence."""
        most_specific = min(self._failures, key=AttemptFailure.rank)
        text = most_specific.text
        if len(self._failures) > 1:
            text = "; ".join(f"{failure.address}: {failure.text}" for failure in self._failures)
        self.fail_to_connect(most_specific.code, text)

    def attempt_connected(self, attempt: _Attempt, connection: LocalConnection) -> None:
        """Accept the stream and join it to the socket; called before the socket is read."""
        # It refers to the attempt.
        attempt.connector = None
        if self.is_done:
            connection.transport.abortConnection()
            return
        self._attempts.remove(attempt)
        self._end()
        self._dialer.durations.observe(self._dialer.clock.seconds() - self.started)
        transport: Any = connection.transport
        # The transports of real reactors provide their socket; in-memory ones have none.
        if ISystemHandle.providedBy(connection.transport):
            tune_tcp_socket(transport.getHandle())
        connection.join(self.request.accept())

    # The end

    def cancel(self) -> None:
        """Stop without a result: nobody waits for one any longer."""
        if not self.is_done:
            self._end()

    def fail(self, code: Code, text: str) -> None:
        """Fail the request, unless it has a result already."""
        if not self.is_done:
            self._end()
            self.request.fail(code, text)

    def fail_to_connect(self, code: Code, text: str) -> None:
        """Fail with a text that begins with the target and the node."""
        self.fail(code, f"connect {self.target_text} from {self._dialer.node}: {text}")

    def _remaining(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self.deadline - self._dialer.clock.seconds())

    def _crashed(self, reason: Failure) -> None:
        """Fail because of a defect in a callback."""
        self.log_defect(reason)
        self.fail_to_connect(Code.INTERNAL, "internal error, see the agent's log")

    def log_defect(self, reason: Failure | None = None) -> None:
        """Log ``reason``, or the exception that is being handled."""
        self._dialer.log.failure(
            "Defect: dialing {destination} for {request_id} failed",
            reason,
            destination=self.target_text,
            request_id=self.request.request_id,
        )

    def _end(self) -> None:
        """Stop everything that was started, and notify the dialer."""
        self.is_done = True
        self._dialer.dial_ended(self)
        self.stop_timer()
        self._untried.clear()
        if self._lookup is not None:
            self._lookup.cancel()
        attempts, self._attempts = self._attempts, []
        for attempt in attempts:
            if attempt.connector is not None:
                attempt.connector.stopConnecting()

    def stop_timer(self) -> None:
        """Stop the timer of the turn, of the lookup or of the next attempt."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


class _Attempt(ClientFactory):
    """One attempt to connect to one address."""

    noisy = False

    def __init__(self, dial: _Dial, address: Address) -> None:
        self.address = address
        self.connector: IConnector | None = None
        self._dial = dial

    def buildProtocol(self, addr: IAddress | None) -> LocalConnection:
        return _DialedConnection(self, self._dial, self._dial.sockets)

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        """Report the reason to the dial."""
        self.connector = None
        # The value is typed as optional only for failures under construction.
        self._dial.attempt_failed(self, cast(BaseException, reason.value))


class _DialedConnection(LocalConnection):
    """A connected socket, which joins its stream before the reactor first reads it."""

    def __init__(self, attempt: _Attempt, dial: _Dial, sockets: DialedSockets) -> None:
        self._attempt = attempt
        self._dial = dial
        self._sockets = sockets

    def connectionMade(self) -> None:
        """Record this end, and notify the dial."""
        self._addresses = self.transport.getHost(), self.transport.getPeer()
        self._sockets.opened(*self._addresses)
        self._dial.attempt_connected(self._attempt, self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Record that this end is closed, and end the stream."""
        self._sockets.closed(*self._addresses)
        super().connectionLost(reason)
