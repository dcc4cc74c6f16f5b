"""Streaming on a node in memory: real HTTP connections, recording sessions, and clients.

The SPDY client is modeled on moby/spdystream, and shares only the dictionary with the package,
which is checked by a separate test.
"""

from __future__ import annotations

import base64
import struct
import zlib

from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from zope.interface import implementer

from tests.fakes import MemoryConnection
from yurtlab.node.interfaces import ICommandSession, IPortForwarder
from yurtlab.node.streaming.command_client import CommandOptions
from yurtlab.node.streaming.spdy import DICTIONARY
from yurtlab.node.streaming.upgrades import command_upgrade, forward_upgrade
from yurttunnel.http.interfaces import IRequestHandler
from yurttunnel.http.server import HTTPFactory

SUCCESS = {"metadata": {}, "status": "Success"}
FAILURE = {
    "metadata": {},
    "status": "Failure",
    "reason": "NonZeroExitCode",
    "message": "command terminated with non-zero exit code: 42",
    "details": {"causes": [{"reason": "ExitCode", "message": "42"}]},
}
KEY = base64.b64encode(b"0123456789abcdef").decode()


def options(stdin=True, stdout=True, stderr=True, tty=False):
    """Return the options of a command."""
    return CommandOptions(stdin, stdout, stderr, tty)


@implementer(ICommandSession)
class Session:
    """Records its calls in order.

    ``on_ready`` is called with the client, ``on_input`` after each piece of input.
    """

    def __init__(self, on_ready=None):
        self.events = []
        self.client = None
        self.on_ready = on_ready
        self.on_input = lambda: None

    @property
    def stdin(self):
        """All input."""
        return b"".join(item for item in self.events if isinstance(item, bytes))

    def client_ready(self, client):
        """Note it."""
        self.events.append("ready")
        self.client = client
        if self.on_ready is not None:
            self.on_ready(client)

    def stdin_received(self, data):
        """Note the data."""
        self.events.append(bytes(data))
        self.on_input()

    def stdin_ended(self):
        """Note it."""
        self.events.append("end")

    def resized(self, width, height):
        """Note the size."""
        self.events.append((width, height))

    def client_lost(self):
        """Note it."""
        self.events.append("lost")


@implementer(IPortForwarder)
class Forwarder:
    """Records the requested connections."""

    def __init__(self):
        self.requests = []

    def connection_requested(self, port, connection):
        """Record the connection."""
        self.requests.append((port, connection))


@implementer(IRequestHandler)
class Node:
    """Serves each request with ``serve(clock, exchange)``, on connections in memory."""

    def __init__(self, serve):
        self.clock = MemoryReactorClock()
        self.exchange = None
        self._serve = serve
        # HTTP has a clock of its own, so that the timers of the other are all of streaming's.
        self._factory = HTTPFactory(Clock(), self)
        self.connection = MemoryConnection(self.clock).open(self._factory.buildProtocol(None))

    def request_received(self, exchange):
        """Serve it."""
        self.exchange = exchange
        self._serve(self.clock, exchange)

    def request(self, head, early=b""):
        """Send a request head (lines) with the data after it, and return the head of the
        response.
        """
        lines = [*head, "Host: node", "", ""]
        self.connection.receive("\r\n".join(lines).encode() + early)
        return self.answer_head()

    def answer_head(self):
        """Return the lines of the response's head; later data stays unread."""
        head, _, rest = self.receive().partition(b"\r\n\r\n")
        self.connection.segments.append(rest)
        return head.decode().split("\r\n")

    def receive(self):
        """Return the data sent since the last call."""
        self.connection.turn()
        data = self.connection.sent
        self.connection.segments.clear()
        return data


def command_node(session, command_options=None):
    """Return a node that serves exec."""
    desired = command_options or options()
    return Node(lambda clock, exchange: command_upgrade(clock, exchange, desired, session))


def forward_node(forwarder):
    """Return a node that serves port-forward."""
    return Node(lambda clock, exchange: forward_upgrade(clock, exchange, forwarder))


