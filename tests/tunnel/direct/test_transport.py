"""Sockets as transports: one contract for Twisted's own and for those that send at once.

Everything is on loopback, on ports that the kernel chooses. The peer is a plain socket which the
test drives itself, so that both ends are in the state that the test wants.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import socket
from collections.abc import Callable
from typing import Any
from unittest import mock

from twisted.internet import reactor
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.descriptors import no_descriptor_left
from tests.tunnel.direct.users import HalfCloseUser, Pull, Push, User
from yurttunnel.ops.listen import listen_unix
from yurttunnel.tunnel.direct.descriptors import DescriptorSet
from yurttunnel.tunnel.direct.reactor import with_transports

MUCH = os.urandom(64 * 1024) * 160
"""10 MiB: more than any socket's buffers take."""


async def until(condition: Callable[[], object]) -> None:
    """Let the reactor turn until ``condition()`` holds; the test's own timeout bounds it."""
    while not condition():
        await deferLater(reactor, 0)


async def turns(count: int = 10) -> None:
    """Let the reactor turn."""
    for _ in range(count):
        await deferLater(reactor, 0)


class Peer:
    """The other end: a socket that does nothing by itself."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.received = bytearray()
        self.ended = False
        self.reset = False

    def read(self) -> Peer:
        """Take all that has come."""
        with contextlib.suppress(BlockingIOError):
            while not (self.ended or self.reset):
                try:
                    data = self.socket.recv(1 << 20)
                except ConnectionResetError:
                    self.reset = True
                else:
                    self.received += data
                    self.ended = not data
        return self

    def reset_connection(self) -> None:
        """Close so that the other end gets a reset."""
        linger = (1).to_bytes(4, "little") + bytes(4)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()


class TransportContract:
    """What the users of a connected socket rely on."""

    transports: str
    timeout = 20

    def setUp(self) -> None:
        """Nothing is connected yet."""
        self.reactor = with_transports(reactor, self.transports)
        self.is_done = False

    async def connect(self, user: User) -> Peer:
        """Have a connection accepted for ``user``."""
        port = self.reactor.listenTCP(0, Factory.forProtocol(lambda: user), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        peer = Peer(socket.create_connection(("127.0.0.1", port.getHost().port)))
        self.addCleanup(self.end, user, peer)
        await until(lambda: user.told)
        return peer

    async def end(self, user: User, peer: Peer) -> None:
        """Leave nothing behind."""
        peer.socket.close()
        user.on.clear()
        if user.told and not user.lost:
            user.transport.abortConnection()
            await until(lambda: user.lost)

    # Data and its end

    async def test_what_is_written_before_a_close_arrives_in_order(self) -> None:
        """All of it, then the end."""
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

    async def test_a_close_tells_later(self) -> None:
        """Not from within ``loseConnection``; what is written in the same turn still goes."""
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
        self.assertEqual(user.told.count("lost"), 1)

    async def test_an_end_closes_a_protocol_that_knows_no_half_close(self) -> None:
        """As a clean end."""
        user = User()
        peer = await self.connect(user)
        peer.socket.sendall(b"bye")
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: user.lost)
        self.assertEqual(user.received, b"bye")
        user.reason.trap(ConnectionDone)

    # Half-close

    async def test_the_peers_end_leaves_the_other_direction(self) -> None:
        """It is told once, and writing goes on."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.told)
        user.transport.write(MUCH)
        await until(lambda: len(peer.read().received) == len(MUCH))
        self.assertEqual(user.told, ["made", "read lost"])

    async def test_after_an_end_resuming_tells_it_again(self) -> None:
        """A protocol that could not use it the first time asks for it so."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.told)
        await turns()
        self.assertEqual(user.told.count("read lost"), 1)
        user.transport.resumeProducing()
        await until(lambda: user.told.count("read lost") == 2)

    async def test_an_end_while_paused_is_told_after_the_data(self) -> None:
        """Once reading is resumed."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.pauseProducing()
        peer.socket.sendall(b"x")
        peer.socket.shutdown(socket.SHUT_WR)
        await turns()
        self.assertEqual(user.told, ["made"])
        user.transport.resumeProducing()
        await until(lambda: "read lost" in user.told)
        self.assertEqual(user.told, ["made", "data", "read lost"])

    async def test_ending_ones_direction_sends_what_waits_first(self) -> None:
        """The peer gets all, then the end; the other direction goes on."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.write(MUCH)
        user.transport.loseWriteConnection()
        await turns()
        self.assertNotIn("write lost", user.told)
        await until(lambda: peer.read().ended)
        self.assertEqual(len(peer.received), len(MUCH))
        await until(lambda: "write lost" in user.told)
        peer.socket.sendall(b"answer")
        await until(lambda: user.received == b"answer")

    async def test_the_end_of_ones_direction_is_told_later(self) -> None:
        """Not from within ``loseWriteConnection``; a second call changes nothing."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.loseWriteConnection()
        self.assertEqual(user.told, ["made"])
        await until(lambda: "write lost" in user.told)
        user.transport.write(b"dropped")
        await until(lambda: peer.read().ended)
        self.assertEqual((peer.received, user.told), (b"", ["made", "write lost"]))

    async def test_after_both_ends_a_close_is_clean(self) -> None:
        """Though the kernel calls such a socket hung up."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        user.transport.loseWriteConnection()
        await until(lambda: {"read lost", "write lost"} <= set(user.told))
        user.transport.loseConnection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionDone)

    # Breaking

    async def test_an_abort_resets_and_drops(self) -> None:
        """The peer sees that it is no end; the protocol is told later, that it was itself."""
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
        """Not even in the same turn."""
        user = User()
        peer = await self.connect(user)
        user.transport.abortConnection()
        user.transport.write(b"x")
        await until(lambda: peer.read().reset)
        self.assertEqual(peer.received, b"")

    async def test_an_abort_while_a_close_waits(self) -> None:
        """Is an abort."""
        user = User()
        peer = await self.connect(user)
        user.transport.loseConnection()
        user.transport.abortConnection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionAborted)
        await until(lambda: peer.read().reset)

    async def test_an_abort_on_data_while_the_socket_takes_more(self) -> None:
        """One event of the reactor that says both is an abort, not a clean end."""
        user = User()
        peer = await self.connect(user)
        while user.transport not in self.reactor.getWriters():
            user.transport.write(bytes(1 << 16))
            await turns(3)
        # What waits now is little: the socket will take it all as soon as the peer has read.
        user.transport.pauseProducing()
        user.on["data"] = lambda: user.transport.abortConnection()
        peer.socket.sendall(b"x")
        user.transport.resumeProducing()
        peer.read()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionAborted)

    async def test_a_reset_is_a_loss(self) -> None:
        """While the socket is read."""
        user = User()
        peer = await self.connect(user)
        peer.reset_connection()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_reset_while_paused_costs_nothing_until_resumed(self) -> None:
        """The reactor is not kept busy by a socket that nobody wants."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        user.transport.pauseProducing()
        peer.reset_connection()
        await turns()
        self.assertEqual(user.told, ["made"])
        self.assertNotIn(user.transport, self.reactor.getReaders() + self.reactor.getWriters())
        user.transport.resumeProducing()
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_reset_after_a_half_close_is_noticed_by_writing(self) -> None:
        """And not told from within ``write``."""
        user = HalfCloseUser()
        peer = await self.connect(user)
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.told)
        peer.reset_connection()
        await turns()
        self.assertNotIn(user.transport, self.reactor.getReaders() + self.reactor.getWriters())
        user.transport.write(b"x")
        self.assertFalse(user.lost)
        user.transport.write(b"y")
        await until(lambda: user.lost)
        user.reason.trap(ConnectionLost)

    async def test_a_defect_in_a_protocol_ends_its_connection(self) -> None:
        """Wherever it is raised, it is logged and told as the reason."""
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
        """What the peer sends waits until reading is resumed."""
        user = User()
        user.on["made"] = lambda: user.transport.pauseProducing()
        peer = await self.connect(user)
        peer.socket.sendall(b"x")
        await turns()
        self.assertEqual(user.received, b"")
        user.transport.resumeProducing()
        await until(lambda: user.received == b"x")

    async def test_a_push_producer_is_paused_while_much_waits(self) -> None:
        """And resumed when all has gone."""
        user = User()
        peer = await self.connect(user)
        push = Push()
        user.transport.registerProducer(push, True)
        with self.assertRaises(RuntimeError):
            user.transport.registerProducer(Push(), True)
        user.transport.write(b"little")
        self.assertEqual(push.told, [])
        user.transport.write(MUCH)
        await turns()
        self.assertEqual(push.told, ["pause"])
        await until(lambda: len(peer.read().received) == len(MUCH) + 6)
        await until(lambda: push.told == ["pause", "resume"])
        user.transport.abortConnection()
        await until(lambda: user.lost)
        self.assertEqual(push.told, ["pause", "resume", "stop"])
        user.transport.registerProducer(push, True)
        self.assertEqual(push.told[3:], ["stop"])

    async def test_the_next_push_producer_is_paused_as_well(self) -> None:
        """What the one before has written may still wait."""
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
        self.assertEqual((first.told, second.told), (["pause"], ["pause"]))
        await until(lambda: len(peer.read().received) == len(MUCH) + 4)
        await until(lambda: second.told == ["pause", "resume"])

    async def test_nothing_is_read_while_a_close_waits(self) -> None:
        """Whoever has closed wants nothing, even if its producer's other side says go on."""
        user = User()
        peer = await self.connect(user)
        user.transport.write(MUCH)
        user.transport.loseConnection()
        user.transport.resumeProducing()
        peer.socket.send(b"late")
        await turns()
        self.assertEqual((user.received, user.lost), (b"", False))
        # What nobody has read has the kernel close by a reset, which may overtake the last bytes
        # (RFC 2525 section 2.17).
        await until(lambda: peer.read() and user.lost)
        self.assertEqual(user.received, b"")

    async def test_a_close_does_not_wait_for_a_push_producer_that_may_send(self) -> None:
        """Twisted's sockets close then, whatever the documentation of the method says."""
        user = User()
        await self.connect(user)
        user.transport.registerProducer(Push(), True)
        user.transport.loseConnection()
        await until(lambda: user.lost)

    async def test_a_pull_producer_asked_again_knows_that_its_data_has_gone(self) -> None:
        """The kernel has it: here that is the peer's side of the loopback."""
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

    async def test_a_pull_producer_is_not_asked_while_its_data_waits(self) -> None:
        """But once the peer has taken it."""
        user = User()
        peer = await self.connect(user)
        pull = Pull(lambda: user.transport.write(MUCH))
        user.transport.registerProducer(pull, False)
        await turns()
        self.assertEqual(pull.asked, 1)
        await until(lambda: peer.read() and pull.asked == 2)
        await until(lambda: len(peer.read().received) == len(MUCH))

    async def test_a_close_waits_for_a_pull_producer(self) -> None:
        """Until it is unregistered."""
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

    # Who it is, and the port

    async def test_addresses_and_options(self) -> None:
        """Both ends see the same addresses; the socket can be had for its options."""
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
        """Connect by a Unix socket, from one that may have a name; return the path, too."""
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
        """It behaves like any other."""
        user = HalfCloseUser()
        path, peer = self.connect_unix(user)
        peer.socket.sendall(b"x")
        peer.socket.shutdown(socket.SHUT_WR)
        await until(lambda: "read lost" in user.told)
        self.assertEqual(user.received, b"x")
        self.assertIsNone(user.transport.getPeer().name)
        self.assertEqual(os.fsdecode(user.transport.getHost().name), path)
        user.transport.write(MUCH)
        user.transport.loseConnection()
        await until(lambda: peer.read().ended)
        self.assertEqual(len(peer.received), len(MUCH))
        await until(lambda: user.lost)

    async def test_running_out_of_descriptors_costs_only_the_new_connection(self) -> None:
        """It is closed, the port does not spin, and the next one is served."""
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
    """Twisted's own keep it."""

    transports = "twisted"


