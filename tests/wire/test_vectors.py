"""The golden vectors: bytes made without this package, to decode and to encode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import End, StreamLog
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code
from yurttunnel.wire.frames import OpenRequest, Violation
from yurttunnel.wire.hello import Hello, HelloReader, Limits
from yurttunnel.wire.parser import FrameParser
from yurttunnel.wire.session import Session, Side
from yurttunnel.wire.stream import Stream

VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "protocol-vectors.json").read_text())
Vector = dict[str, Any]


def request_of(vector: Vector) -> OpenRequest:
    """Build the request of an OPEN."""
    return OpenRequest(*[vector[key] for key in ("host", "port", "timeout", "request_id")])


def encode(vector: Vector) -> bytes:
    """Encode the frame that a vector describes."""
    name, stream = vector["type"], vector["stream"]
    kind = getattr(frames, name)
    if name == "OPEN":
        return frames.open_frame(stream, request_of(vector))
    if name == "GOAWAY":
        code = Code[vector["code"]]
        return frames.goaway_frame(vector["last_stream"], code, vector["text"])
    if "code" in vector:
        return frames.coded_frame(kind, stream, Code[vector["code"]], vector["text"])
    if "offset" in vector:
        return frames.offset_frame(kind, stream, vector["offset"])
    return frames.frame(kind, stream, bytes.fromhex(vector.get("data", "")))


def decode(name: str, payload: bytes) -> Vector:
    """Return the fields of a payload in the format of a vector."""
    if name == "OPEN":
        request = frames.decode_open(payload)
        keys = ("host", "port", "timeout", "request_id")
        return {key: getattr(request, key) for key in keys}
    if name == "GOAWAY":
        last, code, text = frames.decode_goaway(payload)
        return {"last_stream": last, "code": code.name, "text": text}
    if name in ("FAIL", "RESET", "CLOSE"):
        code, text = frames.decode_coded(payload)
        return {"code": code.name, "text": text}
    if name in ("CREDIT", "ACK", "PING", "PONG"):
        return {"offset": frames.decode_offset(payload)}
    return {"data": payload.hex()} if payload else {}


class FrameVectorTests(SynchronousTestCase):
    """Single frames."""

    @conformance("C-022")
    def test_decode(self) -> None:
        """The bytes of each vector are decoded to its fields."""
        for vector in VECTORS["frames"]:
            found: list[tuple[int, int, bytes]] = []
            parser = FrameParser(
                1 << 20,
                lambda stream, piece, found=found: found.append((frames.DATA, stream, piece)),
                lambda *frame, found=found: found.append(frame),
            )
            parser.feed(bytes.fromhex(vector["hex"]))
            ((kind, stream, payload),) = found
            self.assertEqual(getattr(frames, vector["type"]), kind)
            self.assertEqual(vector["stream"], stream)
            fields = decode(vector["type"], payload)
            self.assertEqual({**vector, **fields}, vector)

    @conformance("C-022")
    def test_encode(self) -> None:
        """The fields of each vector are encoded to its bytes."""
        for vector in VECTORS["frames"]:
            if not vector.get("decode_only"):
                self.assertEqual(vector["hex"], encode(vector).hex(), vector["name"])

    def test_every_type(self) -> None:
        """Every type of frame has a vector."""
        known = {"OPEN", "OK", "FAIL", "DATA", "FIN", "RESET", "CREDIT", "GOAWAY"}
        known |= {"ACK", "PING", "PONG", "CLOSE"}
        self.assertEqual(known, {vector["type"] for vector in VECTORS["frames"]})


def hello_of(vector: Vector) -> Hello:
    """Build the HELLO that a vector describes."""
    return Hello(
        limits=Limits(**vector["limits"]),
        session=bytes.fromhex(vector["session"]),
        process=bytes.fromhex(vector["process"]),
        received=vector["received"],
        versions=(vector["versions"][0], vector["versions"][1]),
        capabilities=vector["capabilities"],
        properties=vector["properties"],
    )


def read_hello(text: str) -> Hello:
    """Decode a HELLO in hexadecimal digits."""
    hello, rest = HelloReader().feed(bytes.fromhex(text))
    assert hello is not None and not rest
    return hello


class HelloVectorTests(SynchronousTestCase):
    """Single HELLOs."""

    @conformance("C-001", "C-007", "C-011", "C-012", "C-013")
    def test_both_ways(self) -> None:
        """Each vector's bytes are decoded to its HELLO, and its HELLO encoded to the bytes."""
        for vector in VECTORS["hellos"]:
            self.assertEqual(hello_of(vector), read_hello(vector["hex"]), vector["name"])
            self.assertEqual(vector["hex"], hello_of(vector).encode().hex(), vector["name"])


