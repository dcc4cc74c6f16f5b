"""Streams of a session as transports: what goes beyond the contract of all streams."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress, IPushProducer
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.tunnel.memory import HalfCloseUser, Producer, SessionPair, User
from yurttunnel.tunnel.errors import StreamFailed
from yurttunnel.tunnel.interfaces import IStreamRequest
from yurttunnel.tunnel.stream import LINGER
from yurttunnel.wire.codes import Code
from yurttunnel.wire.stream import FULL_ABOVE

WINDOW = 64 * 1024


class StreamTestCase(SynchronousTestCase):
    """Two sessions, and a stream between two users."""

    def setUp(self):
        """Join two sessions."""
        self.pair = SessionPair()
        self.near_user, self.far_user = HalfCloseUser(), HalfCloseUser()
        self.addCleanup(self.pair.close)

    def join(self):
        """Open the stream."""
        self.near, self.far = self.pair.joined(self.near_user, self.far_user)
        self.pair.pump()

    def assert_counters(self, ends):
        """Compare the ends of streams that both processes have counted."""
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual(ends, dict(context.counters.stream_ends))


class InterfaceTests(StreamTestCase):
    """What streams and requests say of themselves."""

    def test_addresses(self):
        """A stream's addresses name the node and the target, and its request at this end."""
        self.join()
        for address in (self.near.getPeer(), self.near.getHost()):
            self.assertTrue(verifyObject(IAddress, address))
        self.assertEqual("edge-1/192.0.2.80:80", repr(self.near.getPeer()))
        self.assertEqual("server/request", repr(self.near.getHost()))

    def test_address_of_ipv6_target(self):
        """An IPv6 target is written in brackets, as ``--forward`` spells it."""
        opened = []
        self.pair.acceptor.answer = lambda request: request.accept()
        self.pair.server.open_stream("fd00::1", 80, 1.0, "request").addCallback(opened.append)
        self.pair.pump()
        self.assertEqual("edge-1/[fd00::1]:80", repr(opened[0].getPeer()))

    def test_request(self):
        """A request provides its interface and what the opener asked for."""
        self.pair.dial(timeout=2.5, request_id="abc").addErrback(lambda failure: None)
        self.pair.pump()
        request = self.pair.acceptor.requests[0]
        self.assertTrue(verifyObject(IStreamRequest, request))
        self.assertEqual(
            ("192.0.2.80", 80, 2.5, "abc"),
            (request.host, request.port, request.timeout, request.request_id),
        )

    def test_text_is_refused(self):
        """Writing text instead of bytes raises TypeError and harms nobody."""
        self.join()
        self.assertRaises(TypeError, self.near.write, "text")
        self.near.write(b"bytes")
        self.pair.pump()
        self.assertEqual(b"bytes", self.far_user.received)


