"""``/debug/sessions``: buffered bytes and flow-control credit of each session and stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.debug.pages import JSON, Page, Parameters
from yurttunnel.ops.http_site import PageResponse

if TYPE_CHECKING:
    # Programs without sessions have this page, too, and do not load these modules.
    from yurttunnel.tunnel.session import TunnelSession
    from yurttunnel.wire.stream import Stream

MAX_SESSIONS = 100
"""The maximum number of sessions in a response."""

MAX_STREAMS = 1000
"""The maximum number of streams in a response, of all sessions together."""

_MAX_TEXT = 256
"""The maximum length of what a peer may choose, such as request IDs, in characters."""

_TOKENS_PER_PIECE = 100
"""The number of JSON tokens in a piece."""


def sessions_page(clock: IReactorTime, sessions: Callable[[], Iterable[TunnelSession]]) -> Page:
    """Return the page; ``?node=NAME`` limits it to the sessions with one peer."""

    def get(parameters: Parameters) -> PageResponse:
        node = parameters.get("node")
        desired = [each for each in sessions() if node is None or each.peer_name == node]
        desired.sort(key=lambda session: (session.peer_name, session.since))
        return PageResponse(JSON, _pieces(_describe_all(desired, clock.seconds())))

    return Page(get, parameters=("node",))


def _pieces(value: object) -> Iterator[str]:
    """Encode indented JSON in pieces: a thousand streams take tens of milliseconds."""
    tokens = json.JSONEncoder(indent=1).iterencode(value)
    while piece := "".join(islice(tokens, _TOKENS_PER_PIECE)):
        yield piece
    yield "\n"


def _describe_all(sessions: list[TunnelSession], now: float) -> dict[str, object]:
    shown, room = [], MAX_STREAMS
    for session in sessions[:MAX_SESSIONS]:
        streams = [_stream(each, now) for each in islice(session.wire.streams.values(), room)]
        room -= len(streams)
        shown.append(_session(session, streams))
    return {
        "sessions": shown,
        "sessions_left_out": len(sessions) - len(shown),
        "hint": "?node=NAME shows only the sessions of one peer",
    }


def _session(session: TunnelSession, streams: list[dict[str, object]]) -> dict[str, object]:
    """Describe a session: sizes in bytes, durations in seconds; see :meth:`Session.stats`."""
    total = len(session.wire.streams)
    return {
        "peer": session.peer_name,
        "address": session.description.address,
        "session": session.session_id.hex(),
        "since": session.since.isoformat(timespec="seconds"),
        "connected": session.connected,
        "connection_busy": session.busy,
        "resumptions": session.resumptions,
        "rtt_seconds": session.wire.round_trip,
        **session.wire.stats(),
        "streams_total": total,
        "streams_left_out": total - len(streams),
        "streams": streams,
    }


def _stream(stream: Stream, now: float) -> dict[str, object]:
    request, window = stream.request, stream.window
    return {
        "id": stream.number,
        "opened": "here" if stream.opened_here else "by the peer",
        "destination": join_authority(request.host, request.port)[:_MAX_TEXT],
        "request_id": request.request_id[:_MAX_TEXT],
        "state": stream.state.value,
        "age_seconds": round(now - stream.since, 3),
        "receiving": {
            "ended": stream.receive_ended,
            "paused": stream.paused,
            "bytes": window.received,
            "waiting": sum(map(len, stream.backlog)),
            "window": window.size,
            "credit_given": window.limit - window.received,
        },
        "sending": {
            "ended": stream.send_ended,
            "ending": stream.will_end,
            "full": stream.full,
            "bytes": stream.sent,
            "waiting": stream.pending_size,
            "credit_left": stream.send_limit - stream.sent,
        },
    }