class DirectTransportTests(TransportContract, TestCase):
    """Those that send at once keep it."""

    transports = "direct"

    async def test_a_unix_socket_whose_peer_has_a_name(self) -> None:
        """Whatever the peer's own socket is called, it is let in; its name is its address."""
        user = User()
        # It has as many characters as an address of IPv6 has fields, for which Twisted's takes it.
        _, peer = self.connect_unix(user, "peer")
        peer.socket.sendall(b"x")
        await until(lambda: user.received == b"x" or peer.read().ended)
        self.assertEqual(b"x", user.received)
        self.assertEqual("peer", os.fsdecode(user.transport.getPeer().name))

    async def test_data_is_with_the_kernel_when_write_returns(self) -> None:
        """That is what they are for."""
        user = User()
        peer = await self.connect(user)
        user.transport.write(b"now")
        self.assertEqual(peer.read().received, b"now")

    async def test_what_cannot_be_watched_is_nobodys(self) -> None:
        """Where the kernel watches no more, no protocol waits for a connection, or counts."""
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
        """A piece by itself would cost many times its bytes."""
        user = User()
        peer = await self.connect(user)
        pieces = [number.to_bytes(2, "big") for number in range(10_000)]
        user.transport.write(MUCH)
        before = len(user.transport._waiting)
        for piece in pieces:
            user.transport.write(piece)
        self.assertLess(len(user.transport._waiting) - before, 25)
        expected = MUCH + b"".join(pieces)
        await until(lambda: len(peer.read().received) >= len(expected))
        self.assertEqual(peer.received, expected)

    async def test_an_event_for_both_directions_ends_with_an_abort(self) -> None:
        """Nothing is sent after it, and no producer is asked for more."""
        user, push = User(), Push()
        peer = await self.connect(user)
        user.transport.registerProducer(push, True)
        user.transport.write(MUCH)
        user.on["data"] = user.transport.abortConnection
        sent: list[object] = []
        self.patch(user.transport, "_send", lambda data: sent.append(data) or len(data))
        # Without a turn of the reactor: what waits has room, when there is something to read, too.
        peer.read()
        peer.socket.sendall(b"x")
        await until(lambda: user.lost)
        self.assertEqual((sent, push.told), ([], ["pause", "stop"]))
        user.reason.trap(ConnectionAborted)

    def test_what_is_not_about_connections_is_the_reactors(self) -> None:
        """Threads, name resolution, signals."""
        self.assertEqual(self.reactor.getThreadPool, reactor.getThreadPool)

    def test_ports_are_listened_on_as_on_twisteds(self) -> None:
        """What is not said is the same."""
        for kind in (self.reactor, reactor):
            listening = inspect.signature(kind.listenTCP)
            defaults = {name: each.default for name, each in listening.parameters.items()}
            self.assertEqual((defaults["backlog"], defaults["interface"]), (50, ""))