class OpeningTests(StreamTestCase):
    """From the OPEN to the answer."""

    def test_refusal(self):
        """A FAIL fails the Deferred with the code and text of the far end."""
        opening = self.pair.dial()
        self.pair.pump()
        self.pair.acceptor.requests[0].fail(Code.REFUSED, "nobody listens")
        self.pair.pump()
        error = self.failureResultOf(opening, StreamFailed).value
        self.assertEqual((Code.REFUSED, "nobody listens"), (error.code, error.text))
        self.assertEqual("nobody listens (REFUSED)", str(error))
        self.assertEqual({}, self.pair.server.wire.streams)

    def test_cancel(self):
        """Cancelling the Deferred cancels the dial at the far end."""
        opening = self.pair.dial()
        self.pair.pump()
        cancelled = []
        request = self.pair.acceptor.requests[0]
        request.on_cancel(lambda: cancelled.append("first"))
        opening.cancel()
        self.assertEqual(Code.CANCELLED, self.failureResultOf(opening, StreamFailed).value.code)
        self.pair.pump()
        self.assertEqual(["first"], cancelled)
        request.on_cancel(lambda: cancelled.append("at once"))
        self.assertEqual(["first", "at once"], cancelled)
        self.assertEqual({}, self.pair.agent.wire.streams)

    def test_answers_after_cancel(self):
        """What is answered after the cancel has no effect; an accepted stream ends at once."""
        opening = self.pair.dial()
        opening.addErrback(lambda failure: None)
        self.pair.pump()
        request = self.pair.acceptor.requests[0]
        opening.cancel()
        self.pair.pump()
        request.fail(Code.REFUSED, "too late")
        stream = request.accept()
        stream.attach(self.far_user)
        stream.write(b"x")
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.far_user.told)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_no_answer(self):
        """A dial that the far end does not answer fails with TIMEOUT, soon after its deadline."""
        opening = self.pair.dial(timeout=3)
        self.pair.pass_time(3)
        self.assertNoResult(opening)
        self.pair.pass_time(1)
        self.assertEqual(Code.TIMEOUT, self.failureResultOf(opening, StreamFailed).value.code)

    def test_session_ends(self):
        """A dial that is not answered when its session ends fails with the session's code."""
        opening = self.pair.dial()
        self.pair.pump()
        cancelled = []
        self.pair.acceptor.requests[0].on_cancel(lambda: cancelled.append(True))
        self.pair.server.close(Code.REVOKED, "revoked")
        self.assertEqual(Code.REVOKED, self.failureResultOf(opening, StreamFailed).value.code)
        self.pair.pump()
        self.assertEqual([True], cancelled)

    def test_bad_destination(self):
        """A destination that does not fit into an OPEN fails; the session goes on."""
        for host, port, request_id in (("", 80, "r"), ("h" * 256, 80, "r"), ("h", 0, "r")):
            opening = self.pair.server.open_stream(host, port, 1.0, request_id)
            error = self.failureResultOf(opening, StreamFailed).value
            self.assertEqual(Code.BAD_DESTINATION, error.code)
        self.join()
        self.assertEqual(["made"], self.far_user.told)

    def test_endless_timeout(self):
        """A timeout beyond what an OPEN can say is cut to that."""
        self.pair.dial(timeout=float("inf")).addErrback(lambda failure: None)
        self.pair.pump()
        self.assertEqual(0xFFFFFFFF / 1000, self.pair.acceptor.requests[0].timeout)

    def test_no_new_streams(self):
        """A session that has gone away opens no stream and says for which node."""
        self.pair.agent.go_away("the agent stops")
        self.pair.pass_time(1)
        self.assertTrue(self.pair.server.closed)
        error = self.failureResultOf(self.pair.dial(), StreamFailed).value
        self.assertEqual(Code.SESSION_LOST, error.code)
        self.assertIn("edge-1", error.text)

    def test_dials_are_counted(self):
        """Each answer is counted once at each end, and the duration of each success."""
        self.join()
        opening = self.pair.dial()
        opening.addErrback(lambda failure: None)
        self.pair.pump()
        self.pair.acceptor.requests[-1].fail(Code.REFUSED, "nobody listens")
        self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual({Code.DONE: 1, Code.REFUSED: 1}, dict(context.counters.dials))
        self.assertEqual(1, sum(self.pair.server_context.counters.dial_durations.buckets))
        # One that was never open is no stream that ends.
        self.assert_counters({})

    def test_dials_that_are_cancelled_are_counted_once(self):
        """Whatever is answered later, of each only the end is counted that came first."""
        for answer in (
            lambda request: request.fail(Code.REFUSED, "nobody listens"),
            lambda request: request.accept(),
        ):
            opening = self.pair.dial()
            opening.addErrback(lambda failure: None)
            self.pair.pump()
            opening.cancel()
            self.pair.pump()
            answer(self.pair.acceptor.requests[-1])
            self.pair.pump()
        for context in (self.pair.server_context, self.pair.agent_context):
            self.assertEqual({Code.CANCELLED: 2}, dict(context.counters.dials))
        self.assertEqual(0, sum(self.pair.server_context.counters.dial_durations.buckets))
        self.assert_counters({})


