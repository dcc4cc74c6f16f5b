"""Sockets as transports: one contract for Twisted's own and for those that send at once.

Everything is on loopback, on ports that the kernel chooses. The peer is a plain socket that the
test uses directly, so that it controls the state of both ends.
"""

from __future__ import annotations

import errno
import inspect
import os
import socket
from typing import Any
from unittest import mock

from twisted.internet import reactor
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.descriptors import no_descriptor_left
from tests.peer import Peer
from tests.tunnel.direct.users import HalfCloseUser, Pull, Push, User
from tests.waiting import until
from yurttunnel.ops.listen import listen_unix
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.reactor import with_transports

MUCH = os.urandom(64 * 1024) * 160
"""10 MiB: more than any socket's buffers hold."""


async def turns(count: int = 10) -> None:
    """Run some iterations of the reactor."""
    for _ in range(count):
        await deferLater(reactor, 0)


class TransportContract:
    """The requirements of the users of a connected socket."""

    transports: str
    timeout = 20

    def setUp(self) -> None:
        """Start without a connection."""
        self.reactor = with_transports(reactor, self.transports)
        self.is_done = False

    async def connect(self, user: User) -> Peer:
        """Accept a connection for ``user``."""
        port = self.reactor.listenTCP(0, Factory.forProtocol(lambda: user), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        peer = Peer(socket.create_connection(("127.0.0.1", port.getHost().port)))
        self.addCleanup(self.end, user, peer)
        await until(lambda: user.events)
        return peer

    async def end(self, user: User, peer: Peer) -> None:
        """Close everything."""
        peer.socket.close()
        user.on.clear()
        if user.events and not user.lost:
            user.transport.abortConnection()
            await until(lambda: user.lost)

    # Data and its end

    async def test_what_is_written_before_a_close_arrives_in_order(self) -> None:
        """All data written before a close arrives in order, then the end."""
        user = User()
        peer = await self.connect(user)
        for piece in (b"a", MUCH, b"b", MUCH, b"", b"c"):
            user.transport.write(piece)
        user.transport.writeSequence([b"d", b"e"])
        user.transport.loseConnection()
        await until(lambda: peer.read().ended)
        self.assertTrue(peer.received == b"a" + MUCH + b"b" + MUCH + b"cde")
        await until(lambda: user.lost)
        user.reason.trap(ConnectionDone)

    async def test_a_close_is_reported_later(self) -> None:
        """A close is not reported within ``loseConnection``; data of that iteration is sent."""
        user = User()
        peer = await self.connect(user)
        user.transport.loseConnection()
        self.assertFalse(user.lost)
        self.assertTrue(user.transport.disconnecting)
        user.transport.write(b"late")
        await until(lambda: user.lost and peer.read().ended)
        self.assertEqual(peer.received, b"late")
        user.transport.write(b"too late")
        user.transport.loseConnection()
        user.transport.abortConnection()
        self.assertEqual(user.events.count("lost"), 1)

    async def test_an_end_closes_a_protocol_that_knows_no_half_close(self) -> None:
        """A protocol without half-close support is closed by an end, as a clean end."""
        user = User()
        peer = await self.connect(user)
        peer.socket.sendall(b"bye")
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: user.lost)
        self.assertEqual(user.received, b"bye")
        user.reason.trap(ConnectionDone)

    # Half-close

    async def test_the_peers_end_leaves_the_other_direction(self) -> None:
        """The peer's end is reported once, and writing continues."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.events)
        user.transport.write(MUCH)
        await until(lambda: len(peer.read().received) == len(MUCH))
        self.assertEqual(user.events, ["made", "read lost"])

    async def test_resuming_after_an_end_reports_it_again(self) -> None:
        """Resuming reports the end again, for a protocol that could not handle it before."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.events)
        await turns()
        self.assertEqual(user.events.count("read lost"), 1)
        user.transport.resumeProducing()
        await until(lambda: user.events.count("read lost") == 2)

    async def test_an_end_while_paused_is_reported_after_the_data(self) -> None:
        """An end while reading is paused is reported after the data, once it is resumed."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.pauseProducing()
        peer.socket.sendall(b"x")
        peer.socket.shutdown(socket.SHUT_WR)
        await turns()
        self.assertEqual(user.events, ["made"])
        user.transport.resumeProducing()
        await until(lambda: "read lost" in user.events)
        self.assertEqual(user.events, ["made", "data", "read lost"])

    async def test_ending_ones_direction_sends_what_waits_first(self) -> None:
        """The peer gets all data, then the end; the other direction continues."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.write(MUCH)
        user.transport.loseWriteConnection()
        await turns()
        self.assertNotIn("write lost", user.events)
        await until(lambda: peer.read().ended)
        self.assertEqual(len(peer.received), len(MUCH))
        await until(lambda: "write lost" in user.events)
        peer.socket.sendall(b"answer")
        await until(lambda: user.received == b"answer")

    async def test_the_end_of_ones_direction_is_reported_later(self) -> None:
        """The end is not reported within ``loseWriteConnection``; a second call has no effect."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.loseWriteConnection()
        self.assertEqual(user.events, ["made"])
        await until(lambda: "write lost" in user.events)
        user.transport.write(b"dropped")
        await until(lambda: peer.read().ended)
        self.assertEqual((peer.received, user.events), (b"", ["made", "write lost"]))

    async def test_after_both_ends_a_close_is_clean(self) -> None:
        """After both ends a close is clean, although the kernel reports a hang-up."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        user.transport.loseWriteConnection()
        await until(lambda: {"read lost", "write lost"} <= set(user.events))
        user.transport.loseConnection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionDone)

    # Aborts and resets

    async def test_an_abort_resets_and_drops(self) -> None:
        """The peer gets a reset; the abort is reported to the protocol later."""
        user = User()
        peer = await self.connect(user)
        user.transport.write(MUCH)
        user.transport.abortConnection()
        user.transport.write(b"x")
        user.transport.resumeProducing()
        self.assertFalse(user.lost)
        await until(lambda: user.lost)
        user.reason.trap(ConnectionAborted)
        await until(lambda: peer.read().reset)
        self.assertLess(len(peer.received), len(MUCH))

    async def test_nothing_is_sent_after_an_abort(self) -> None:
        """Nothing is sent after an abort, not even within the same iteration."""
        user = User()
        peer = await self.connect(user)
        user.transport.abortConnection()
        user.transport.write(b"x")
        await until(lambda: peer.read().reset)
        self.assertEqual(peer.received, b"")

    async def test_an_abort_while_a_close_waits(self) -> None:
        """An abort takes effect while a close waits."""
        user = User()
        peer = await self.connect(user)
        user.transport.loseConnection()
        user.transport.abortConnection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionAborted)
        await until(lambda: peer.read().reset)

    async def test_an_abort_on_data_while_the_socket_takes_more(self) -> None:
        """If the reactor reports both in one event, it is an abort, not a clean end."""
        user = User()
        peer = await self.connect(user)
        while user.transport not in self.reactor.getWriters():
            user.transport.write(bytes(1 << 16))
            await turns(3)
        # Little is buffered now: the socket will accept all of it as soon as the peer has read.
        user.transport.pauseProducing()
        user.on["data"] = lambda: user.transport.abortConnection()
        peer.socket.sendall(b"x")
        user.transport.resumeProducing()
        peer.read()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionAborted)

    async def test_a_reset_is_a_loss(self) -> None:
        """A reset is detected while the socket is read."""
        user = User()
        peer = await self.connect(user)
        peer.reset_connection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_reset_while_paused_costs_nothing_until_resumed(self) -> None:
        """A paused socket does not keep the reactor busy."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.pauseProducing()
        peer.reset_connection()
        await turns()
        self.assertEqual(user.events, ["made"])
        self.assertNotIn(user.transport, self.reactor.getReaders() + self.reactor.getWriters())
        user.transport.resumeProducing()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_reset_after_a_half_close_is_noticed_by_writing(self) -> None:
        """A write detects a reset after a half-close, but does not report it itself."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.events)
        peer.reset_connection()
        await turns()
        self.assertNotIn(user.transport, self.reactor.getReaders() + self.reactor.getWriters())
        user.transport.write(b"x")
        self.assertFalse(user.lost)
        user.transport.write(b"y")
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_defect_in_a_protocol_ends_its_connection(self) -> None:
        """An exception of a protocol is logged and is the reason, wherever it is raised."""
        for what in ("data", "read lost", "write lost"):
            user = HalfCloseUser()
            peer = await self.connect(user)
            user.on[what] = lambda: 1 // 0
            if what == "write lost":
                user.transport.loseWriteConnection()
            else:
                peer.socket.sendall(b"x")
                peer.socket.shutdown(socket.SHUT_WR)
            await until(lambda user=user: user.lost)
            user.reason.trap(ZeroDivisionError)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    # Pausing and producers

    async def test_a_pause_in_connection_made_holds(self) -> None:
        """Data from the peer is held until reading is resumed."""
        user = User()
        user.on["made"] = lambda: user.transport.pauseProducing()
        peer = await self.connect(user)
        peer.socket.sendall(b"x")
        await turns()
        self.assertEqual(user.received, b"")
        user.transport.resumeProducing()
        await until(lambda: user.received == b"x")

    async def test_a_push_producer_is_paused_while_much_waits(self) -> None:
        """A push producer is paused while much is buffered, and resumed when all data is sent."""
        user = User()
        peer = await self.connect(user)
        push = Push()
        user.transport.registerProducer(push, True)
        with self.assertRaises(RuntimeError):
            user.transport.registerProducer(Push(), True)
        user.transport.write(b"little")
        self.assertEqual(push.events, [])
        user.transport.write(MUCH)
        await turns()
        self.assertEqual(push.events, ["pause"])
        await until(lambda: len(peer.read().received) == len(MUCH) + 6)
        await until(lambda: push.events == ["pause", "resume"])
        user.transport.abortConnection()
        await until(lambda: user.lost)
        self.assertEqual(push.events, ["pause", "resume", "stop"])
        user.transport.registerProducer(push, True)
        self.assertEqual(push.events[3:], ["stop"])

    async def test_the_next_push_producer_is_paused_as_well(self) -> None:
        """Data of the previous one may still be buffered."""
        user = User()
        peer = await self.connect(user)
        first, second = Push(), Push()
        user.transport.registerProducer(first, True)
        user.transport.write(MUCH)
        await turns()
        user.transport.unregisterProducer()
        user.transport.registerProducer(second, True)
        user.transport.write(b"more")
        await turns()
        self.assertEqual((first.events, second.events), (["pause"], ["pause"]))
        await until(lambda: len(peer.read().received) == len(MUCH) + 4)
        await until(lambda: second.events == ["pause", "resume"])

    async def test_nothing_is_read_while_a_close_waits(self) -> None:
        """A closed transport does not read, even if it is resumed by another producer."""
        user = User()
        peer = await self.connect(user)
        user.transport.write(MUCH)
        user.transport.loseConnection()
        user.transport.resumeProducing()
        peer.socket.send(b"late")
        await turns()
        self.assertEqual((user.received, user.lost), (b"", False))
        # Unread data would make the kernel close with a reset, which may overtake the last data
        # (RFC 2525 section 2.17).
        await until(lambda: peer.read() and user.lost)
        self.assertEqual(user.received, b"")

    async def test_a_close_does_not_wait_for_a_push_producer_that_may_send(self) -> None:
        """Twisted's sockets close then, despite the documentation of the method."""
        user = User()
        await self.connect(user)
        user.transport.registerProducer(Push(), True)
        user.transport.loseConnection()
        await until(lambda: user.lost)

    async def test_a_pull_producer_is_resumed_after_its_data(self) -> None:
        """The kernel has it: over loopback, it is at the peer already."""
        user = User()
        peer = await self.connect(user)
        seen: list[int] = []
        pull = Pull(
            lambda: user.transport.write(b"first"),
            lambda: seen.append(len(peer.read().received)),
        )
        user.transport.registerProducer(pull, False)
        self.assertEqual(pull.asked, 1)
        await until(lambda: pull.asked == 2)
        self.assertEqual(seen, [5])
        await turns()
        self.assertEqual(pull.asked, 2, "one that writes nothing is not asked again")
        user.transport.unregisterProducer()
        user.transport.write(b"more")
        await turns()
        self.assertEqual(pull.asked, 2)

    async def test_a_pull_producer_waits_for_its_data(self) -> None:
        """A pull producer is called again once the peer has read its data."""
        user = User()
        peer = await self.connect(user)
        pull = Pull(lambda: user.transport.write(MUCH))
        user.transport.registerProducer(pull, False)
        await turns()
        self.assertEqual(pull.asked, 1)
        await until(lambda: peer.read() and pull.asked == 2)
        await until(lambda: len(peer.read().received) == len(MUCH))

    async def test_a_close_waits_for_a_pull_producer(self) -> None:
        """A close waits until a pull producer is unregistered."""
        user = User()
        peer = await self.connect(user)
        pull = Pull(
            lambda: user.transport.write(b"a"),
            lambda: user.transport.write(b"b"),
            lambda: user.transport.unregisterProducer(),
        )
        user.transport.registerProducer(pull, False)
        user.transport.loseConnection()
        await until(lambda: peer.read().ended)
        self.assertEqual((peer.received, pull.asked), (b"ab", 3))
        await until(lambda: user.lost)
        user.reason.trap(ConnectionDone)

    # Addresses, and the port

    async def test_addresses_and_options(self) -> None:
        """Both ends see the same addresses; the socket is accessible for its options."""
        user = User()
        peer = await self.connect(user)
        transport: Any = user.transport
        host, other = transport.getHost(), transport.getPeer()
        self.assertEqual((host.host, host.port), peer.socket.getpeername())
        self.assertEqual((other.host, other.port), peer.socket.getsockname())
        self.assertEqual(transport.getHandle().fileno(), transport.fileno())
        transport.setTcpNoDelay(True)
        no_delay = transport.getHandle().getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        self.assertTrue(no_delay)

    def connect_unix(self, user: User, name: str = "") -> tuple[str, Peer]:
        """Connect by a Unix socket, optionally from a named one; return the path and the peer."""
        path = os.path.relpath(self.mktemp())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        port = listen_unix(self.reactor, "--flag", path, Factory.forProtocol(lambda: user))
        self.addCleanup(port.stopListening)
        connection = socket.socket(socket.AF_UNIX)
        if name:
            connection.bind(name)
            self.addCleanup(os.unlink, name)
        connection.connect(path)
        peer = Peer(connection)
        self.addCleanup(self.end, user, peer)
        return path, peer

    async def test_a_unix_socket(self) -> None:
        """A Unix socket behaves like a TCP socket."""
        user = HalfCloseUser()
        path, peer = self.connect_unix(user)
        peer.socket.sendall(b"x")
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.events)
        self.assertEqual(user.received, b"x")
        self.assertIsNone(user.transport.getPeer().name)
        self.assertEqual(os.fsdecode(user.transport.getHost().name), path)
        user.transport.write(MUCH)
        user.transport.loseConnection()
        await until(lambda: peer.read().ended)
        self.assertEqual(len(peer.received), len(MUCH))
        await until(lambda: user.lost)

    async def test_running_out_of_descriptors_costs_only_the_new_connection(self) -> None:
        """Without a descriptor the new connection is closed, and existing ones still work."""
        user = User()
        peer = await self.connect(user)
        address = peer.socket.getpeername()
        late = socket.socket()
        self.addCleanup(late.close)
        late.setblocking(False)
        with no_descriptor_left():
            self.assertIn(late.connect_ex(address), (0, errno.EINPROGRESS))
            late_peer = Peer(late)
            await until(lambda: late_peer.read().ended or late_peer.reset)
        user.transport.write(b"still there")
        await until(lambda: peer.read().received == b"still there")


