"""Exec and attach over SPDY/3.1, as in kubectl before 1.30."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionLost
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.tunnel.memory import Producer
from tests.yurtlab.streaming.support import (
    FAILURE,
    SUCCESS,
    Session,
    SPDYCodec,
    command_node,
    control,
    data,
    options,
    ping,
    reset,
    spdy_head,
)
from yurtlab.node.interfaces import ICommandClient
from yurtlab.node.streaming import connection as shared
from yurtlab.node.streaming import spdy_connection
from yurtlab.node.streaming.connection import MAX_BUFFERED

V4 = "v4.channel.k8s.io"
ALL_STREAMS = ("error", "stdin", "stdout", "stderr")
ERROR, STDIN, STDOUT, STDERR, RESIZE = 1, 3, 5, 7, 9


class SPDYCase(SynchronousTestCase):
    """A client that has requested SPDY and opens streams."""

    def start(self, streams=ALL_STREAMS, protocols=(V4,), **desired):
        """Request exec and open ``streams``."""
        self.session = Session()
        self.node = command_node(self.session, options(**desired))
        self.codec = SPDYCodec()
        self.answer = self.node.request(spdy_head(*protocols))
        for kind in streams:
            self.send(self.codec.syn_stream({"streamtype": kind}))
        self.connection = self.node.connection

    def send(self, *frames):
        """Send frames."""
        self.node.connection.receive(b"".join(frames))

    def frames(self):
        """Return the frames sent since the last call."""
        return self.codec.frames(self.node.receive())

    def started(self, **kwargs):
        """Start, and return the session's client."""
        self.start(**kwargs)
        self.frames()
        return self.session.client

    def pass_time(self, seconds):
        """Advance the clock."""
        self.node.clock.advance(seconds)