def spdy_head(*protocols, path="/exec"):
    """Return the head of kubectl's SPDY request."""
    versions = [f"X-Stream-Protocol-Version: {protocol}" for protocol in protocols]
    return [
        f"POST {path} HTTP/1.1",
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        "Content-Length: 0",
        *versions,
    ]


def websocket_head(protocols="", path="/exec"):
    """Return the head of a WebSocket request."""
    asked = [f"Sec-WebSocket-Protocol: {protocols}"] if protocols else []
    return [
        f"GET {path} HTTP/1.1",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY}",
        *asked,
    ]


class SPDYCodec:
    """The frames that a client sends and receives."""

    def __init__(self):
        self._compress = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 8, 0, DICTIONARY)
        self._decompress = zlib.decompressobj(zdict=DICTIONARY)
        self._received = b""
        self.next_id = 1

    def block(self, headers):
        """Compress headers."""
        plain = struct.pack("!I", len(headers))
        for text in (text for pair in headers.items() for text in pair):
            plain += struct.pack("!I", len(text)) + text.encode()
        return self._compress.compress(plain) + self._compress.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, headers, flags=0, stream_id=None):
        """Open the next stream, or ``stream_id``."""
        if stream_id is None:
            stream_id, self.next_id = self.next_id, self.next_id + 2
        body = struct.pack("!IIH", stream_id, 0, 0) + self.block(headers)
        return control(1, body, flags)

    def frames(self, data):
        """Return the frames in ``data``, after those left over."""
        self._received += data
        frames = []
        while len(self._received) >= 8:
            first, second = struct.unpack_from("!II", self._received)
            end = 8 + (second & 0xFFFFFF)
            if len(self._received) < end:
                break
            body, self._received = self._received[8:end], self._received[end:]
            frames.append(self._frame(first, second >> 24, body))
        return frames

    def _frame(self, first, flags, body):
        if not first >> 31:
            return ("data", first, body, bool(flags & 1))
        assert first >> 16 == 0x8003, hex(first)
        kind = first & 0xFFFF
        if kind == 2:
            assert self._decompress.decompress(body[4:]) == b"\0\0\0\0"
            return ("reply", *struct.unpack_from("!I", body))
        if kind == 3:
            return ("reset", *struct.unpack("!II", body))
        if kind == 6:
            return ("ping", *struct.unpack("!I", body))
        if kind == 7:
            return ("goaway", *struct.unpack("!II", body))
        raise AssertionError(f"a server sends no frame of type {kind}")


def control(kind, body, flags=0, version=3):
    """Make a control frame."""
    return struct.pack("!HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


def data(stream_id, payload, fin=False):
    """Make a DATA frame."""
    return struct.pack("!II", stream_id, fin << 24 | len(payload)) + payload


def reset(stream_id, status=5):
    """Make a RST_STREAM frame."""
    return control(3, struct.pack("!II", stream_id, status))


def ping(ping_id):
    """Make a PING frame."""
    return control(6, struct.pack("!I", ping_id))


class WebSocketCodec:
    """The messages that a client sends and receives; those received as tuples."""

    def __init__(self):
        self.connection = Connection(ConnectionType.CLIENT)

    def message(self, payload, finished=True):
        """Send a binary message, or a part of it."""
        return self.connection.send(BytesMessage(data=payload, message_finished=finished))

    def text(self, payload):
        """Send a text message."""
        return self.connection.send(TextMessage(data=payload))

    def ping(self, payload=b""):
        """Send a ping."""
        return self.connection.send(Ping(payload=payload))

    def close(self, code=1000):
        """Send a close."""
        return self.connection.send(CloseConnection(code=code))

    def messages(self, received):
        """Return the events in ``received``: payloads, and tuples for other events."""
        found = []
        if not received:
            return found
        self.connection.receive_data(received)
        for event in self.connection.events():
            match event:
                case BytesMessage():
                    assert event.message_finished
                    found.append(bytes(event.data))
                case Pong():
                    found.append(("pong", bytes(event.payload)))
                case CloseConnection():
                    found.append(("close", int(event.code)))
                case _:
                    raise AssertionError(event)
        return found
