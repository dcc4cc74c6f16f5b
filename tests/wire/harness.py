"""Test harness: a session that gets handmade bytes, and two sessions connected to each other."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from hypothesis import settings

from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.credit import MemoryBudget
from yurttunnel.wire.frames import OpenRequest
from yurttunnel.wire.hello import Hello, Limits
from yurttunnel.wire.session import Session, Side
from yurttunnel.wire.session_events import SessionState
from yurttunnel.wire.stream import Stream

# The same examples in each run, unless YURTTUNNEL_HYPOTHESIS=explore asks for new ones.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("YURTTUNNEL_HYPOTHESIS", "suite"))


def examples(count: int) -> settings:
    """Run ``count`` examples, multiplied by the factor of the profile in use."""
    return settings(max_examples=count * settings.default.max_examples // 100)


LIMITS = Limits()
AGENT_PROCESS = b"agent process id"
SERVER_PROCESS = b"server processid"
SESSION_ID = b"the session's id"
REQUEST = OpenRequest("10.0.0.1", 10250, 30_000, "request-1")

Frame = tuple[int, int, bytes]


def frames_in(data: bytes) -> list[Frame]:
    """Split complete frames into type, stream and payload."""
    found = []
    position = 0
    while position < len(data):
        length, kind, stream = frames.HEADER.unpack_from(data, position)
        position += frames.HEADER_SIZE + length
        assert position <= len(data), "the bytes end within a frame"
        found.append((kind, stream, data[position - length : position]))
    return found


class StreamLog:
    """The user of a stream; records its events and data."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.data = bytearray()
        self.on: dict[str, Callable[[], object]] = {}

    def deliver(self, piece: bytes) -> None:
        """Record data."""
        self.data += piece
        self._react("deliver")

    def stream_opened(self) -> None:
        """Record OK."""
        self.calls.append("opened")
        self._react("opened")

    def stream_ended(self) -> None:
        """Record FIN."""
        self.calls.append("ended")
        self._react("ended")

    def stream_writable(self) -> None:
        """Record that the stream is writable."""
        self.calls.append("writable")
        self._react("writable")

    def stream_closed(self, code: Code, text: str) -> None:
        """Record the end."""
        self.calls.append((code, text))
        self._react("closed")

    @property
    def end(self) -> Code | None:
        """The code with which the stream ended."""
        codes = [call[0] for call in self.calls if isinstance(call, tuple)]
        assert len(codes) <= 1, "the end of a stream was reported twice"
        return codes[0] if codes else None

    def _react(self, event: str) -> None:
        if event in self.on:
            self.on[event]()


class SessionLog:
    """The owner of a session; records its events, and creates a user for each stream."""

    def __init__(self) -> None:
        self.requested: list[Stream] = []
        self.users: dict[int, StreamLog] = {}
        self.calls: list[Any] = []
        self.timer = float("inf")
        self.on: dict[str, Callable[[], object]] = {}

    def stream_requested(self, stream: Stream) -> None:
        """Record OPEN."""
        user = self.users[stream.number] = StreamLog()
        stream.events = user
        stream.deliver = user.deliver
        self.requested.append(stream)
        self._react("requested")

    def connection_silent(self) -> None:
        """Record silence."""
        self.calls.append("silent")
        self._react("silent")

    def timer_moved(self, when: float) -> None:
        """Record the time of the next tick."""
        self.timer = when

    def goaway_received(self, code: Code, text: str) -> None:
        """Record GOAWAY."""
        self.calls.append(("going away", code, text))
        self._react("going away")

    def servers_received(self, servers: int) -> None:
        """Record SERVERS."""
        self.calls.append(("servers", servers))

    def no_stream_left(self) -> None:
        """Record that no stream is left."""
        self.calls.append("drained")

    def deliver_failed(self, stream: Stream, error: Exception) -> None:
        """Record a defect."""
        self.calls.append(("failed", stream.number, str(error)))

    def session_closed(self, code: Code, text: str, by_peer: bool) -> None:
        """Record the end."""
        self.calls.append(("closed", code, text, by_peer))
        self._react("closed")

    @property
    def close(self) -> tuple[Code, bool] | None:
        """The code with which the session ended, and whether the peer ended it."""
        ends = [call for call in self.calls if isinstance(call, tuple) and call[0] == "closed"]
        assert len(ends) <= 1, "the end of the session was reported twice"
        return (ends[0][1], ends[0][3]) if ends else None

    def _react(self, event: str) -> None:
        if event in self.on:
            self.on[event]()