class OpeningTests(SPDYCase):
    """The session starts when all streams are open."""

    def test_answer(self):
        """The response to the upgrade names the chosen protocol."""
        self.start()
        self.assertEqual("HTTP/1.1 101 Switching Protocols", self.answer[0])
        fields = {line.lower() for line in self.answer[1:]}
        self.assertIn("connection: upgrade", fields)
        self.assertIn("upgrade: spdy/3.1", fields)
        self.assertIn("x-stream-protocol-version: v4.channel.k8s.io", fields)

    def test_replies(self):
        """Each stream is accepted at once, since kubectl waits for that before it opens the
        next.
        """
        self.start(streams=())
        for stream_id, kind in ((1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")):
            self.assertEqual([], self.session.events)
            self.send(self.codec.syn_stream({"streamtype": kind}))
            self.assertEqual([("reply", stream_id)], self.frames())
        self.assertEqual(["ready"], self.session.events)
        self.assertTrue(verifyObject(ICommandClient, self.session.client))

    def test_any_order(self):
        """The streams may be opened in any order."""
        self.start(streams=reversed(ALL_STREAMS))
        self.assertEqual(["ready"], self.session.events)

    def test_only_what_is_asked_for(self):
        """A session starts with the streams of its options, and the error stream."""
        self.start(("error", "stdout"), stdin=False, stderr=False)
        self.assertEqual(["ready"], self.session.events)

    def test_terminal(self):
        """A terminal has a resize stream, and no stderr stream."""
        self.start(("error", "stdin", "stdout"), tty=True)
        self.assertEqual([], self.session.events)
        self.send(self.codec.syn_stream({"streamtype": "resize"}))
        self.assertEqual(["ready"], self.session.events)

    def test_terminal_without_size(self):
        """Before v3 a terminal has no resize stream."""
        for protocol in ("v2.channel.k8s.io", "channel.k8s.io"):
            self.start(("error", "stdin", "stdout"), (protocol,), tty=True)
            self.assertEqual(["ready"], self.session.events)

    def test_unexpected(self):
        """Unexpected and duplicate streams are refused."""
        self.start(("error", "error", "resize", "nonsense", "stdin"))
        self.send(self.codec.syn_stream({}))
        refused = [frame for frame in self.frames() if frame[0] == "reset"]
        self.assertEqual([("reset", stream_id, 3) for stream_id in (3, 5, 7, 11)], refused)
        self.assertEqual([], self.session.events)

    def test_too_late(self):
        """A client that does not open its streams in time is aborted."""
        self.start(("error", "stdin"))
        self.frames()
        self.pass_time(29.9)
        self.assertEqual([], self.session.events)
        self.pass_time(0.2)
        self.assertEqual([("goaway", STDIN, 1)], self.frames())
        self.node.connection.turn()
        self.assertEqual(["lost"], self.session.events)
        self.assertFalse(self.node.connection.connected)

    def test_in_time(self):
        """A client that has opened its streams has no timeout."""
        self.start()
        self.pass_time(100_000)
        self.assertEqual(["ready"], self.session.events)
        self.assertTrue(self.node.connection.connected)

    def test_leaves_before(self):
        """The session is notified when its client disconnects before the start; no timer is
        left.
        """
        self.start(("error",))
        self.node.connection.break_off(ConnectionLost())
        self.assertEqual(["lost"], self.session.events)
        self.pass_time(100)

    def test_early_bytes(self):
        """Data after the head of the request, in the same read, is not lost."""
        session, codec = Session(), SPDYCodec()
        node = command_node(session)
        early = b"".join(codec.syn_stream({"streamtype": kind}) for kind in ALL_STREAMS)
        node.request(spdy_head(V4), early + data(STDIN, b"early", True))
        self.assertEqual(["ready", b"early", "end"], session.events)

    def test_early_input(self):
        """Input before all streams are open is kept for the session."""
        self.start(("stdin", "error", "stdout"))
        self.send(data(1, b"early"))
        self.assertEqual([], self.session.events)
        self.send(self.codec.syn_stream({"streamtype": "stderr"}))
        self.assertEqual(["ready", b"early"], self.session.events)

    def test_early_size(self):
        """Of the sizes received before the start, the session gets the last one first."""
        self.start(("resize", "error", "stdin"), tty=True)
        self.send(data(1, b'{"Width":1,"Height":2}{"Width":3,"Height":4}'))
        self.send(self.codec.syn_stream({"streamtype": "stdout"}))
        self.assertEqual([(3, 4), "ready"], self.session.events)


class StreamingTests(SPDYCase):
    """Input, output and sizes."""

    def test_input(self):
        """Input arrives in order, and so does its end."""
        self.start()
        self.send(data(STDIN, b"one "), data(STDIN, b""), data(STDIN, b"two"))
        self.send(data(STDIN, b"", True))
        self.assertEqual(["ready", b"one ", b"two", "end"], self.session.events)

    def test_input_reset(self):
        """A reset of the input ends it, too."""
        self.start()
        self.send(data(STDIN, b"x"), reset(STDIN))
        self.assertEqual(["ready", b"x", "end"], self.session.events)

    def test_input_never(self):
        """A stream that is opened with FIN has no input."""
        self.start(("error", "stdout", "stderr"))
        self.send(self.codec.syn_stream({"streamtype": "stdin"}, flags=1))
        self.assertEqual(["ready", "end"], self.session.events)

    @given(st.lists(st.integers(0, 200)), st.binary(max_size=150))
    def test_any_cuts(self, cuts, payload):
        """The session gets the same input, however the frames are split."""
        session, codec = Session(), SPDYCodec()
        node = command_node(session, options(tty=True))
        node.request(spdy_head(V4))
        kinds = ("error", "stdin", "stdout", "resize")
        stream = b"".join(codec.syn_stream({"streamtype": kind}) for kind in kinds)
        stream += data(3, payload[:70]) + data(7, b'{"Width":5,"Height":6}')
        stream += data(3, payload[70:], True)
        edges = [0, *sorted(cuts), len(stream)]
        for start, end in itertools.pairwise(edges):
            if start < end:
                node.connection.receive(stream[start:end])
        self.assertEqual(payload, session.stdin)
        words = [events for events in session.events if not isinstance(events, bytes)]
        self.assertEqual(["ready", (5, 6), "end"], words)

    def test_output(self):
        """Output is sent on its streams."""
        client = self.started()
        client.write("stdout", b"out")
        client.write("stderr", b"err")
        client.write("stdout", b"")
        sent = [("data", STDOUT, b"out", False), ("data", STDERR, b"err", False)]
        self.assertEqual(sent, self.frames())

    def test_output_that_nobody_wants(self):
        """Output on streams that the client did not open is dropped."""
        client = self.started(streams=("error", "stdin"), stdout=False, stderr=False)
        client.write("stdout", b"out")
        client.write("stderr", b"err")
        self.assertEqual([], self.frames())

    def test_terminal_has_no_error_output(self):
        """A terminal sends error output as output; it has no stderr stream."""
        client = self.started(streams=("error", "stdin", "stdout", "resize"), tty=True)
        client.write("stderr", b"err")
        self.assertEqual([], self.frames())

    def test_sizes(self):
        """Sizes are passed to the session."""
        self.start(("error", "stdin", "stdout", "resize"), tty=True)
        self.send(data(7, b'{"Width":80,"Height"'), data(7, b":24}\n"))
        self.assertEqual(["ready", (80, 24)], self.session.events)

    def test_ping(self):
        """The client's pings are echoed; other pings are ignored."""
        self.start()
        self.frames()
        self.send(ping(1), ping(2), ping(3))
        self.assertEqual([("ping", 1), ("ping", 3)], self.frames())

    def test_informational_frames(self):
        """SETTINGS, WINDOW_UPDATE and HEADERS are accepted and ignored."""
        self.start()
        self.frames()
        self.send(control(4, bytes(4)), control(9, bytes((0, 0, 0, STDIN, 0, 0, 1, 0))))
        self.send(control(8, bytes((0, 0, 0, STDIN)) + self.codec.block({"a": "b"})))
        self.send(data(STDIN, b"x"))
        self.assertEqual(["ready", b"x"], self.session.events)
        self.assertEqual([], self.frames())


class BackPressureTests(SPDYCase):
    """Each side buffers a limited amount of data for the other."""

    def test_paused_input(self):
        """Input for a paused session is buffered up to a limit; then it is not read."""
        client = self.started()
        client.pauseProducing()
        for _ in range(MAX_BUFFERED // 1024):
            self.send(data(STDIN, bytes(1024)))
        self.assertTrue(self.connection.reading)
        self.send(data(STDIN, b"more"))
        self.assertFalse(self.connection.reading)
        self.send(data(STDIN, b" and more", True))
        self.assertEqual(["ready"], self.session.events)
        client.resumeProducing()
        self.pass_time(0)
        self.assertTrue(self.connection.reading)
        self.assertEqual(bytes(MAX_BUFFERED) + b"more and more", self.session.stdin)
        self.assertEqual("end", self.session.events[-1])

    def test_paused_by_the_session_at_once(self):
        """A session may pause its input while it starts."""
        session, codec = Session(lambda client: client.pauseProducing()), SPDYCodec()
        node = command_node(session)
        early = b"".join(codec.syn_stream({"streamtype": kind}) for kind in ALL_STREAMS)
        node.request(spdy_head(V4), early + data(STDIN, b"x", True))
        self.assertEqual(["ready"], session.events)
        session.client.resumeProducing()
        self.assertEqual(["ready", b"x", "end"], session.events)

    def test_paused_within_a_read(self):
        """Nothing is delivered after the session has paused, not even from the same read."""
        client = self.started()
        self.session.on_input = client.pauseProducing
        self.send(data(STDIN, b"one") + data(STDIN, b"two"))
        self.assertEqual(["ready", b"one"], self.session.events)
        client.resumeProducing()
        self.assertEqual(["ready", b"one", b"two"], self.session.events)

    def test_output_is_paused(self):
        """All producers of output are paused while the client does not read."""
        client = self.started()
        sources = [Producer(), Producer()]
        for source in sources:
            client.register_output(source)
        client.write("stdout", bytes(100_000))
        self.assertEqual([["pause"]] * 2, [source.events for source in sources])
        self.frames()
        self.connection.turn()
        self.assertEqual([["pause", "resume"]] * 2, [source.events for source in sources])

    def test_pings_without_end(self):
        """A client that sends pings and reads no replies is aborted."""
        client = self.started()
        client.write("stdout", bytes(100_000))
        for _ in range(shared.MAX_UNREAD_ANSWERS // 12):
            self.send(ping(1))
        self.assertFalse(self.connection.aborted)
        self.send(ping(1))
        self.assertTrue(self.connection.aborted)
        self.assertEqual(["ready", "lost"], self.session.events)

    def test_pings_without_end_in_one_read(self):
        """So is one that sends them all at once, and later data is not parsed."""
        client = self.started()
        client.write("stdout", bytes(100_000))
        count = shared.MAX_UNREAD_ANSWERS // 12 + 1
        self.send(ping(1) * count, data(STDIN, b"x"))
        self.assertTrue(self.connection.aborted)
        self.assertEqual(["ready", "lost"], self.session.events)


class EndTests(SPDYCase):
    """The end: all output, the status, the ends of the streams; then the client closes."""

    def test_order(self):
        """The status follows all output, and the ends of all streams follow the status."""
        client = self.started()
        client.write("stdout", b"last")
        client.finish(SUCCESS)
        frames = self.frames()
        self.assertEqual(("data", STDOUT, b"last", False), frames[0])
        kind, stream_id, content, fin = frames[1]
        self.assertEqual(("data", ERROR, False), (kind, stream_id, fin))
        self.assertEqual(SUCCESS, json.loads(content))
        ends = [("data", stream_id, b"", True) for stream_id in (ERROR, STDIN, STDOUT, STDERR)]
        self.assertEqual(ends, sorted(frames[2:]))

    def test_before_it_has_begun_to_stream(self):
        """A session may finish while it starts, and nothing is lost."""

        def finish(client):
            client.write("stderr", b"no such command")
            client.finish(FAILURE)

        session, codec = Session(finish), SPDYCodec()
        node = command_node(session)
        node.request(spdy_head(V4))
        for kind in ALL_STREAMS:
            node.connection.receive(codec.syn_stream({"streamtype": kind}))
        frames = codec.frames(node.receive())
        self.assertEqual([("reply", stream_id) for stream_id in (1, 3, 5, 7)], frames[:4])
        self.assertEqual(("data", STDERR, b"no such command", False), frames[4])
        self.assertEqual(FAILURE, json.loads(frames[5][2]))
        self.assertEqual(10, len(frames))

    def test_text(self):
        """Before v4 a failure is sent as text, and success as an empty error stream."""
        for protocol in ("v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"):
            for status, content in ((FAILURE, FAILURE["message"].encode()), (SUCCESS, b"")):
                client = self.started(protocols=(protocol,))
                client.finish(status)
                events = b"".join(frame[2] for frame in self.frames() if frame[1] == ERROR)
                self.assertEqual(content, events)

    def test_client_closes(self):
        """The connection stays open until the client closes it; nothing is lost and no timer is
        left."""
        self.started().finish(SUCCESS)
        self.frames()
        self.assertTrue(self.connection.connected)
        self.send(reset(STDIN))
        self.connection.receive_end()
        self.connection.turn()
        self.assertFalse(self.connection.connected)
        self.assertEqual(["ready"], self.session.events)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_silent_client(self):
        """A client that neither closes nor sends anything is aborted."""
        self.started().finish(SUCCESS)
        self.frames()
        self.pass_time(shared.LINGER - 1)
        self.send(ping(1))
        self.pass_time(shared.LINGER - 1)
        self.assertFalse(self.connection.aborted)
        self.pass_time(1)
        self.assertTrue(self.connection.aborted)

    def test_paused_input_at_the_end(self):
        """Unread input does not prevent that the client's close is noticed."""
        client = self.started()
        client.pauseProducing()
        self.send(*[data(STDIN, bytes(60_000)) for _ in range(6)])
        self.assertFalse(self.connection.reading)
        client.finish(SUCCESS)
        self.assertTrue(self.connection.reading)
        self.send(data(STDIN, b"x", True))
        self.assertEqual(["ready"], self.session.events)

    def test_after_the_end(self):
        """Calls of a session after its end, or after its client's, have no effect."""
        for end in (lambda client: client.finish(SUCCESS), lambda client: None):
            client = self.started()
            end(client)
            self.frames()
            self.connection.break_off(ConnectionLost())
            client.write("stdout", b"x")
            client.write("stderr", b"x")
            client.pauseProducing()
            client.resumeProducing()
            client.finish(FAILURE)
            self.assertEqual(b"", self.connection.sent)
            self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_client_leaves(self):
        """A session is notified once when its client disconnects."""
        self.started()
        self.connection.receive_end()
        self.connection.turn()
        self.session.client.lost()
        self.assertEqual(["ready", "lost"], self.session.events)


class HostileTests(SPDYCase):
    """Protocol errors end the connection, and the session is notified."""

    def rejected(self, *frames):
        """Send frames that end the connection."""
        self.start()
        self.frames()
        self.send(*frames)
        self.assertEqual(("goaway", 7, 1), self.frames()[-1])
        self.connection.turn()
        self.assertEqual(["ready", "lost"], self.session.events)
        self.assertFalse(self.connection.connected)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_bad_frame(self):
        """An invalid frame."""
        self.rejected(control(6, bytes(4), version=2))

    def test_bad_zlib(self):
        """Headers that cannot be decompressed."""
        self.rejected(control(1, bytes((0, 0, 0, 9)) + b"\xff" * 30))

    def test_stream_ids(self):
        """An even stream ID, a used one, or a lower one."""
        for stream_id in (2, 7, 1):
            self.rejected(SPDYCodec().syn_stream({}, stream_id=stream_id))

    def test_unknown_streams(self):
        """Data, a reset or headers for a stream that was never opened."""
        for stream_id in (2, 9):
            self.rejected(data(stream_id, b"x"))
            self.rejected(reset(stream_id))

    @given(st.binary(max_size=200))
    def test_noise(self, noise):
        """Any input is accepted or ends the connection, without another effect."""
        node = command_node(Session())
        node.request(spdy_head(V4))
        node.connection.receive(SPDYCodec().syn_stream({"streamtype": "stdin"}) + noise)

    def test_reply(self):
        """A SYN_REPLY, because this end opens no streams."""
        self.start()
        body = bytes((0, 0, 0, 2)) + self.codec.block({})
        self.send(control(2, body))
        self.assertEqual(("goaway", 7, 1), self.frames()[-1])

    def test_nothing_after_the_end(self):
        """Data of the same read after an invalid frame is not parsed."""
        self.rejected(data(9, b""), data(STDIN, b"x"))

    def test_never_closes(self):
        """After an error, a client that does not read the response is aborted in time."""
        self.start()
        self.send(data(9, b""))
        self.pass_time(shared.CLOSE_TIMEOUT)
        self.assertTrue(self.connection.aborted)

    def test_data_after_the_end(self):
        """Data after FIN resets its stream."""
        self.start()
        self.frames()
        self.send(data(STDIN, b"", True), data(STDIN, b"x"))
        self.assertEqual([("reset", STDIN, 9)], self.frames())
        self.send(data(STDIN, b"y"))
        self.assertEqual([], self.frames())
        self.assertEqual(["ready", "end"], self.session.events)

    def test_closed_streams(self):
        """Frames for a closed stream are dropped: the client may not know yet."""
        self.start()
        self.frames()
        self.send(reset(STDOUT), data(STDOUT, b"x"), reset(STDOUT))
        self.session.client.write("stdout", b"dropped")
        self.assertEqual([], self.frames())
        self.assertTrue(self.connection.connected)

    def test_after_goaway(self):
        """After its GOAWAY a client can open no streams."""
        self.start(streams=("error", "stdin", "stdout"))
        self.frames()
        self.send(control(7, bytes(8)), self.codec.syn_stream({"streamtype": "stderr"}))
        self.assertEqual([("reset", STDERR, 3)], self.frames())

    def test_too_many_streams(self):
        """Streams beyond the limit are refused."""
        self.patch(spdy_connection, "MAX_STREAMS", 3)
        self.start()
        self.assertEqual(("reset", STDERR, 3), self.frames()[-1])
        self.assertEqual([], self.session.events)