class Dialogue:
    """Two sessions that run a dialogue step by step."""

    def __init__(self, test: SynchronousTestCase, vector: Vector) -> None:
        self.test = test
        self.name = vector["name"]
        agent, server = (read_hello(vector["hellos"][side]) for side in ("agent", "server"))
        self.ends = {
            "agent": End(Side.AGENT, agent.limits, server.limits),
            "server": End(Side.SERVER, server.limits, agent.limits),
        }
        self.streams: dict[tuple[str, int], Stream] = {}
        self.process = {"agent": agent.process, "server": server.process}
        self.session_id = server.session

    def play(self, step: Vector) -> None:
        """Run one step."""
        if "call" in step:
            self.call(**step)
        elif "from" in step:
            self.send(step)
        elif "told" in step:
            self.check_events(step)
        else:
            self.reconnect(step["reconnect"])

    def stream(self, at: str, number: int) -> Stream:
        """Return a stream, as seen by one end."""
        for stream in self.ends[at].log.requested:
            self.streams[at, stream.number] = stream
        return self.streams[at, number]

    def call(self, at: str, call: str, **details: Any) -> None:
        """Call a method of an end's session."""
        end = self.ends[at]
        session: Session = end.session
        if call == "open":
            stream = end.open(request_of(details))
            self.streams[at, stream.number] = stream
            return
        arguments: list[Any] = []
        if "stream" in details:
            arguments.append(self.stream(at, details["stream"]))
        if call == "resume":
            arguments.append(0.0)
        if "data" in details:
            arguments.append(bytes.fromhex(details["data"]))
        if "code" in details:
            arguments += (Code[details["code"]], details["text"])
        method: Callable[..., object] = getattr(session, call)
        method(*arguments)

    def send(self, step: Vector) -> None:
        """Compare what an end sends, and pass it to the other."""
        sender = step["from"]
        data = self.ends[sender].sent_bytes()
        self.test.assertEqual(step["hex"], data.hex(), (self.name, step))
        receiver = self.ends["agent" if sender == "server" else "server"]
        if "lost_after" not in step:
            receiver.feed(data)
            return
        receiver.feed(data[: step["lost_after"]])
        for end in self.ends.values():
            end.session.detach(0.0, 30.0)

    def check_events(self, step: Vector) -> None:
        """Compare the events of a stream's user so far."""
        user = self.stream(step["at"], step["stream"]).events
        assert isinstance(user, StreamLog)
        calls = [call if isinstance(call, str) else call[0].name for call in user.calls]
        self.test.assertEqual(step["told"], calls, (self.name, step))
        if "data" in step:
            self.test.assertEqual(step["data"], user.data.hex(), (self.name, step))

    def reconnect(self, hellos: dict[str, str]) -> None:
        """Compare the HELLOs of a new connection, and resume over it."""
        for side, other in (("agent", "server"), ("server", "agent")):
            session = self.ends[side].session
            hello = Hello(
                session.local.limits, self.session_id, self.process[side], session.received
            )
            self.test.assertEqual(hellos[side], hello.encode().hex(), (self.name, side))
            self.ends[other].session.attach(read_hello(hellos[side]).received, 0.0)


class DialogueVectorTests(SynchronousTestCase):
    """Whole dialogues, byte by byte."""

    @conformance("C-053", "C-066", "C-067", "C-084", "C-101", "C-102", "C-103", "C-118", "C-119")
    def test_dialogues(self) -> None:
        """Both ends send exactly the bytes of each dialogue, and report the same events."""
        for vector in VECTORS["dialogues"]:
            dialogue = Dialogue(self, vector)
            for step in vector["steps"]:
                dialogue.play(step)


class RefusedVectorTests(SynchronousTestCase):
    """Bytes that must be rejected."""

    @conformance("C-126")
    def test_refused(self) -> None:
        """Each vector is rejected with its code, in one piece and byte by byte."""
        for vector in VECTORS["refused"]:
            data = bytes.fromhex(vector["hex"])
            for size in (len(data), 1):
                pieces = [data[start : start + size] for start in range(0, len(data), size)]
                found = self.code_of(vector["where"], pieces)
                self.assertEqual(Code[vector["code"]], found, vector["name"])

    def code_of(self, where: str, pieces: list[bytes]) -> Code | None:
        """Return the code with which ``pieces`` are rejected."""
        if where == "session":
            end = End()
            end.feed(*pieces)
            return end.closed
        reader = HelloReader()
        try:
            for piece in pieces:
                reader.feed(piece)
        except Violation as violation:
            return violation.code
        return None