class EndTests(StreamTestCase):
    """How streams end."""

    def test_not_within_the_call(self):
        """``connectionLost`` is never called from within a method that the user calls."""
        for end in (
            lambda stream: stream.loseConnection(),
            lambda stream: stream.abortConnection(),
            lambda stream: stream.abort(Code.CANCELLED, "enough"),
        ):
            user = HalfCloseUser()
            near, _ = self.pair.joined(user, User())
            self.pair.clock.advance(1)
            end(near)
            self.assertEqual(["made"], user.told)
            self.pair.pump()
            self.assertEqual(["made", "lost"], user.told)

    def test_close_when_made(self):
        """A protocol may close its stream in ``connectionMade``."""
        for method in ("loseConnection", "abortConnection", "loseWriteConnection"):
            user = HalfCloseUser()
            user.connectionMade = lambda user=user, m=method: getattr(user.transport, m)()
            self.pair.joined(user, User())
            self.pair.pump()
            self.assertEqual(1, user.told.count("lost"), method)

    def test_lose_after_half_close(self):
        """``loseConnection`` after ``loseWriteConnection`` ends the stream for its user."""
        self.join()
        self.near.loseWriteConnection()
        self.pair.pump()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "write lost", "lost"], self.near_user.told)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_lose_at_once_after_half_close(self):
        """Both in one turn end the stream for its user as well."""
        self.join()
        self.near.write(b"last words")
        self.near.loseWriteConnection()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(1, self.near_user.told.count("lost"))
        self.assertEqual(b"last words", self.far_user.received)

    def test_lose_after_peers_end(self):
        """``loseConnection`` after the peer's end ends the stream at both ends."""
        self.join()
        self.far.loseWriteConnection()
        self.pair.pump()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "read lost", "lost"], self.near_user.told)
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assert_counters({Code.DONE: 1})

    def test_lose_while_detached(self):
        """A stream that is closed while its session has no connection is over for its user."""
        self.join()
        self.pair.cut()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.told)

    def test_ending_in_each_other(self):
        """A protocol that ends another stream when it is lost has that one's user told too."""
        other_user = HalfCloseUser()
        other, _ = self.pair.joined(other_user, User())
        self.near_user.connectionLost = lambda reason: other.loseConnection()
        self.join()
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made", "lost"], other_user.told)

    def test_clean_end_with_short_credit(self):
        """What was written before ``loseConnection`` arrives, however late the peer reads it."""
        self.join()
        data = bytes(range(256)) * 2048
        self.far.pauseProducing()
        self.near.write(data)
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(["made"], self.near_user.told)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(data, self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.told)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_clean_end_while_peer_sends(self):
        """What the peer sends to a closing stream resets it only after the last byte is sent."""
        self.join()
        self.far.pauseProducing()
        data = bytes(4 * WINDOW)
        self.near.write(data)
        self.near.loseConnection()
        self.far.write(b"unwanted")
        self.pair.pump()
        self.assertFalse(self.near._wire.closed)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(data, self.far_user.received)
        self.assertEqual(["made", "read lost", "lost"], self.far_user.told)
        self.assertIsInstance(self.near_user.reasons[0].value, ConnectionDone)

    def test_unwanted_data(self):
        """What comes after the close resets the stream, as with a socket that is closed."""
        self.join()
        self.near.loseConnection()
        self.pair.pump()
        self.far.write(b"unwanted")
        self.pair.pump()
        self.assertEqual(b"", self.near_user.received)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_linger(self):
        """A peer that never ends a closed stream has it reset after LINGER seconds."""
        self.join()
        self.near.loseConnection()
        self.pair.pass_time(LINGER - 1)
        self.assertEqual(["made", "read lost"], self.far_user.told)
        self.pair.pass_time(2)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)
        self.assertEqual(1, len(self.near_user.reasons))
        self.assertEqual({}, self.pair.server.wire.streams)

    def test_linger_with_progress(self):
        """A peer that reads slowly gets all of what was sent before the close."""
        self.join()
        data = bytes(8 * WINDOW)
        self.far.pauseProducing()
        self.near.write(data)
        self.near.loseConnection()
        for _ in range(8):
            self.pair.pass_time(LINGER * 0.8, 1)
            self.far_user.dataReceived = lambda piece: (
                self.far_user.received.extend(piece),
                self.far.pauseProducing() if len(self.far_user.received) % WINDOW == 0 else None,
            )
            self.far.resumeProducing()
            self.pair.pump()
        self.assertEqual(len(data), len(self.far_user.received))

    def test_linger_without_progress(self):
        """A peer that takes nothing for LINGER seconds has the closed stream reset."""
        self.join()
        self.far.pauseProducing()
        self.near.write(bytes(4 * WINDOW))
        self.near.loseConnection()
        self.pair.pass_time(2 * LINGER + 1, 1)
        self.assertEqual({}, self.pair.server.wire.streams)
        self.assertEqual(Code.CANCELLED, self.near_user.reasons[0].value.code)

    def test_linger_without_a_connection(self):
        """A closed stream waits for the connection to be back, and its last bytes arrive."""
        self.join()
        self.near.write(b"last words")
        self.pair.clock.advance(0)
        self.near.loseConnection()
        self.pair.cut(told=False)
        self.pair.clock.advance(LINGER / 2)
        self.pair.connect()
        # It is cut again before anything is heard, and at the moment at which it would be reset.
        self.pair.cut(told=False)
        self.pair.clock.advance(LINGER / 2)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(b"last words", self.far_user.received)
        self.assertEqual(["made", "read lost"], self.far_user.told)
        self.pair.pass_time(LINGER + 1, 1)
        self.assertEqual(Code.CANCELLED, self.far_user.reasons[0].value.code)

    def test_session_ends(self):
        """The end of the session ends its streams with its code, and their timers."""
        self.join()
        other_user = HalfCloseUser()
        other, _ = self.pair.joined(other_user, HalfCloseUser())
        other.loseConnection()
        self.pair.server.close(Code.REPLACED, "newer session")
        self.pair.pump()
        self.assertEqual(Code.REPLACED, self.near_user.reasons[0].value.code)
        self.assertEqual(Code.REPLACED, self.far_user.reasons[0].value.code)
        self.assertEqual(1, len(other_user.reasons))
        self.assertEqual([], self.pair.clock.getDelayedCalls())


