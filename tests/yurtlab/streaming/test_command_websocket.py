"""Exec and attach in a WebSocket, as in kubectl since 1.30 and the Python client."""

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
    WebSocketCodec,
    command_node,
    options,
    websocket_head,
)
from yurtlab.node.interfaces import ICommandClient
from yurtlab.node.streaming import connection as shared
from yurtlab.node.streaming.command_channels import OUTPUT_DELAY
from yurtlab.node.streaming.connection import MAX_BUFFERED
from yurtlab.node.streaming.websocket import HEARTBEAT

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"
STARTED = b"\x01"


class WebSocketCase(SynchronousTestCase):
    """A client that has requested a WebSocket."""

    def start(self, protocols=V5, on_ready=None, early=b"", **desired):
        """Request exec."""
        self.session = Session(on_ready)
        self.node = command_node(self.session, options(**desired))
        self.connection = self.node.connection
        self.codec = WebSocketCodec()
        self.answer = self.node.request(websocket_head(protocols), early)
        self.node.clock.advance(OUTPUT_DELAY)

    def send(self, *payloads):
        """Send messages."""
        self.connection.receive(b"".join(map(self.codec.message, payloads)))

    def messages(self):
        """Return the messages sent since the last call."""
        return self.codec.messages(self.node.receive())

    def started(self, **kwargs):
        """Start, and return the session's client."""
        self.start(**kwargs)
        self.messages()
        return self.session.client


class OpeningTests(WebSocketCase):
    """A WebSocket is opened with one version of the protocol, and the session starts."""

    def test_answer(self):
        """The response to the upgrade is that of RFC 6455 section 4.2.2."""
        self.start()
        self.assertEqual("HTTP/1.1 101 Switching Protocols", self.answer[0])
        fields = set(self.answer[1:])
        self.assertIn("Sec-WebSocket-Protocol: v5.channel.k8s.io", fields)
        self.assertIn("Sec-WebSocket-Accept: BACScCJPNqyz+UBoqMH89VmURoA=", fields)

    def test_begins(self):
        """An empty message tells the client that the session has started."""
        self.start()
        self.assertEqual(["ready"], self.session.events)
        self.assertTrue(verifyObject(ICommandClient, self.session.client))
        self.assertEqual([STARTED], self.messages())

    def test_head_start(self):
        """The session starts after a delay, in which the client creates its streams."""
        self.session = Session()
        node = command_node(self.session, options())
        node.request(websocket_head(V5))
        node.clock.advance(OUTPUT_DELAY * 0.9)
        self.assertEqual([], self.session.events)
        self.assertEqual(b"", node.receive())
        node.clock.advance(OUTPUT_DELAY * 0.2)
        self.assertEqual(["ready"], self.session.events)

    def test_left_before_the_beginning(self):
        """If the client disconnects before, the session does not start."""
        self.session = Session()
        node = command_node(self.session, options())
        node.request(websocket_head(V5))
        node.connection.break_off(ConnectionLost())
        node.clock.advance(1)
        self.assertEqual(["lost"], self.session.events)
        self.assertEqual([], node.clock.getDelayedCalls())

    def test_begins_on_the_first_output(self):
        """That message is on the first channel that the client reads."""
        for desired, channel in (
            ({}, 1),
            ({"stdout": False}, 2),
            ({"stdout": False, "stderr": False}, 3),
            ({"stdout": False, "tty": True}, 3),
        ):
            self.start(**desired)
            self.assertEqual([bytes((channel,))], self.messages())

    def test_choice(self):
        """The client's first supported protocol is chosen; it may name none."""
        for asked, chosen in (
            ("v9.channel.k8s.io, v4.channel.k8s.io, v5.channel.k8s.io", V4),
            ("channel.k8s.io", "channel.k8s.io"),
        ):
            self.start(asked)
            self.assertIn(f"Sec-WebSocket-Protocol: {chosen}", self.answer)
        self.start("")
        self.assertEqual(["ready"], self.session.events)
        self.assertNotIn("Sec-WebSocket-Protocol", "".join(self.answer))

    def test_early_bytes(self):
        """Data after the head of the request, in the same read, is not lost."""
        self.start(early=WebSocketCodec().message(b"\0early"))
        self.assertEqual(["ready", b"early"], self.session.events)


