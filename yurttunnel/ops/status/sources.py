"""Where the status page gets what it shows from."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from yurttunnel.ops.readiness import Readiness
from yurttunnel.ops.status.sections import MakeSection
from yurttunnel.ops.status.streams import StreamReport
from yurttunnel.ops.status.words import PeerWords
from yurttunnel.tunnel.session import TunnelSession
from yurttunnel.tunnel.statistics import SessionSnapshot, TunnelCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """The functions are called each time that the page is shown.

    ``program`` is the name of the command. ``snapshots`` describes what ``sessions`` gives.
    ``certificates`` says when each certificate in use ends. ``reactor_lag`` is the worst of the
    last minute, in seconds. ``sections`` are those of features. ``other_sessions`` and
    ``other_streams`` are those of other processes, which ``snapshots`` describes, too.
    """

    program: str
    words: PeerWords
    readiness: Readiness
    counters: TunnelCounters
    sessions: Callable[[], Iterable[TunnelSession]]
    snapshots: Callable[[], Iterable[SessionSnapshot]]
    certificates: Callable[[], Mapping[str, datetime.datetime]]
    reactor_lag: Callable[[], float]
    sections: Sequence[MakeSection] = ()
    other_sessions: Callable[[], Iterable[SessionSnapshot]] = tuple
    other_streams: Callable[[], Iterable[StreamReport]] = tuple