class PauseTests(StreamTestCase):
    """Streams as producers of what comes from the peer."""

    def test_pause_when_made(self):
        """A protocol that pauses its stream in ``connectionMade`` gets nothing until it resumes."""
        self.far_user.connectionMade = lambda: self.far_user.transport.pauseProducing()
        near, far = self.pair.streams()
        near.write(b"early")
        self.pair.pump()
        far.attach(self.far_user)
        self.pair.pump()
        self.assertEqual(b"", self.far_user.received)
        far.resumeProducing()
        self.assertEqual(b"early", self.far_user.received)

    def test_resume_before_attach(self):
        """Pausing and resuming before there is a user delivers nothing to nobody."""
        near, far = self.pair.streams()
        near.write(b"early")
        far.pauseProducing()
        far.resumeProducing()
        self.pair.pump()
        far.attach(self.far_user)
        self.assertEqual(b"early", self.far_user.received)

    def test_resume_in_data_received(self):
        """A protocol may pause and resume with each piece, however many have been kept."""
        self.join()
        self.far.pauseProducing()
        for number in range(60):
            self.near.write(number.to_bytes(1, "big") * 1024)
            self.pair.pump()
        kept = len(self.far._wire.backlog)
        depth = [0, 0]

        def received(data):
            depth[0] += 1
            depth[1] = max(depth)
            self.far.pauseProducing()
            self.far_user.received += data
            self.far.resumeProducing()
            depth[0] -= 1

        self.far_user.dataReceived = received
        self.far.resumeProducing()
        self.assertGreater(kept, 30)
        self.assertEqual(60 * 1024, len(self.far_user.received))
        self.assertEqual(sorted(self.far_user.received), list(self.far_user.received))
        self.assertEqual(1, depth[1])

    def test_pause_while_kept_data_is_delivered(self):
        """A protocol that pauses in the middle of what was kept gets no more of it."""
        self.join()
        self.far.pauseProducing()
        for _ in range(3):
            self.near.write(bytes(2048))
            self.pair.pump()

        def received(data):
            self.far_user.received += data
            self.far.pauseProducing()

        self.far_user.dataReceived = received
        self.far.resumeProducing()
        self.assertEqual(2048, len(self.far_user.received))

    def test_bound(self):
        """A paused stream makes its end keep a window and no more."""
        self.join()
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.assertEqual(WINDOW, sum(map(len, self.far._wire.backlog)))

    def test_stop_producing(self):
        """``stopProducing`` closes the stream, like that of a socket."""
        self.join()
        self.near.stopProducing()
        self.pair.pump()
        self.assertEqual(["made", "lost"], self.near_user.told)