class StreamingTests(WebSocketCase):
    """Channels in both directions."""

    def test_input(self):
        """Input arrives in order, and in v5 also its end."""
        self.start()
        self.send(b"\0one", b"\0", b"", b"\0two", b"\xff\0")
        self.assertEqual(["ready", b"one", b"two", "end"], self.session.events)
        self.start(V4)
        self.send(b"\0one", b"\xff\0", b"\0two")
        self.assertEqual(["ready", b"one", b"two"], self.session.events)

    def test_text(self):
        """Text messages are input, too: the Python client sends them."""
        self.start()
        self.connection.receive(self.codec.text("\0äöü"))
        self.assertEqual("äöü".encode(), self.session.stdin)

    def test_parts(self):
        """A message in several frames has its channel in the first, which may be empty."""
        self.start()
        codec = self.codec
        parts = [codec.message(b"", False), codec.message(b"\0", False)]
        parts += [codec.message(b"one", False), codec.message(b"\4two", True)]
        self.connection.receive(b"".join(parts))
        self.send(b"\0three")
        self.assertEqual(b"one\4twothree", self.session.stdin)

    @given(st.lists(st.integers(0, 250)), st.binary(max_size=180))
    def test_any_cuts(self, cuts, payload):
        """The session gets the same input, however the frames are split."""
        session, codec = Session(), WebSocketCodec()
        node = command_node(session, options(tty=True))
        node.request(websocket_head(V5))
        stream = codec.message(b"\0" + payload) + codec.message(b'\4{"Width":5,"Height":6}')
        stream += codec.ping(b"?") + codec.message(b"\xff\0")
        edges = [0, *sorted(cuts), len(stream)]
        for start, end in itertools.pairwise(edges):
            if start < end:
                node.connection.receive(stream[start:end])
        # What has come before the session begins has been kept for it.
        node.clock.advance(OUTPUT_DELAY)
        self.assertEqual(payload, session.stdin)
        words = [events for events in session.events if not isinstance(events, bytes)]
        self.assertEqual([(5, 6), "ready", "end"], words)

    def test_output(self):
        """Output is sent on its channels."""
        client = self.started()
        client.write("stdout", b"out")
        client.write("stderr", b"err")
        self.assertEqual([b"\1out", b"\2err"], self.messages())

    def test_frame(self):
        """A message is one unmasked binary frame."""
        client = self.started()
        client.write("stdout", b"out")
        self.assertEqual(b"\x82\x04\x01out", self.node.receive())

    def test_unwanted(self):
        """Output on channels that the client did not request is dropped, and so is input."""
        client = self.started(stdin=False, stdout=False, stderr=False)
        client.write("stdout", b"out")
        client.write("stderr", b"err")
        self.send(b"\0x", b"\xff\0")
        self.assertEqual([], self.messages())
        self.assertEqual(b"", self.session.stdin)

    def test_sizes(self):
        """Terminal sizes are passed to the session."""
        self.start(tty=True)
        self.send(b'\4{"Width":80,"Height":24}')
        self.assertEqual(["ready", (80, 24)], self.session.events)

    def test_other_channels(self):
        """Input on output channels is ignored."""
        self.start()
        self.send(b"\1x", b"\2x", b"\3x", b"\5x", b"\xfex", b"\xff\1", b"\0y")
        self.assertEqual(["ready", b"y"], self.session.events)

    def test_ping(self):
        """Pings are answered with their payload."""
        self.started()
        self.connection.receive(self.codec.ping(b"are you there"))
        self.assertEqual([("pong", b"are you there")], self.messages())


