"""Tests of TCP proxy sockets, with real sockets on loopback: from clients to endpoints."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import hashlib
import os
import select
import socket
import time
from collections.abc import Callable
from unittest import mock

from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from tests.proxy.sockets.lab import (
    LOOPBACK,
    SECONDS,
    ProxyPeer,
    TcpLab,
    descriptors_in_use,
    service_of,
)
from yurttunnel.proxy.sockets import listener, tcp
from yurttunnel.proxy.sockets.half_closed import (
    CHECK_SECONDS,
    MAX_ENDED_PER_TURN,
    MAX_IDLE_SECONDS,
    HalfClosed,
)
from yurttunnel.proxy.sockets.listener import PAUSE_SECONDS, Listener
from yurttunnel.proxy.sockets.pacing import Pacing
from yurttunnel.proxy.sockets.relay import READ_BYTES, _End, _unacknowledged
from yurttunnel.proxy.state.virtual_services import Endpoint

MUCH = memoryview(os.urandom(1 << 20) * 100)
"""100 MiB, more than all kernel buffers on the path."""


class RelayTests(SynchronousTestCase):
    """Data that enters at one end leaves at the other."""

    timeout = 120

    def setUp(self) -> None:
        """Start with nothing open."""
        self.before = descriptors_in_use()
        self.lab = TcpLab(self)
        self.until = self.lab.until

    def join(self, version: int = 4) -> tuple[ProxyPeer, ProxyPeer]:
        """Connect a client through a proxy socket to an endpoint."""
        backend = self.lab.backend(version)
        self.socket, self.picker = self.lab.open(backend.endpoint, version=version)
        return self.lab.join(self.socket, backend, version)

    def assert_nothing_left(self, client: ProxyPeer, server: ProxyPeer) -> None:
        """The proxy has closed both of its ends, and counts no connection."""
        self.until(lambda: self.socket.stats().active == 0)
        self.assertEqual((self.lab.count.used, self.picker.counted), (0, 0))
        kinds = {type(one) for one in self.lab.descriptors.readers()}
        self.assertEqual(kinds, {Listener})
        self.assertEqual(self.lab.descriptors.writers(), [])

    def stall(self, sender: ProxyPeer) -> memoryview:
        """Send until the other end's buffers are full; return what is left of :data:`MUCH`."""
        left = MUCH
        for _ in range(50):
            left = sender.send_some(left)
            self.lab.reactor.turn()
        return left

    def fill(self, sender: ProxyPeer, end: _End) -> int:
        """Send until data waits at the relay's ``end``, and none before it.

        Each piece has the size of a read. Return how much was sent.
        """
        sent = 0

        def data_waits() -> bool:
            nonlocal sent
            if not end.waiting_bytes and end.transferred == sent:
                sent += sender.socket.send(MUCH[:READ_BYTES])
            return end.waiting_bytes > 0

        self.until(data_waits)
        return sent

    def until_ready(
        self, end: _End, event: int, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until the kernel has an event for the relay's ``end``, which is not served yet."""
        poll = select.poll()
        poll.register(end, event)
        deadline = time.monotonic() + SECONDS
        while not poll.poll(1):
            self.assertLess(time.monotonic(), deadline)
            meanwhile()

    def settle(self) -> None:
        """Wait until all data is acknowledged, which TCP may delay by 40 ms."""
        ends = [end for relay in self.socket._relays for end in (relay._client, relay._server)]
        self.until(lambda: not any(_unacknowledged(end.fileno()) for end in ends))

    def test_ended_relays_are_no_cycles(self) -> None:
        """Closed ends refer neither to their relay nor to each other, so all are freed at once."""
        client, server = self.join()
        (relay,) = self.socket._relays
        ends = [relay._client, relay._server]
        client.socket.close()
        server.socket.close()
        self.assert_nothing_left(client, server)
        for end in ends:
            self.assertEqual([], [one for one in (relay, *ends) if one in gc.get_referents(end)])

    def test_small_messages_go_both_ways(self) -> None:
        """In both families; bytes are counted, and the picker gets the client's address."""
        for version, address in ((4, "127.0.0.1"), (6, "::1")):
            client, server = self.join(version)
            client.socket.send(b"question")
            self.until(lambda server=server: server.read().received == b"question")
            server.socket.send(b"an answer")
            self.until(lambda client=client: client.read().received == b"an answer")
            stats = self.socket.stats()
            self.assertEqual((stats.active, stats.total, stats.failed), (1, 1, 0))
            self.assertEqual((stats.received, stats.sent), (8, 9))
            self.assertEqual(self.picker.clients, [address])

    def test_small_messages_take_no_pipe(self) -> None:
        """A pipe is only used once a read fills the buffer."""
        client, server = self.join()
        for size, pipes in ((READ_BYTES - 1, 0), (READ_BYTES, 1)):
            for _ in range(2):
                wanted = server.size + size
                client.socket.send(b"x" * size)
                self.until(lambda wanted=wanted: server.read().size == wanted)
            self.assertEqual(pipes, len(self.lab.pipes._idle))

    def test_round_trip_is_read_once_after_some_data(self) -> None:
        """Data that is sent to it counts, in any pieces, and not data that it sends."""
        asked: list[object] = []
        self.patch(Pacing, "use_bbr_if_distant", lambda pacing, connected: asked.append(connected))
        client, server = self.join()
        (joined,) = self.socket._relays
        one = [joined._server._socket]
        for size, seen in ((READ_BYTES - 1, []), (1, one), (READ_BYTES, one)):
            wanted = server.size + size
            client.socket.send(b"x" * size)
            self.until(lambda wanted=wanted: server.read().size == wanted)
            self.assertEqual(seen, asked)

    def test_both_ends_begin_without_a_pace(self) -> None:
        """The client's by its listening socket, and the endpoint's before it is connected."""
        begun: list[socket.socket] = []
        self.patch(Pacing, "use_reno", lambda pacing, unconnected: begun.append(unconnected))
        self.join()
        (joined,) = self.socket._relays
        self.assertEqual([self.socket._listening, joined._server._socket], begun)

    def test_an_endpoint_may_speak_first(self) -> None:
        """As with SMTP and MySQL."""
        client, server = self.join()
        server.socket.send(b"220 hello")
        self.until(lambda: client.read().received == b"220 hello")

    def test_connection_without_data(self) -> None:
        """Both ends close, and nothing remains."""
        client, server = self.join()
        client.socket.close()
        self.until(lambda: server.read().ended)
        server.socket.close()
        self.assert_nothing_left(client, server)
        self.assertEqual((self.socket.stats().received, self.socket.stats().sent), (0, 0))

    def test_100_mib_each_way_arrive_as_they_were_sent(self) -> None:
        """At the same time, through pipes, none of which stays in use; byte for byte."""
        client, server = self.join()
        expected = hashlib.sha256(MUCH).digest()
        to_server = to_client = MUCH

        def is_done() -> bool:
            nonlocal to_server, to_client
            to_server, to_client = client.send_some(to_server), server.send_some(to_client)
            client.read()
            server.read()
            return client.size == server.size == len(MUCH)

        self.until(is_done)
        self.assertEqual((client.hash.digest(), server.hash.digest()), (expected, expected))
        client.end()
        self.until(lambda: server.read().ended)
        server.end()
        self.assert_nothing_left(client, server)
        self.assertEqual(self.socket.stats().received, len(MUCH))
        self.assertEqual(self.socket.stats().sent, len(MUCH))

    def test_a_reader_that_stalls_costs_no_memory_and_gets_everything_later(self) -> None:
        """Its sender stalls as well, and nothing spins; the other direction continues."""
        client, server = self.join()
        left = self.stall(client)
        taken = len(MUCH) - len(left)
        self.assertGreater(len(left), 0)
        # The client's socket is not read, and the endpoint's waits until it is writable.
        self.assertEqual(len(self.lab.descriptors.writers()), 1)
        server.socket.send(b"wait")
        self.until(lambda: client.read().received == b"wait")

        def is_done() -> bool:
            nonlocal left
            left = client.send_some(left)
            return server.read().size == len(MUCH)

        self.assertLess(taken, len(MUCH))
        self.until(is_done)
        self.assertEqual(server.hash.digest(), hashlib.sha256(MUCH).digest())
        self.assertEqual(self.lab.descriptors.writers(), [])

    def test_data_received_during_a_stall_follows_at_once(self) -> None:
        """By the event that it accepts data again, without another event of the source."""
        client, server = self.join()
        self.stall(client)
        [stalled] = self.lab.descriptors.writers()
        before = self.socket.stats().received
        for _ in range(100):
            server.read()
            stalled.doWrite()
        self.assertGreater(self.socket.stats().received, before)

    def test_without_pipes_everything_is_copied(self) -> None:
        """If there are no descriptors for more pipes."""
        self.lab.pipes._most = 0
        client, server = self.join()
        left = MUCH[: 20 << 20]

        def is_done() -> bool:
            nonlocal left
            left = client.send_some(left)
            return server.read().size == 20 << 20

        self.until(is_done)
        self.assertEqual(server.hash.digest(), hashlib.sha256(MUCH[: 20 << 20]).digest())

    # Ends of connections.

    def test_each_direction_ends_alone(self) -> None:
        """Request, half-close, response: by the client, or by the endpoint."""
        for index in (0, 1):
            ends = self.join()
            one, other = ends[index], ends[1 - index]
            one.socket.send(b"all of it")
            one.end()
            self.until(lambda other=other: other.read().ended)
            self.assertEqual(other.received, b"all of it")
            for piece in (b"first", b" and last"):
                other.socket.send(piece)
                self.until(lambda one=one, piece=piece: one.read().received.endswith(piece))
            other.socket.close()
            self.until(lambda one=one: one.read().ended)
            self.assert_nothing_left(*ends)

    def test_end_follows_all_data(self) -> None:
        """This also holds if the reader is slower."""
        client, server = self.join()
        left = MUCH

        def all_is_sent() -> bool:
            nonlocal left
            left = client.send_some(left)
            server.read()
            return not left

        self.until(all_is_sent)
        client.socket.close()
        self.until(lambda: server.read().ended)
        self.assertEqual(server.hash.digest(), hashlib.sha256(MUCH).digest())

    def test_an_end_that_an_endpoint_s_event_has_found_is_passed_on_once(self) -> None:
        """The client's own event of the same round follows, where it is writable as well. An
        endpoint that has answered and closed by then is not reset.
        """
        client, server = self.join()
        [relay] = self.socket._relays
        answer, serve = self.fill(server, relay._server), self.lab.descriptors._serve
        self.fill(client, relay._client)
        # The kernel returns ready descriptors in the order in which they became ready.
        self.lab.reactor.turn()
        self.until_ready(relay._server, select.POLLOUT, server.read)
        client.end()
        self.until_ready(relay._client, select.POLLIN)
        served: list[int] = []

        def serve_and_answer(number: int, event: int) -> None:
            serve(number, event)
            served.append(number)
            if not server.ended and server.read().ended:
                server.socket.close()

        self.patch(self.lab.descriptors, "_serve", serve_and_answer)
        self.lab.reactor.turn()
        self.assertEqual(served[:2], [relay._server.fileno(), relay._client.fileno()])
        self.until(lambda: client.read().ended or client.reset)
        self.assertEqual((client.size, client.reset), (answer, False))
        self.assert_nothing_left(client, server)

    def test_idle_half_closed_connection_is_closed_after_a_minute(self) -> None:
        """One with data is not; abandoned peers leave nothing behind."""
        client, server = self.join()
        client.end()
        self.until(lambda: server.read().ended)
        for _ in range(3 * int(MAX_IDLE_SECONDS / CHECK_SECONDS)):
            server.socket.send(b"x")
            self.until(lambda size=client.size: client.read().size > size)
            self.settle()
            self.lab.reactor.advance(CHECK_SECONDS)
        self.lab.reactor.pump([CHECK_SECONDS] * (int(MAX_IDLE_SECONDS / CHECK_SECONDS) - 1))
        self.assertEqual(self.socket.stats().active, 1)
        self.lab.reactor.pump([CHECK_SECONDS] * 2)
        self.until(lambda: client.read().ended)
        self.assert_nothing_left(client, server)
        # Without half-closed connections there are no checks.
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])

    def test_abandoned_peers_leave_no_descriptor_behind(self) -> None:
        """In either direction, after the timeout of a minute and one interval of checks."""
        backend = self.lab.backend()
        self.socket, self.picker = self.lab.open(backend.endpoint)
        for number in range(20):
            ends = self.lab.join(self.socket, backend)
            ends[number % 2].end()
            self.until(lambda one=ends[1 - number % 2]: one.read().ended)
        self.settle()
        sockets = [
            end._socket for relay in self.socket._relays for end in (relay._client, relay._server)
        ]
        self.lab.reactor.pump([CHECK_SECONDS] * (int(MAX_IDLE_SECONDS / CHECK_SECONDS) + 2))
        self.assertEqual((self.socket.stats().active, self.picker.counted), (0, 0))
        self.assertEqual([one.fileno() for one in sockets], [-1] * 40)

    def test_a_half_closed_connection_with_a_slow_reader_is_not_idle(self) -> None:
        """It reads received data for longer than a minute, without more arriving, and gets all."""
        self.lab.half_closed.stop()
        client, server = self.join()
        client.end()
        self.until(lambda: server.read().ended)
        left = self.stall(server)
        sent = len(MUCH) - len(left)
        server.end()
        while client.size < sent:
            with contextlib.suppress(BlockingIOError):
                client.acquire(client.socket.recv(sent // 200))
            self.lab.reactor.turn()
            self.lab.reactor.advance(CHECK_SECONDS)
        self.until(lambda: client.read().ended)
        self.assertEqual(client.hash.digest(), hashlib.sha256(MUCH[:sent]).digest())
        self.assert_nothing_left(client, server)

    def test_a_reader_that_has_stopped_is_reset_after_a_minute(self) -> None:
        """Data is missing: a FIN would look like the end of a complete response."""
        client, server = self.join()
        client.end()
        self.until(lambda: server.read().ended)
        self.stall(server)
        # Acknowledged data postpones it.
        self.until(
            lambda: self.lab.reactor.advance(CHECK_SECONDS) or not self.socket.stats().active
        )
        self.until(lambda: client.read().reset)

    def test_an_open_connection_may_be_idle_for_ever(self) -> None:
        """There is no timeout while both directions are open."""
        client, server = self.join()
        self.lab.reactor.advance(100 * MAX_IDLE_SECONDS)
        server.socket.send(b"still there")
        self.until(lambda: client.read().received == b"still there")

    def test_reset_is_forwarded_as_a_reset(self) -> None:
        """From either end to the other; nothing remains."""
        for index in (0, 1):
            ends = self.join()
            one, other = ends[index], ends[1 - index]
            one.reset_connection()
            self.until(lambda other=other: other.read().reset)
            self.assert_nothing_left(*ends)

    def test_reset_after_an_end_is_forwarded(self) -> None:
        """The endpoint has closed and is gone; further data of the client detects that."""
        client, server = self.join()
        server.end()
        self.until(lambda: client.read().ended)
        server.reset_connection()

        def is_reset() -> bool:
            try:
                client.socket.send(b"more")
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        self.until(is_reset)
        self.assert_nothing_left(client, server)

    def test_reset_drops_buffered_data(self) -> None:
        """Its pipe is released."""
        client, server = self.join()
        self.stall(client)
        self.assertEqual(len(self.lab.descriptors.writers()), 1)
        server.reset_connection()
        self.until(lambda: self.socket.stats().active == 0)
        self.assertEqual(self.lab.pipes._in_use, 0)
        self.assert_nothing_left(client, server)

    def test_many_leave_nothing_behind(self) -> None:
        """The number of descriptors is as before, and few pipes are kept."""
        client, server = self.join()
        base = descriptors_in_use()
        for _ in range(200):
            one = self.lab.client(self.socket)
            one.socket.send(b"x" * 40_000)
            one.end()
        self.until(lambda: self.socket.stats().total == 201)
        self.lab.stop(self.socket)
        client.socket.close()
        server.socket.close()
        self.lab.pipes.close()
        self.doCleanups()
        self.assertLessEqual(descriptors_in_use(), self.before)
        self.assertGreater(base, self.before)


class UpdateTests(SynchronousTestCase):
    """The socket stays while its service changes."""

    def test_connections_go_on_and_new_ones_see_the_change(self) -> None:
        """A connection to a removed endpoint lives as long as both ends keep it."""
        lab = TcpLab(self)
        old, new = lab.backend(), lab.backend()
        opened, picker = lab.open(old.endpoint)
        client, server = lab.join(opened, old)
        picker.endpoints = [new.endpoint]
        opened.update(service_of(new.endpoint, proxy_protocol=1))
        later, later_server = lab.join(opened, new)
        later.socket.send(b"new")
        lab.until(lambda: later_server.read().received.endswith(b"\r\nnew"))
        client.socket.send(b"old")
        lab.until(lambda: server.read().received == b"old")


class ConnectedTestCase(SynchronousTestCase):
    """A service with one endpoint, to which a client is connected."""

    def setUp(self) -> None:
        """Connect it."""
        self.lab = TcpLab(self)
        self.backend = self.lab.backend()
        self.opened, self.picker = self.lab.open(self.backend.endpoint)
        self.client, self.server = self.lab.join(self.opened, self.backend)


class WithoutEndpointsTests(ConnectedTestCase):
    """A service that has lost all its endpoints."""

    def update(self, *endpoints: Endpoint) -> None:
        """Set the endpoints of the service."""
        self.picker.endpoints[:] = endpoints
        self.opened.update(service_of(*endpoints))

    def outcome(self) -> int:
        """Return the result of a client that connects: 0, or the error."""
        with socket.socket() as client:
            return client.connect_ex((LOOPBACK[4], self.opened.port))

    def test_its_clients_are_refused_by_the_kernel(self) -> None:
        """At once, while rules still lead there; existing connections continue."""
        self.update()
        self.assertEqual(self.outcome(), errno.ECONNREFUSED)
        # Each change of a service is reported again.
        self.update()
        self.lab.reactor.turn()
        self.assertEqual(self.outcome(), errno.ECONNREFUSED)
        self.client.socket.send(b"still there")
        self.lab.until(lambda: self.server.read().received == b"still there")
        self.assertEqual(self.opened.stats().failed, 0)

    def test_waiting_clients_are_reset(self) -> None:
        """No endpoint would ever answer."""
        client = self.lab.client(self.opened)
        self.update()
        self.lab.until(lambda: client.read().reset)

    def test_added_endpoint_is_served_from_the_same_port(self) -> None:
        """At once, however often that happens."""
        port = self.opened.port
        for _ in range(3):
            self.update()
            self.update(self.backend.endpoint)
            client, server = self.lab.join(self.opened, self.backend)
            client.socket.send(b"hello")
            self.lab.until(lambda server=server: server.read().received == b"hello")
        self.assertEqual(self.opened.port, port)

    def test_no_other_service_gets_its_port(self) -> None:
        """Whatever options for sharing ports another program sets."""
        self.update()
        for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket() as other:
                if option is not None:
                    other.setsockopt(socket.SOL_SOCKET, option, 1)
                error = self.assertRaises(OSError, other.bind, ("0.0.0.0", self.opened.port))
                self.assertEqual(error.errno, errno.EADDRINUSE)

    def test_failure_to_listen_again_is_logged_and_retried(self) -> None:
        """For example if the kernel has no memory for now."""
        self.update()
        full = OSError(errno.ENOMEM, "Cannot allocate memory")
        with mock.patch.object(listener, "listen", side_effect=full), capturedLogs() as events:
            self.update(self.backend.endpoint)
            self.update(self.backend.endpoint)
            self.lab.reactor.advance(PAUSE_SECONDS)
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn("Cannot allocate memory", warning["log_format"].format(**warning))
        self.lab.reactor.advance(PAUSE_SECONDS)
        self.lab.join(self.opened, self.backend)

    def test_failure_to_watch_is_logged_and_retried(self) -> None:
        """No socket is lost that has just been opened: the kernel limits watched descriptors."""
        self.update()
        full = OSError(errno.ENOSPC, "No space left on device")
        watch = mock.patch.object(self.lab.descriptors, "addReader", side_effect=full)
        with watch, capturedLogs() as events:
            self.update(self.backend.endpoint)
            other, _ = self.lab.open(self.backend.endpoint)
            self.lab.reactor.advance(PAUSE_SECONDS)
        warning = [each["log_format"].format(**each) for each in events]
        for text, opened in zip(warning, (self.opened, other), strict=True):
            self.assertIn(f"Port {opened.port} accepts no connections for now: No space", text)
        self.lab.reactor.advance(PAUSE_SECONDS)
        self.lab.join(self.opened, self.backend)
        self.lab.join(other, self.backend)

    def test_it_ends_like_others(self) -> None:
        """Its connections drain, and its port is free then."""
        self.update()
        stopped = self.opened.stop(30)
        self.assertNoResult(stopped)
        self.client.socket.close()
        self.server.socket.close()
        self.lab.until(lambda: stopped.called)


class StopTests(ConnectedTestCase):
    """Stopping a proxy socket."""

    def test_it_listens_no_more_at_once_and_drains(self) -> None:
        """Connections end by themselves, and that is the end."""
        stopped = self.opened.stop(30)
        with socket.socket() as late:
            refused = late.connect_ex(("127.0.0.1", self.opened.port))
        self.assertNotEqual(refused, 0)
        self.lab.reactor.advance(29)
        self.client.socket.send(b"last")
        self.lab.until(lambda: self.server.read().received == b"last")
        self.assertNoResult(stopped)
        self.client.socket.close()
        self.server.socket.close()
        self.lab.until(lambda: stopped.called)
        self.lab.half_closed.stop()
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])

    def test_what_does_not_end_is_reset(self) -> None:
        """Both ends learn that data is missing."""
        stopped = self.opened.stop(30)
        self.lab.reactor.advance(30)
        self.successResultOf(stopped)
        self.assertTrue(self.client.read().reset)
        self.assertTrue(self.server.read().reset)
        self.assertEqual((self.picker.counted, self.lab.count.used), (0, 0))

    def test_many_are_reset_in_several_reactor_turns(self) -> None:
        """Connections of other Services do not wait until all have ended."""
        self.patch(tcp, "MAX_ENDED_PER_TURN", 2)
        active, end_all = [], tcp.TcpProxySocket._end_all

        def turn(opened) -> None:
            active.append(opened.stats().active)
            end_all(opened)

        self.patch(tcp.TcpProxySocket, "_end_all", turn)
        for _ in range(4):
            self.lab.join(self.opened, self.backend)
        stopped = self.opened.stop(30)
        self.lab.reactor.advance(30)
        self.successResultOf(stopped)
        self.assertEqual([5, 3, 1], active)
        self.assertEqual((self.picker.counted, self.lab.count.used), (0, 0))

    def test_connections_continue_until_a_drain_is_set(self) -> None:
        """Without a timeout it ends only when they do; a later timeout applies once."""
        stopped = self.opened.stop(None)
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])
        with socket.socket() as late:
            self.assertNotEqual(late.connect_ex(("127.0.0.1", self.opened.port)), 0)
        self.client.socket.send(b"still there")
        self.lab.until(lambda: self.server.read().received == b"still there")
        for _ in range(2):
            again = self.opened.stop(30)
            self.lab.reactor.advance(15)
        self.successResultOf(stopped)
        self.assertTrue(again.called)
        self.assertTrue(self.client.read().reset)
        self.assertEqual((self.picker.counted, self.lab.count.used), (0, 0))

    def test_clients_connected_by_the_kernel_are_served(self) -> None:
        """It connected before the stop, and cannot know about it."""
        clients = [self.lab.client(self.opened) for _ in range(100)]
        stopped = self.opened.stop(30)
        for client in clients:
            client.socket.send(b"hello")
            client.end()
        for _ in clients:
            server = self.lab.accepted(self.backend)
            self.lab.until(lambda server=server: server.read().ended)
            self.assertEqual(server.received, b"hello")
            server.socket.close()
        self.client.socket.close()
        self.server.socket.close()
        self.lab.until(lambda: stopped.called)

    def test_without_clients_it_ends_at_once(self) -> None:
        """Its port is free."""
        opened, _ = self.lab.open(self.backend.endpoint)
        self.successResultOf(opened.stop(30))
        with socket.socket() as again:
            again.bind(("0.0.0.0", opened.port))