class PushProducerTests(StreamTestCase):
    """Producers that push."""

    def setUp(self):
        """Open a stream whose far end does not read, and register a producer."""
        super().setUp()
        self.join()
        self.producer = Producer()

    def test_duck_typed(self):
        """A producer need not declare that it is one, as with sockets."""
        self.assertFalse(IPushProducer.providedBy(self.producer))
        self.near.registerProducer(self.producer, True)
        self.near.write(b"x")
        self.assertEqual([], self.producer.told)

    def test_connection_busy(self):
        """A producer is paused while the connection takes no more, though there is credit."""
        self.pair.server_carrier.capacity = 0
        self.near.registerProducer(self.producer, True)
        self.near.write(bytes(1024))
        self.pair.clock.advance(1)
        self.assertTrue(self.pair.server_carrier.paused)
        self.near.write(bytes(FULL_ABOVE + 1))
        self.near.write(bytes(1))
        self.assertEqual(["pause"], self.producer.told)
        self.pair.pump()
        self.assertEqual(["pause", "resume"], self.producer.told)

    def test_detached(self):
        """A producer is paused while the session has no connection, and goes on with the next."""
        self.near.registerProducer(self.producer, True)
        self.pair.cut()
        self.near.write(bytes(FULL_ABOVE + 1))
        self.assertEqual(["pause"], self.producer.told)
        self.pair.connect()
        self.pair.pump()
        self.assertEqual(["pause", "resume"], self.producer.told)
        self.assertEqual(FULL_ABOVE + 1, len(self.far_user.received))

    def test_stopped_at_clean_end(self):
        """A producer that is still registered when the stream ends cleanly is stopped, once."""
        self.near.registerProducer(self.producer, True)
        self.near.loseConnection()
        self.far.loseConnection()
        self.pair.pump()
        self.assertEqual(["stop"], self.producer.told)

    def test_writes_when_resumed(self):
        """A producer may write from within ``resumeProducing``, and be paused again by that."""
        pieces = [bytes([number]) * 8192 for number in range(100)]
        left = list(pieces)

        def resume():
            self.producer.told.append("resume")
            while left and self.producer.told[-1] == "resume":
                self.near.write(left.pop(0))

        self.producer.resumeProducing = resume
        self.near.registerProducer(self.producer, True)
        resume()
        self.pair.pump()
        self.assertEqual(b"".join(pieces), bytes(self.far_user.received))
        self.assertGreater(self.producer.told.count("pause"), 1)
        for first, second in zip(self.producer.told, self.producer.told[1:], strict=False):
            self.assertNotEqual(first, second)


