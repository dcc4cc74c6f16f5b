"""Two sessions driven at random, compared with a model of what their users may observe."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from twisted.trial.unittest import SynchronousTestCase

from tests.wire.conformance import conformance
from tests.wire.harness import Pair, examples, limits, user_of
from yurttunnel.wire.bdp_estimate import MAX_UNACKNOWLEDGED
from yurttunnel.wire.codes import Code
from yurttunnel.wire.send_queue import MAX_CONTROL
from yurttunnel.wire.session import Side
from yurttunnel.wire.session_events import OpenRefused, SessionState
from yurttunnel.wire.stream import FULL_ABOVE, Stream, StreamState

BLOCK = bytes((i * 31 + i // 253) % 256 for i in range(1 << 18))
SIDES = st.sampled_from(Side)
PICK = st.integers(0, 1 << 16)


@dataclass
class Direction:
    """What one side has sent on one stream."""

    sent: int = 0
    finished: bool = False


@dataclass
class ModelStream:
    """A stream, with its ends as far as they exist, and what was sent in each direction."""

    number: int
    opener: Side
    ends: dict[Side, Stream] = field(default_factory=dict)
    sent: dict[Side, Direction] = field(
        default_factory=lambda: {side: Direction() for side in Side}
    )
    disturbed: bool = False


class TwoSessions(RuleBasedStateMachine):
    """Users open, answer, write, end, pause and reset; connections are lost and replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[int, ModelStream] = {}
        self.closed = False

    @initialize(
        agent=st.sampled_from([100, 5000, 65536]),
        server=st.sampled_from([100, 5000, 65536]),
        budget=st.sampled_from([8, 100]),
    )
    def connect_first(self, agent: int, server: int, budget: int) -> None:
        """Start with windows of some size, and a budget for some of them."""
        self.pair = Pair(
            limits(stream_window=agent, session_window=agent * budget, max_streams=5),
            limits(stream_window=server, session_window=server * budget, max_streams=5),
        )

    # -- users ---------------------------------------------------------------------------------

    def live(self, side: Side) -> list[ModelStream]:
        """List the streams that ``side`` may use."""
        self.note_requests()
        return [
            model
            for model in self.models.values()
            if side in model.ends
            and model.ends[side].state in (StreamState.OPEN, StreamState.OPENING)
        ]

    def note_requests(self) -> None:
        """Add requested streams to the model."""
        for side, end in self.pair.ends.items():
            for stream in end.log.requested:
                self.models[stream.number].ends.setdefault(side, stream)

    @rule(side=SIDES)
    def open(self, side: Side) -> None:
        """Open a stream, unless the session refuses."""
        try:
            stream = self.pair.ends[side].open()
        except OpenRefused:
            return
        assert stream.number not in self.models
        self.models[stream.number] = ModelStream(stream.number, side, {side: stream})

    @rule(side=SIDES, accept=st.booleans())
    def answer(self, side: Side, accept: bool) -> None:
        """Answer the pending streams."""
        self.note_requests()
        session = self.pair.ends[side].session
        for stream in self.pair.ends[side].log.requested:
            if stream.state is StreamState.ANSWERING:
                if accept:
                    session.accept(stream)
                    session.resume(stream, 0.0)
                else:
                    session.refuse(stream, Code.REFUSED, "no")
                    self.models[stream.number].disturbed = True

    @rule(side=SIDES, pick=PICK, size=st.integers(1, 20_000))
    def send(self, side: Side, pick: int, size: int) -> None:
        """Send the next bytes of the block."""
        for model in self.chosen(side, pick):
            direction = model.sent[side]
            if not direction.finished and not model.ends[side].full:
                piece = BLOCK[direction.sent : direction.sent + size]
                self.pair.ends[side].session.send(model.ends[side], piece)
                direction.sent += len(piece)

    @rule(side=SIDES, pick=PICK)
    def finish(self, side: Side, pick: int) -> None:
        """End a direction."""
        for model in self.chosen(side, pick):
            model.sent[side].finished = True
            self.pair.ends[side].session.finish(model.ends[side])

    @rule(side=SIDES, pick=PICK, paused=st.booleans())
    def pause(self, side: Side, pick: int, paused: bool) -> None:
        """Pause or resume reading."""
        for model in self.chosen(side, pick):
            session = self.pair.ends[side].session
            if paused:
                session.pause(model.ends[side])
            else:
                session.resume(model.ends[side], self.pair.ends[side].now)

    @rule(side=SIDES, pick=PICK)
    def reset(self, side: Side, pick: int) -> None:
        """Reset a stream."""
        for model in self.chosen(side, pick):
            model.disturbed = True
            self.pair.ends[side].session.reset(model.ends[side], Code.CANCELLED, "")

    def chosen(self, side: Side, pick: int) -> list[ModelStream]:
        """Choose a stream, if there is one."""
        live = self.live(side)
        return [live[pick % len(live)]] if live else []

    # -- sessions and connections --------------------------------------------------------------

    @rule(side=SIDES, count=st.integers(0, 30_000))
    def move(self, side: Side, count: int) -> None:
        """Transfer bytes."""
        if self.pair.attached:
            self.pair.move(side, count, 8192)

    @rule()
    def lose(self) -> None:
        """Lose the connection."""
        self.pair.lose()

    @rule()
    def connect(self) -> None:
        """Reconnect; data in flight on an old connection is lost."""
        if not self.closed:
            for wire in self.pair.wires.values():
                wire.clear()
            self.pair.connect()

    @rule(seconds=st.floats(0.001, 3.0))
    def wait(self, seconds: float) -> None:
        """Let time pass, less than any deadline."""
        for end in self.pair.ends.values():
            end.advance(min(seconds, max(0.0, 25.0 - end.now)))

    @rule(side=SIDES)
    def go_away(self, side: Side) -> None:
        """Take a step of GOAWAY; streams that arrive too late are refused."""
        self.pair.ends[side].session.go_away(Code.GOING_AWAY, "")
        self.note_requests()
        for model in self.models.values():
            if side not in model.ends:
                model.disturbed = True

    @precondition(lambda self: len(self.models) > 6)
    @rule(side=SIDES)
    def close(self, side: Side) -> None:
        """End the session."""
        self.closed = True
        self.pair.ends[side].session.close(Code.REPLACED, "")

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def memory_is_bounded(self) -> None:
        """The windows are within the budget, and buffered data within its limits."""
        for end in self.pair.ends.values():
            session = end.session
            streams = session.streams.values()
            assert session.memory.used == sum(stream.window.size for stream in streams)
            assert session.memory.used <= session.memory.limit
            assert session.unacknowledged <= MAX_UNACKNOWLEDGED + MAX_CONTROL + 10_000
            backlog = sum(len(piece) for stream in streams for piece in stream.backlog)
            assert session._receiver.window.received - session._receiver.window.consumed == backlog
            assert backlog <= session.memory.used
            assert all(stream.pending_size <= FULL_ABOVE + 20_000 for stream in streams)

    @invariant()
    def nothing_is_wrong(self) -> None:
        """Nothing is lost, duplicated or reordered, and no side reports a violation."""
        for model in self.models.values():
            for side, stream in model.ends.items():
                data = user_of(stream).data
                sent = model.sent[Side(3 - side)]
                assert BLOCK.startswith(bytes(data))
                assert len(data) <= sent.sent
                if "ended" in user_of(stream).calls:
                    assert sent.finished and len(data) == sent.sent
                if user_of(stream).end is Code.DONE:
                    assert "ended" in user_of(stream).calls
                    assert all(direction.finished for direction in model.sent.values())
        for end in self.pair.ends.values():
            assert end.log.close is None or (self.closed and end.closed is Code.REPLACED)

    def teardown(self) -> None:
        """Reconnect: then all sent data arrives, and nothing is left behind."""
        if not hasattr(self, "pair") or self.closed:
            return
        self.connect()
        # The smallest windows let only 50 bytes pass in each round.
        for _ in range(20_000):
            self.note_requests()
            for side in Side:
                self.answer(side, True)
                for model in self.live(side):
                    self.pair.ends[side].session.resume(model.ends[side], self.pair.ends[side].now)
                    model.sent[side].finished = True
                    self.pair.ends[side].session.finish(model.ends[side])
            if not self.pair.move(Side.AGENT, 1 << 20) + self.pair.move(Side.SERVER, 1 << 20):
                break
        for model in self.models.values():
            if model.disturbed or any(
                user_of(stream).end not in (None, Code.DONE) for stream in model.ends.values()
            ):
                continue
            for side, stream in model.ends.items():
                assert user_of(stream).end is Code.DONE
                assert len(user_of(stream).data) == model.sent[Side(3 - side)].sent
        for end in self.pair.ends.values():
            assert end.session.state is SessionState.ATTACHED
            assert not end.session.streams
            assert end.session.memory.used == 0
            assert not end.session._send_queue.queue.new
            assert not end.session._send_queue.queue.old


class TwoSessionsTests(SynchronousTestCase):
    """The state machine as a test."""

    @conformance("C-088", "C-105", "C-131")
    def test_machine(self) -> None:
        """Whatever users and connections do, streams transfer what was sent, and nothing leaks."""
        test = TwoSessions.TestCase("runTest")
        test.settings = settings(examples(120), stateful_step_count=60)
        test.runTest()