class End:
    """One end of a session, at a time that the test controls."""

    def __init__(
        self,
        side: Side = Side.SERVER,
        local: Limits = LIMITS,
        peer: Limits = LIMITS,
        parent_budget: MemoryBudget | None = None,
        attached: bool = True,
    ) -> None:
        agent, server = (local, peer) if side is Side.AGENT else (peer, local)
        hellos = {
            Side.AGENT: Hello(agent, bytes(16), AGENT_PROCESS),
            Side.SERVER: Hello(server, SESSION_ID, SERVER_PROCESS),
        }
        self.now = 0.0
        self.log = SessionLog()
        other = Side.SERVER if side is Side.AGENT else Side.AGENT
        self.session = Session(side, hellos[side], hellos[other], self.log, self.now, parent_budget)
        if attached:
            self.session.attach(0, self.now)

    def feed(self, *pieces: bytes) -> None:
        """Receive ``pieces`` one after the other."""
        for piece in pieces:
            self.session.receive(piece, self.now)

    def sent(self, limit: int = 1 << 30) -> list[Frame]:
        """Return all frames to be sent."""
        return frames_in(self.sent_bytes(limit))

    def sent_bytes(self, limit: int = 1 << 30) -> bytes:
        """Return all bytes to be sent."""
        collected = []
        while piece := data_to_send(self.session, limit):
            collected.append(piece)
        return b"".join(collected)

    def open(self, request: OpenRequest = REQUEST, answered: bool = False) -> Stream:
        """Open a stream, whose user is its ``events``; with ``answered`` the peer sends OK."""
        user = StreamLog()
        stream = self.session.open(request, user, self.now)
        stream.deliver = user.deliver
        if answered:
            self.sent()
            self.feed(frames.frame(frames.OK, stream.number))
        return stream

    def opened_by_peer(self, number: int | None = None, accepted: bool = True) -> Stream:
        """Let the peer open a stream; accept it and resume its data."""
        if number is None:
            own = self.session.side
            number = self.log.requested[-1].number + 2 if self.log.requested else 3 - own
        self.feed(frames.open_frame(number, REQUEST))
        stream = self.log.requested[-1]
        if accepted:
            self.session.accept(stream)
            self.session.resume(stream, self.now)
        return stream

    def advance(self, seconds: float) -> None:
        """Let time pass, with a tick at each time that the session requests."""
        until = self.now + seconds
        while self.session.timer <= until:
            self.now = max(self.now, self.session.timer)
            self.session.tick(self.now)
        self.now = until

    @property
    def closed(self) -> Code | None:
        """The code with which the session ended."""
        return self.log.close[0] if self.log.close else None


def data_to_send(session: Session, limit: int) -> bytes:
    """Return the next bytes; check that ``may_send`` is true if there are any."""
    promised = session.may_send
    data = session.data_to_send(limit)
    assert promised or not data, "may_send is false, and there is something to send"
    return data


def user_of(stream: Stream) -> StreamLog:
    """Return the user of ``stream``."""
    assert isinstance(stream.events, StreamLog)
    return stream.events


class Pair:
    """An agent and a server with a connection between them that can be lost.

    ``wires[side]`` are the bytes that the end ``side`` has sent and the other has not received.
    """

    def __init__(self, agent: Limits = LIMITS, server: Limits = LIMITS) -> None:
        self.ends = {
            Side.AGENT: End(Side.AGENT, agent, server, attached=False),
            Side.SERVER: End(Side.SERVER, server, agent, attached=False),
        }
        self.agent = self.ends[Side.AGENT]
        self.server = self.ends[Side.SERVER]
        self.wires = {side: bytearray() for side in Side}
        self.connect()

    def connect(self) -> None:
        """Exchange the received counts of the HELLOs over a new connection."""
        received = {side: end.session.received for side, end in self.ends.items()}
        self.agent.session.attach(received[Side.SERVER], self.agent.now)
        self.server.session.attach(received[Side.AGENT], self.server.now)

    def lose(self, keep: float = 30.0) -> None:
        """Lose the connection and the data in flight."""
        for side, end in self.ends.items():
            end.session.detach(end.now, keep)
            self.wires[side].clear()

    def move(self, side: Side, count: int, limit: int = 1 << 16) -> int:
        """Transfer up to ``count`` bytes from the end ``side`` to the other; return how many."""
        wire = self.wires[side]
        sender, receiver = self.ends[side], self.ends[Side(3 - side)]
        while len(wire) < count and (piece := data_to_send(sender.session, limit)):
            wire += piece
        piece = bytes(wire[:count])
        del wire[:count]
        if piece:
            receiver.feed(piece)
        return len(piece)

    def settle(self) -> None:
        """Transfer bytes until none are left."""
        while self.move(Side.AGENT, 1 << 20) + self.move(Side.SERVER, 1 << 20):
            pass

    def open(self, side: Side = Side.SERVER) -> tuple[Stream, Stream]:
        """Open a stream from ``side``, accept it, and resume both ends; return both."""
        stream = self.ends[side].open()
        self.settle()
        other = self.ends[Side(3 - side)]
        accepted = other.log.requested[-1]
        other.session.accept(accepted)
        other.session.resume(accepted, other.now)
        self.ends[side].session.resume(stream, self.ends[side].now)
        self.settle()
        return stream, accepted

    @property
    def attached(self) -> bool:
        """Whether both ends have a connection."""
        return all(end.session.state is SessionState.ATTACHED for end in self.ends.values())


def limits(**changes: int) -> Limits:
    """Return the default limits with ``changes``."""
    return dataclasses.replace(LIMITS, **changes)