class PullProducer:
    """A pull producer of ``pieces``, which unregisters itself after the last."""

    def __init__(self, stream, pieces):
        self.stream = stream
        self.pieces = list(pieces)
        self.asked = 0
        self.stopped = 0

    def resumeProducing(self):
        """Write a piece."""
        self.asked += 1
        if self.pieces:
            self.stream.write(self.pieces.pop(0))
        else:
            self.stream.unregisterProducer()

    def stopProducing(self):
        """Note it."""
        self.stopped += 1


class PullProducerTests(StreamTestCase):
    """Producers that are pulled."""

    def setUp(self):
        """Open a stream."""
        super().setUp()
        self.join()

    def test_pulled(self):
        """A pull producer is asked until it unregisters itself."""
        producer = PullProducer(self.near, [b"a" * 1000] * 100)
        self.near.registerProducer(producer, False)
        self.assertEqual(0, producer.asked)
        self.pair.pump()
        self.assertEqual(101, producer.asked)
        self.assertEqual(100_000, len(self.far_user.received))

    def test_not_pulled_while_full(self):
        """A pull producer is not asked while there is no room, and is again afterwards."""
        producer = PullProducer(self.near, [bytes(16384)] * 32)
        self.far.pauseProducing()
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertLess(producer.asked, 16)
        self.far.resumeProducing()
        self.pair.pump()
        self.assertEqual(32 * 16384, len(self.far_user.received))

    def test_registered_while_full(self):
        """A pull producer that is registered while there is no room is not asked."""
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        producer = PullProducer(self.near, [b"x"])
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertEqual(0, producer.asked)

    def test_lose_connection(self):
        """``loseConnection`` waits until a pull producer has sent all, as sockets do."""
        producer = PullProducer(self.near, [bytes(16384)] * 32)
        self.near.registerProducer(producer, False)
        self.near.loseConnection()
        self.pair.pump()
        self.assertEqual(32 * 16384, len(self.far_user.received))
        self.assertEqual(["made", "read lost"], self.far_user.told)
        self.assertEqual(["made", "lost"], self.near_user.told)

    def test_reset(self):
        """A pull producer of a stream that is reset is stopped and asked no more."""
        producer = PullProducer(self.near, [bytes(1024)] * 1000)
        self.near.registerProducer(producer, False)
        self.pair.turn()
        self.far.abort(Code.CONNECTION_LOST, "broken")
        self.pair.pump()
        asked = producer.asked
        self.pair.pump()
        self.assertEqual((asked, 1), (producer.asked, producer.stopped))

    def test_failure(self):
        """A pull producer that raises costs its stream, and is logged once."""
        producer = PullProducer(self.near, [])
        producer.resumeProducing = lambda: 1 / 0
        self.near.registerProducer(producer, False)
        self.pair.pump()
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)
        self.assertEqual(Code.INTERNAL, self.far_user.reasons[0].value.code)


