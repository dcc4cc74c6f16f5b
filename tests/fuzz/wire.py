"""Fuzz targets of the tunnel's protocol: a session, and the first frame of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tests.fuzz.cases import PLAN, Target, cut
from tests.wire.harness import REQUEST, SESSION_ID, End, limits, user_of
from yurttunnel.wire import frames
from yurttunnel.wire.codes import Code, CodedError
from yurttunnel.wire.hello import HELLO_LIMIT, Hello, HelloReader, Limits
from yurttunnel.wire.send_queue import MAX_CONTROL, MAX_UNACKNOWLEDGED
from yurttunnel.wire.session import Side
from yurttunnel.wire.session_events import SessionState

F = frames

OWN_LIMITS = limits(stream_window=3000, session_window=9000, max_streams=3)
"""Limits low enough for the cases to reach them."""

STALLS, ANSWERS_LATE = 0x01, 0x02
"""Flags in a case's first byte: the streams are not read, and OPENs are accepted at the end."""


def _peer_streams(side: Side) -> list[int]:
    """Return the first numbers of the streams that the peer of ``side`` opens."""
    first = 3 - side
    return [first, first + 2, first + 4]


def _starts(side: Side) -> list[bytes]:
    """Return valid beginnings: streams of the peer are opened, and that of ``side`` is accepted."""
    opened = [F.open_frame(number, REQUEST) for number in _peer_streams(side)]
    answered = F.frame(F.OK, side)
    whole = b"".join(opened)
    return [b"", answered, opened[0], answered + opened[0], whole, *[whole + answered] * 4]


def _pieces(side: Side) -> list[bytes]:
    """Return frames of every kind, most of them for streams that can exist."""
    found = [
        F.offset_frame(F.PING, 0, 7),
        F.offset_frame(F.PONG, 0, 7),
        F.offset_frame(F.CREDIT, 0, 20_000),
        F.goaway_frame(F.MAX_STREAM, Code.GOING_AWAY, "soon"),
        F.coded_frame(F.CLOSE, 0, Code.DONE, "bye"),
        F.frame(0x3F, 0, b"optional"),
        F.frame(0x40, 2, b"optional"),
        F.frame(0xBF, 0, b"critical"),
        F.open_frame(_peer_streams(side)[-1] + 2, REQUEST),
        F.frame(F.DATA, 99, b"of no stream"),
    ]
    found += [F.offset_frame(F.ACK, 0, position) for position in (0, 9, 32, 64, 1 << 20)]
    for number in (side, *_peer_streams(side)):
        found += [
            F.open_frame(number, REQUEST),
            F.frame(F.OK, number),
            F.frame(F.FIN, number),
            F.coded_frame(F.FAIL, number, Code.REFUSED, "no"),
            F.coded_frame(F.RESET, number, Code.CANCELLED, "enough"),
            F.offset_frame(F.CREDIT, number, 5000),
        ]
        # The contents of a stream's data identify the stream.
        sizes = (1, 1, 7, 7, 40, 40, 300, 300, 700, 700, 2500)
        found += [F.frame(F.DATA, number, bytes([48 + number]) * size) for size in sizes]
    return found


def read_data(data: bytes) -> dict[int, bytes]:
    """Parse frames as docs/protocol.md specifies, without the parser. Return each stream's data."""
    found: dict[int, bytearray] = {}
    position = 0
    while position + 9 <= len(data):
        length = int.from_bytes(data[position : position + 4])
        kind, number = data[position + 4], int.from_bytes(data[position + 5 : position + 9])
        position += 9
        if kind == 0x83:
            found.setdefault(number, bytearray()).extend(data[position : position + length])
        position += length
    return {number: bytes(payload) for number, payload in found.items()}


def run(side: Side, flags: int, pieces: Iterable[bytes]) -> End:
    """Let a session with an open stream receive ``pieces``, and accept the streams of the peer."""
    end = End(side, local=OWN_LIMITS)
    session, log = end.session, end.log

    def answer() -> None:
        stream = log.requested[-1]
        session.accept(stream)
        if not flags & STALLS:
            session.resume(stream, end.now)

    if not flags & ANSWERS_LATE:
        log.on["requested"] = answer
    own = end.open()
    session.resume(own, end.now)
    session.send(own, b"x" * 5000)
    end.sent_bytes()
    log.users[own.number] = user_of(own)
    for piece in pieces:
        session.receive(piece, end.now)
    for stream in log.requested if flags & ANSWERS_LATE else ():
        session.accept(stream)
        session.resume(stream, end.now)
    return end


