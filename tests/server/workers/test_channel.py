"""Messages between the processes of one server, over a real pair of sockets."""

from __future__ import annotations

import os
import resource
import socket

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from yurttunnel.server.workers.channel import MOST_DATA, MOST_WAITING, Channel, Message, _frame


class End:
    """One end of a channel, and what it has been told."""

    def __init__(self, connection: socket.socket) -> None:
        self.messages: list[Message] = []
        self.lost: list[str] = []
        self.rooms = 0
        self.channel = Channel(
            reactor, connection, self.messages.append, self.lost.append, self.room
        )

    def room(self) -> None:
        """Count."""
        self.rooms += 1


class ChannelTests(TestCase):
    """Two ends in one process."""

    timeout = 20

    def setUp(self) -> None:
        """Make both, of which the second one does not read yet."""
        one, other = socket.socketpair()
        self.raw = other
        self.one, self.other = End(one), End(other)
        self.one.channel.start()
        self.addCleanup(self.one.channel.close)
        self.addCleanup(self.other.channel.close)

    async def until(self, condition) -> None:
        """Let the reactor turn until ``condition()`` holds."""
        while not condition():
            await deferLater(reactor, 0)

    async def test_messages_arrive_whole_and_in_order(self) -> None:
        """Small ones together, and large ones in pieces."""
        self.other.channel.start()
        large = os.urandom(MOST_DATA)
        for number in range(20):
            self.one.channel.send("some", {"number": number}, large if number % 2 else b"")
        await self.until(lambda: len(self.other.messages) == 20)
        for number, message in enumerate(self.other.messages):
            expected = Message("some", {"number": number}, large if number % 2 else b"")
            self.assertEqual(message, expected)

    async def test_a_connection_goes_with_its_message(self) -> None:
        """What is written to the one that arrives comes out at the other end of what was sent."""
        self.other.channel.start()
        for number in range(3):
            kept, passed = socket.socketpair()
            self.addCleanup(kept.close)
            self.one.channel.send("before")
            with passed:
                self.assertTrue(self.one.channel.pass_on("it", {"n": number}, b"early", passed))
            await self.until(lambda number=number: len(self.other.messages) == 2 * (number + 1))
            message = self.other.messages[-1]
            self.assertEqual((message.kind, message.data), ("it", b"early"))
            self.assertFalse(message.connection.get_inheritable())
            with message.connection:
                message.connection.sendall(b"%d" % number)
            self.assertEqual(kept.recv(10), b"%d" % number)

    async def test_nothing_is_passed_on_while_others_wait(self) -> None:
        """Whoever has the connection is told that it was not taken, and can do without."""
        while not self.one.channel._waiting:
            self.one.channel.send("much", {}, bytes(MOST_DATA))
        kept, passed = socket.socketpair()
        with kept, passed:
            self.assertFalse(self.one.channel.pass_on("it", {}, b"", passed))
        sent = self.one.channel.all_sent()
        self.assertFalse(sent.called)
        self.other.channel.start()
        await sent

    async def test_room_is_told_to_who_was_refused(self) -> None:
        """Nobody else waits for it."""
        while not self.one.channel._waiting:
            self.one.channel.send("much", {}, bytes(MOST_DATA))
        self.other.channel.start()
        await self.one.channel.all_sent()
        await deferLater(reactor, 0)
        self.assertEqual(0, self.one.rooms)

    async def test_nothing_is_passed_on_in_the_middle_of_another_message(self) -> None:
        """Not even where the kernel has room again for it, before the rest has been sent."""
        large = os.urandom(MOST_DATA)
        count = 0
        while not self.one.channel._waiting:
            self.one.channel.send("much", {"n": count}, large)
            count += 1
        begin = self.raw.recv(1 << 16)
        kept, passed = socket.socketpair()
        with kept, passed:
            self.assertFalse(self.one.channel.pass_on("it", {}, b"", passed))
        self.assertEqual(0, self.one.rooms)
        self.other.channel._unread += begin
        self.other.channel.start()
        await self.until(lambda: len(self.other.messages) == count)
        await self.until(lambda: self.one.rooms)
        for number, message in enumerate(self.other.messages):
            self.assertEqual((message.fields, message.data), ({"n": number}, large))

    async def test_nothing_is_passed_on_at_the_end(self) -> None:
        """A channel that is closed takes no connection, and says so."""
        self.one.channel.close()
        calls = reactor.getDelayedCalls()
        kept, passed = socket.socketpair()
        with kept, passed:
            self.assertFalse(self.one.channel.pass_on("it", {}, b"", passed))
            self.assertNotEqual(-1, passed.fileno())
        self.assertEqual(calls, reactor.getDelayedCalls())
        self.assertEqual([], self.one.lost)

    async def test_who_had_no_room_is_told_of_room(self) -> None:
        """As many connections as one likes get over, each once, and in their order."""
        kept, passed = socket.socketpair()
        sent = 0
        with kept, passed:
            while self.one.channel.pass_on("it", {"n": sent}, bytes(1000), passed):
                sent += 1
            self.assertGreater(sent, 10)
            self.assertEqual(self.one.rooms, 0)
            self.other.channel.start()
            await self.until(lambda: self.one.rooms)
            self.assertTrue(self.one.channel.pass_on("it", {"n": sent}, b"", passed))
            await self.until(lambda: len(self.other.messages) == sent + 1)
        for number, message in enumerate(self.other.messages):
            self.assertEqual(message.fields, {"n": number})
            message.connection.close()
        self.assertEqual(self.one.rooms, 1)

    async def test_a_connection_with_more_than_the_kernel_takes(self) -> None:
        """Its bytes come in pieces, its descriptor once."""
        early = os.urandom(MOST_DATA)
        kept, passed = socket.socketpair()
        with kept, passed:
            self.assertTrue(self.one.channel.pass_on("it", {}, early, passed))
        self.one.channel.send("behind")
        self.other.channel.start()
        await self.until(lambda: len(self.other.messages) == 2)
        message, behind = self.other.messages
        self.assertEqual(message.data, early)
        message.connection.close()
        self.assertEqual(behind, Message("behind"))

    async def test_a_connection_for_which_there_is_no_descriptor(self) -> None:
        """It is closed, which its peer sees; its message comes, and so does what is behind it."""
        kept, passed = socket.socketpair()
        self.addCleanup(kept.close)
        with passed:
            self.assertTrue(self.one.channel.pass_on("it", {}, b"early", passed))
        self.one.channel.send("behind")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The next descriptor would have this number.
        with open(os.devnull, "rb") as free:
            least = free.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, limits[1]))
        try:
            self.other.channel.read_rest()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(self.other.messages, [Message("it", {}, b"early"), Message("behind")])
        kept.setblocking(False)
        self.assertEqual(kept.recv(1), b"")
        again, passed = socket.socketpair()
        with again, passed:
            self.assertTrue(self.one.channel.pass_on("it", {}, b"", passed))
            self.other.channel.read_rest()
        self.other.messages[-1].connection.close()

    async def test_what_cannot_be_sent_ends_it(self) -> None:
        """What the other process has said before still counts."""
        for send in (self.send_to_the_dead, self.pass_on_to_the_dead):
            one, other = socket.socketpair()
            end = End(one)
            with other:
                other.sendall(_frame("last", {}, b"", False))
            send(end.channel)
            self.assertEqual(end.lost, [])
            await self.until(lambda end=end: end.lost)
            self.assertEqual([message.kind for message in end.messages], ["last"])
            self.assertEqual(end.lost, ["it has ended"])

    def send_to_the_dead(self, channel: Channel) -> None:
        """Send a message."""
        channel.send("some")

    def pass_on_to_the_dead(self, channel: Channel) -> None:
        """Pass a connection on, which whoever has it keeps."""
        kept, passed = socket.socketpair()
        with kept, passed:
            self.assertFalse(channel.pass_on("it", {}, b"", passed))
            self.assertFalse(channel.pass_on("it", {}, b"", passed))

    async def test_who_does_not_read_is_given_up(self) -> None:
        """What waits is bounded."""
        for _ in range(MOST_WAITING // MOST_DATA + 4):
            self.one.channel.send("much", {}, bytes(MOST_DATA))
        await self.until(lambda: self.one.lost)
        self.assertIn("unread", self.one.lost[0])

    async def test_the_end_is_told_behind_the_last_message(self) -> None:
        """When the other process ends, what it has sent before still counts."""
        self.other.channel.send("last")
        self.other.channel.close()
        await self.until(lambda: self.one.lost)
        self.assertEqual([message.kind for message in self.one.messages], ["last"])
        self.assertEqual(self.one.lost, ["it has ended"])

    async def test_what_an_ended_process_has_left_can_be_read_at_once(self) -> None:
        """Its end may be known by other means before the reactor has looked."""
        self.other.channel.send("last")
        self.one.channel.read_rest()
        self.assertEqual([message.kind for message in self.one.messages], ["last"])

    async def test_what_is_no_message_ends_it(self) -> None:
        """A length that nobody sends is not waited for."""
        self.raw.sendall(b"\xff" * 9)
        await self.until(lambda: self.one.lost)
        self.assertIn("begun a message of", self.one.lost[0])