class FailingUserTests(StreamTestCase):
    """Protocols with defects harm nobody else."""

    def setUp(self):
        """Open the stream of a failing user, and another one."""
        super().setUp()
        self.join()
        self.other_near, self.other_far = HalfCloseUser(), HalfCloseUser()
        self.other, _ = self.pair.joined(self.other_near, self.other_far)

    def fail(self, *args):
        """Raise."""
        raise ZeroDivisionError

    def assert_contained(self):
        """Check that the failure was logged once and the other stream goes on."""
        self.assertEqual(1, len(self.flushLoggedErrors(ZeroDivisionError)))
        self.other.write(b"still here")
        self.pair.pump()
        self.assertEqual(b"still here", self.other_far.received)
        self.assertTrue(self.pair.agent.connected)

    def test_data_received(self):
        """A protocol that raises in ``dataReceived`` loses its stream, and is told so once."""
        self.far_user.dataReceived = self.fail
        self.near.write(b"x")
        self.pair.pump()
        self.assert_contained()
        for user in (self.near_user, self.far_user):
            self.assertEqual([Code.INTERNAL], [reason.value.code for reason in user.reasons])

    def test_data_received_of_kept_data(self):
        """So does one that raises in what it gets when it resumes."""
        self.far.pauseProducing()
        self.near.write(b"x")
        self.pair.pump()
        self.far_user.dataReceived = self.fail
        self.far.resumeProducing()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_read_connection_lost(self):
        """So does one that raises in ``readConnectionLost``."""
        self.far_user.readConnectionLost = self.fail
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_write_connection_lost(self):
        """So does one that raises in ``writeConnectionLost``."""
        self.near_user.writeConnectionLost = self.fail
        self.near.loseWriteConnection()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.far_user.reasons[0].value.code)

    def test_connection_lost(self):
        """A protocol that raises in ``connectionLost`` is logged, and its stream is gone."""
        self.far_user.connectionLost = self.fail
        self.near.abortConnection()
        self.pair.pump()
        self.assert_contained()

    def test_connection_lost_after_close(self):
        """So is one that raises in ``connectionLost`` after it has closed the stream."""
        self.near_user.connectionLost = self.fail
        self.near.loseConnection()
        self.pair.pump()
        self.assert_contained()

    def test_producer(self):
        """A producer that raises when it is resumed costs its stream."""
        producer = Producer()
        producer.resumeProducing = self.fail
        self.near.registerProducer(producer, True)
        self.far.pauseProducing()
        self.near.write(bytes(1024 * 1024))
        self.pair.pump()
        self.far.resumeProducing()
        self.pair.pump()
        self.assert_contained()
        self.assertEqual(Code.INTERNAL, self.near_user.reasons[0].value.code)

    def test_opening_callback(self):
        """What raises in a callback of the opening stays in its Deferred."""
        opening: Deferred = self.pair.dial()
        opening.addCallback(self.fail)
        self.pair.pump()
        self.pair.acceptor.requests[-1].accept()
        self.pair.pump()
        self.failureResultOf(opening, ZeroDivisionError)
        self.other.write(b"x")
        self.pair.pump()
        self.assertEqual(b"x", self.other_far.received)


class ReentranceTests(StreamTestCase):
    """Protocols that call back into their stream."""

    def test_answer_from_data_received(self):
        """A protocol may write, half-close and close from within ``dataReceived``."""
        for method in ("loseConnection", "loseWriteConnection"):
            near_user, far_user = HalfCloseUser(), User()

            def received(data, far_user=far_user, method=method):
                far_user.transport.write(b"answer")
                getattr(far_user.transport, method)()

            far_user.dataReceived = received
            near, _ = self.pair.joined(near_user, far_user)
            near.write(b"question")
            self.pair.pump()
            self.assertEqual(b"answer", near_user.received)
            self.assertIn("read lost", near_user.told)

    def test_abort_from_data_received(self):
        """A protocol that aborts within ``dataReceived`` gets no more data."""
        self.join()

        def received(data):
            self.far_user.received += data
            self.far.abortConnection()

        self.far_user.dataReceived = received
        self.near.write(bytes(1000))
        self.pair.turn()
        self.near.write(bytes(1000))
        self.pair.pump()
        self.assertEqual(1000, len(self.far_user.received))
        self.assertEqual(1, len(self.far_user.reasons))

    def test_close_from_read_connection_lost(self):
        """A protocol may close its stream when the peer has ended."""
        self.join()
        self.far_user.readConnectionLost = lambda: self.far.loseConnection()
        self.near.loseWriteConnection()
        self.pair.pump()
        for user in (self.near_user, self.far_user):
            self.assertEqual(1, user.told.count("lost"))
        self.assert_counters({Code.DONE: 1})

    def test_write_from_read_connection_lost(self):
        """What a plain protocol writes in ``connectionLost`` goes nowhere, harmlessly."""
        user = User()
        user.connectionLost = lambda reason: user.transport.write(b"x")
        near, _ = self.pair.joined(self.near_user, user)
        near.loseConnection()
        self.pair.pump()
        self.assertEqual(b"", self.near_user.received)