class HalfClosedTests(SynchronousTestCase):
    """The timeout of half-closed connections, if one of them fails."""

    def test_many_are_checked_in_several_reactor_turns(self) -> None:
        """All end in time, and one that has ended during a check is left alone."""
        clock = Clock()
        guard = HalfClosed(clock)
        many = [mock.Mock() for _ in range(2 * MAX_ENDED_PER_TURN + 1)]
        for each in many:
            each.progress.return_value = 1
            each.expire.side_effect = functools.partial(guard.discard, each)
            guard.add(each)
        *most, last = many
        expired, check_some = [], HalfClosed._check_some

        def turn(guard, connections) -> None:
            expired.append(sum(each.expire.called for each in many))
            if expired[-1]:
                guard.discard(last)
            check_some(guard, connections)

        self.patch(HalfClosed, "_check_some", turn)
        clock.pump([CHECK_SECONDS] * (int(MAX_IDLE_SECONDS / CHECK_SECONDS) + 1))
        self.assertEqual([0, MAX_ENDED_PER_TURN, 2 * MAX_ENDED_PER_TURN], expired[-3:])
        self.assertTrue(all(each.expire.called for each in most))
        last.expire.assert_not_called()
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_defect_of_one_does_not_affect_others(self) -> None:
        """They are checked, and end, in time."""
        clock = Clock()
        broken, idle, busy = mock.Mock(), mock.Mock(), mock.Mock()
        broken.progress.return_value = idle.progress.return_value = 1
        busy.progress.side_effect = range(1000)
        guard = HalfClosed(clock)
        broken.expire.side_effect = ZeroDivisionError
        idle.expire.side_effect = lambda: guard.discard(idle)
        for each in (broken, busy):
            guard.add(each)
        with contextlib.suppress(ZeroDivisionError):
            clock.pump([CHECK_SECONDS] * (int(MAX_IDLE_SECONDS / CHECK_SECONDS) + 2))
        guard.discard(broken)
        guard.add(idle)
        clock.pump([CHECK_SECONDS] * (int(MAX_IDLE_SECONDS / CHECK_SECONDS) + 2))
        idle.expire.assert_called_once_with()
        busy.expire.assert_not_called()
        guard.stop()
        self.assertEqual(clock.getDelayedCalls(), [])