class TwistedTransportTests(TransportContract, TestCase):
    """The contract with Twisted's transports."""

    transports = "twisted"


class DirectTransportTests(TransportContract, TestCase):
    """The contract with the transports that send at once."""

    transports = "direct"

    async def test_a_unix_socket_whose_peer_has_a_name(self) -> None:
        """Any name of the peer's socket is accepted; it is the peer's address."""
        user = User()
        # It has as many characters as an IPv6 address has fields, which confuses Twisted.
        _, peer = self.connect_unix(user, "peer")
        peer.socket.sendall(b"x")
        await until(lambda: user.received == b"x" or peer.read().ended)
        self.assertEqual(b"x", user.received)
        self.assertEqual("peer", os.fsdecode(user.transport.getPeer().name))

    async def test_data_is_with_the_kernel_when_write_returns(self) -> None:
        """Written data is in the kernel when ``write`` returns."""
        user = User()
        peer = await self.connect(user)
        user.transport.write(b"now")
        self.assertEqual(peer.read().received, b"now")

    async def test_what_cannot_be_watched_is_nobodys(self) -> None:
        """If the kernel is out of watches, no protocol is built that would wait or be counted."""
        built: list[User] = []

        class Building(Factory):
            def buildProtocol(self, addr: object) -> User:
                built.append(User())
                return built[-1]

        port = self.reactor.listenTCP(0, Building(), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(DescriptorSet, "addReader", side_effect=full):
            peer = Peer(socket.create_connection(("127.0.0.1", port.getHost().port)))
            self.addCleanup(peer.socket.close)
            await until(lambda: peer.read().ended or peer.reset)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(built, [])
        other = Peer(socket.create_connection(("127.0.0.1", port.getHost().port)))
        await until(lambda: built)
        self.addCleanup(self.end, built[0], other)
        built[0].transport.write(b"served")
        self.assertEqual(other.read().received, b"served")

    async def test_small_pieces_wait_joined(self) -> None:
        """The overhead of a separate piece would exceed its size."""
        user = User()
        peer = await self.connect(user)
        pieces = [number.to_bytes(2, "big") for number in range(10_000)]
        user.transport.write(MUCH)
        before = len(user.transport._unsent)
        for piece in pieces:
            user.transport.write(piece)
        self.assertLess(len(user.transport._unsent) - before, 25)
        expected = MUCH + b"".join(pieces)
        await until(lambda: len(peer.read().received) >= len(expected))
        self.assertEqual(peer.received, expected)

    async def test_an_event_for_both_directions_ends_with_an_abort(self) -> None:
        """Nothing is sent after the abort, and no producer is resumed."""
        user, push = User(), Push()
        peer = await self.connect(user)
        user.transport.registerProducer(push, True)
        user.transport.write(MUCH)
        user.on["data"] = user.transport.abortConnection
        sent: list[object] = []
        self.patch(user.transport, "_send", lambda data: sent.append(data) or len(data))
        # Without an iteration of the reactor: the socket is writable and readable at once.
        peer.read()
        peer.socket.sendall(b"x")
        await until(lambda: user.lost)
        self.assertEqual((sent, push.events), ([], ["pause", "stop"]))
        user.reason.trap(ConnectionAborted)

    def test_what_is_not_about_connections_is_the_reactors(self) -> None:
        """Threads, name resolution and signals are not replaced."""
        self.assertEqual(self.reactor.getThreadPool, reactor.getThreadPool)

    def test_ports_are_listened_on_as_on_twisteds(self) -> None:
        """The defaults are the same."""
        for kind in (self.reactor, reactor):
            listening = inspect.signature(kind.listenTCP)
            defaults = {name: each.default for name, each in listening.parameters.items()}
            self.assertEqual((defaults["backlog"], defaults["interface"]), (50, ""))