class BackPressureTests(WebSocketCase):
    """Each side buffers a limited amount of data for the other."""

    def test_paused_input(self):
        """Input for a paused session is buffered up to a limit, then not read, then all
        delivered.
        """
        client = self.started()
        client.pauseProducing()
        self.send(b"\0" + bytes(MAX_BUFFERED))
        self.assertTrue(self.connection.reading)
        self.send(b"\0x")
        self.assertFalse(self.connection.reading)
        self.send(b"\xff\0")
        self.assertEqual(["ready"], self.session.events)
        client.resumeProducing()
        self.node.clock.advance(0)
        self.assertEqual(bytes(MAX_BUFFERED) + b"x", self.session.stdin)
        self.assertEqual("end", self.session.events[-1])

    def test_heartbeat(self):
        """A client whose pings are not read gets pongs, so that it does not time out."""
        client = self.started()
        client.pauseProducing()
        self.send(b"\0" + bytes(MAX_BUFFERED + 1))
        self.node.clock.pump([HEARTBEAT, HEARTBEAT])
        self.assertEqual([("pong", b""), ("pong", b"")], self.messages())
        client.resumeProducing()
        self.node.clock.pump([HEARTBEAT, HEARTBEAT])
        self.assertEqual([], self.messages())
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_heartbeat_ends(self):
        """The pongs end with the connection."""
        client = self.started()
        client.pauseProducing()
        self.send(b"\0" + bytes(MAX_BUFFERED + 1))
        self.connection.break_off(ConnectionLost())
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_output_is_paused(self):
        """The producer of the output is paused while the client does not read."""
        client, source = self.started(), Producer()
        client.register_output(source)
        client.write("stdout", bytes(100_000))
        self.assertEqual(["pause"], source.events)
        self.messages()
        self.connection.turn()
        self.assertEqual(["pause", "resume"], source.events)

    def test_pings_without_end(self):
        """A client that sends pings and reads no pongs is aborted."""
        client = self.started()
        client.write("stdout", bytes(100_000))
        for _ in range(shared.MAX_UNREAD_ANSWERS // 102 + 1):
            self.connection.receive(self.codec.ping(bytes(100)))
        self.assertTrue(self.connection.aborted)


class EndTests(WebSocketCase):
    """The end: all output, the status, the close."""

    def test_order(self):
        """The status follows all output, and the close follows the status."""
        for protocol in (V5, V4):
            client = self.started(protocols=protocol)
            client.write("stdout", b"last")
            client.finish(FAILURE)
            output, status, close = self.messages()
            self.assertEqual(b"\1last", output)
            self.assertEqual(3, status[0])
            self.assertEqual(FAILURE, json.loads(status[1:]))
            self.assertEqual(("close", 1000), close)

    def test_text(self):
        """Before v4 a failure is sent as text, and nothing for success."""
        for protocol in ("channel.k8s.io", ""):
            self.started(protocols=protocol).finish(FAILURE)
            self.assertEqual(b"\3" + FAILURE["message"].encode(), self.messages()[0])
            self.started(protocols=protocol).finish(SUCCESS)
            self.assertEqual([("close", 1000)], self.messages())

    def test_at_once(self):
        """A session may finish while it starts, and nothing is lost."""
        self.start(on_ready=lambda client: client.finish(SUCCESS))
        self.assertEqual([STARTED, b"\3" + json.dumps(SUCCESS).encode()], self.messages()[:2])

    def test_client_answers(self):
        """The connection is closed when the client has answered; no timer is left."""
        self.started().finish(SUCCESS)
        self.messages()
        self.assertTrue(self.connection.connected)
        self.connection.receive(self.codec.close())
        self.connection.turn()
        self.assertFalse(self.connection.connected)
        self.assertEqual(["ready"], self.session.events)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_client_never_answers(self):
        """A client that does not answer the close is aborted."""
        self.started().finish(SUCCESS)
        self.messages()
        self.node.clock.advance(shared.LINGER)
        self.assertTrue(self.connection.aborted)

    def test_client_closes(self):
        """A client's close is answered, and its session is notified."""
        self.started()
        self.connection.receive(self.codec.close())
        self.assertEqual([("close", 1000)], self.messages())
        self.connection.turn()
        self.assertEqual(["ready", "lost"], self.session.events)
        self.assertFalse(self.connection.connected)

    def test_client_closes_without_a_code(self):
        """A close without a code is answered with one."""
        self.started()
        self.connection.receive(b"\x88\x80\0\0\0\0")
        self.assertEqual(b"\x88\0", self.node.receive())
        self.connection.turn()
        self.assertEqual(["ready", "lost"], self.session.events)

    def test_client_leaves(self):
        """The session is notified once when its client disconnects."""
        self.started()
        self.connection.receive_end()
        self.connection.turn()
        self.assertEqual(["ready", "lost"], self.session.events)
        self.assertEqual([], self.node.clock.getDelayedCalls())


class HostileTests(WebSocketCase):
    """Violations of RFC 6455 close the connection with the specified code."""

    def rejected(self, raw, code=1002):
        """Send bytes that are answered with a close."""
        self.started()
        self.connection.receive(raw)
        self.assertEqual([("close", code)], self.messages())
        self.connection.turn()
        self.assertEqual(["ready", "lost"], self.session.events)
        self.assertFalse(self.connection.connected)
        self.assertEqual([], self.node.clock.getDelayedCalls())

    def test_unmasked(self):
        """Frames must be masked."""
        self.rejected(b"\x82\x02\0x")

    def test_reserved(self):
        """Reserved bits and opcodes must not be used."""
        self.rejected(b"\xc2\x80\0\0\0\0")
        self.rejected(b"\x83\x80\0\0\0\0")

    def test_control_frames(self):
        """Control frames must be short and not fragmented."""
        self.rejected(b"\x89\xfe\x00\x7e\0\0\0\0")
        self.rejected(b"\x09\x80\0\0\0\0")

    def test_continuation(self):
        """A continuation frame must follow an unfinished message."""
        self.rejected(b"\x80\x80\0\0\0\0")

    def test_bad_text(self):
        """Text must be UTF-8."""
        self.rejected(b"\x81\x82\0\0\0\0\0\xff", 1007)

    def test_nothing_after_the_end(self):
        """Data after an error or a close is not parsed."""
        self.rejected(b"\x82\x02\0x" + WebSocketCodec().message(b"\0x"))
        self.started()
        self.connection.receive(self.codec.close() + b"\x82\x82\0\0\0\0\0x")
        self.assertEqual(["ready"], self.session.events)

    def test_goes_on(self):
        """Input after an error is dropped."""
        self.started()
        self.connection.receive(b"\x82\x02\0x")
        self.send(b"\0x")
        self.assertEqual(["ready"], self.session.events)

    def test_never_closes(self):
        """After an error, a client that does not read the close is aborted in time."""
        self.started()
        self.connection.receive(b"\x82\x02\0x")
        self.node.clock.advance(shared.CLOSE_TIMEOUT)
        self.assertTrue(self.connection.aborted)

    @given(st.binary(max_size=200))
    def test_noise(self, noise):
        """Any input is accepted or ends the connection, without another effect."""
        node = command_node(Session(), options(tty=True))
        node.request(websocket_head(V5))
        node.connection.receive(noise)

    def test_endless_message(self):
        """A message of any length is delivered in pieces, not buffered."""
        self.start()
        self.connection.receive(b"\x82\xff" + (2**62).to_bytes(8) + bytes(4) + b"\0")
        for _ in range(10):
            self.connection.receive(b"x" * 60_000)
        self.assertEqual(600_000, len(self.session.stdin))