def check_session(side: Side, case: bytes) -> bool:
    """However bytes are split, each stream receives its own data, or the session ends coded."""
    if len(case) < PLAN:
        return False
    end, other = run(side, case[0], [case[PLAN:]]), run(side, case[0], cut(case))
    assert _without_texts(end.log.calls) == _without_texts(other.log.calls), (
        "the result depends on the splitting"
    )
    carried = read_data(case[PLAN:])
    for number, user in end.log.users.items():
        again = other.log.users[number]
        assert _without_texts(user.calls) == _without_texts(again.calls), (
            f"stream {number} depends on the splitting"
        )
        # The data before a frame that breaks the rules may be delivered or not.
        same = user.data == again.data or (end.closed and again.data.startswith(user.data))
        assert same, f"the data of stream {number} depend on the splitting"
        payload = carried.get(number, b"")
        assert payload.startswith(again.data), f"stream {number} received bytes of another"
        if end.closed is None and user.end is None and not case[0] & STALLS:
            assert user.data == payload, f"stream {number} did not receive all of its bytes"
    _check_bounds(end)
    _check_bounds(other)
    return end.closed is None


def _without_texts(calls: Iterable[object]) -> list[object]:
    """Return the events without their texts: only the codes do not depend on the splitting."""
    return [
        tuple(part for part in call if not isinstance(part, str) or part == call[0])
        if isinstance(call, tuple)
        else call
        for call in calls
    ]


def _check_bounds(end: End) -> None:
    """Check the session's memory against its budget, and what it sends against the protocol."""
    session = end.session
    used = sum(stream.window.size for stream in session.streams.values())
    assert session.memory.used == used <= session.memory.limit, "windows beyond the budget"
    held = sum(len(piece) for stream in session.streams.values() for piece in stream.backlog)
    assert held <= used, "more is buffered than the windows allow"
    assert session.unacknowledged <= MAX_UNACKNOWLEDGED + MAX_CONTROL + 10_000, (
        "too much is buffered"
    )
    assert len(session.streams) <= 2 * OWN_LIMITS.max_streams, "too many streams"
    if end.closed is not None:
        assert isinstance(end.closed, Code), "the session has ended without a code"
        assert (used, len(session.streams)) == (0, 0), "a closed session has streams or windows"
        assert session.state is SessionState.CLOSED
    end.sent()
    end.advance(40.0)


def check_hello(case: bytes) -> bool:
    """However it is split, a first frame is a HELLO that can be encoded again, or is rejected."""
    whole, pieces = _hello([case[PLAN:]]), _hello(cut(case))
    assert whole == pieces, "the result depends on the splitting"
    if not isinstance(whole, Hello):
        return False
    again = _hello([whole.encode()])
    assert again == whole, "a HELLO changes when it is encoded again"
    return True


def _hello(pieces: Iterable[bytes]) -> Hello | tuple[Code, str] | None:
    reader = HelloReader()
    size = 0
    for piece in pieces:
        try:
            hello, _ = reader.feed(piece)
        except CodedError as error:
            return error.code, error.text
        if hello is not None:
            return hello
        size += len(piece)
        assert size < HELLO_LIMIT + F.HEADER_SIZE, "a HELLO without an end is buffered"
    return None


HELLOS = [
    Hello(Limits(), SESSION_ID, b"p" * 16).encode(),
    Hello(limits(max_frame=4096), bytes(16), b"p" * 16, properties={"a": "b"}).encode(),
]

SESSIONS = [
    Target(f"wire-{side.name.lower()}", partial(check_session, side), _starts(side), _pieces(side))
    for side in Side
]
HELLO = Target(
    "hello",
    check_hello,
    [*HELLOS, *[hello[:cut] for hello in HELLOS for cut in (9, 30, 60)]],
    [b"\x00\x01", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"edge-1", F.frame(F.OK, 1)],
)
