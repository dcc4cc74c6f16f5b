"""The tables of docs/limits.md."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.agent.connection_group import URGENT_DELAY
from yurttunnel.agent.dialer import DialLimits
from yurttunnel.agent.resolver import MAX_LOOKUPS
from yurttunnel.http import head
from yurttunnel.http.accept import MAX_ACCEPT
from yurttunnel.http.body import BodyLimits
from yurttunnel.http.client import MAX_INTERIM_BYTES, MAX_INTERIM_RESPONSES
from yurttunnel.http.fields import SENT_IN_TRAILERS
from yurttunnel.http.head import HeadLimits
from yurttunnel.http.pool import PoolSettings
from yurttunnel.http.relay import (
    BODY_START,
    BODY_START_TIMEOUT,
    UPLOAD_TIMEOUT,
    RelaySettings,
)
from yurttunnel.http.server_connection import MAX_DROPPED
from yurttunnel.kube.events import MAX_MESSAGE, MAX_WAITING
from yurttunnel.kube.exec_credentials import PLUGIN_SECONDS
from yurttunnel.kube.responses import MAX_BODY
from yurttunnel.kube.responses import MAX_LINE as MAX_WATCH_LINE
from yurttunnel.kube.work_queue import MAX_KEYS
from yurttunnel.ops import plain_files
from yurttunnel.pki.approval_requests import MAX_REQUEST
from yurttunnel.pki.cluster_issuer import MAX_WAIT
from yurttunnel.pki.enrolment_server import CLOSE_DEADLINE, MAX_CONNECTIONS, REQUEST_DEADLINE
from yurttunnel.pki.identity import MAX_IDENTIFIERS
from yurttunnel.pki.interception import MAX_CERTIFICATES
from yurttunnel.server.agents import MAX_SESSIONS_OF_NODE
from yurttunnel.server.frontends.calls import DIAL_TIMEOUT, MAX_PENDING_DIALS
from yurttunnel.server.frontends.connect import (
    HEAD_TIMEOUT,
    LINGER,
    MAX_HANDSHAKES,
    MAX_UNREAD_HEADS,
    STALL_TIMEOUT,
)
from yurttunnel.server.frontends.kubelet.kubelets import HANDSHAKE_TIMEOUT
from yurttunnel.server.frontends.kubelet.listeners import SETTINGS
from yurttunnel.server.frontends.kubelet.metrics import METRICS
from yurttunnel.server.frontends.kubelet.reviews import (
    MAX_REVIEWS,
    MAX_WAITING_REVIEWS,
    REVIEW_TIMEOUT,
)
from yurttunnel.server.frontends.kubelet.single_flight_cache import MAX_ENTRIES
from yurttunnel.server.node_session import RECONNECT_GRACE, RECONNECT_TIMEOUT
from yurttunnel.server.options import Options
from yurttunnel.server.process import MEMORY_BUDGET
from yurttunnel.server.siblings.acceptor import MAX_SESSIONS
from yurttunnel.server.siblings.feed import MAX_LINE, MAX_NODES
from yurttunnel.server.siblings.service import LISTING_TIMEOUT, MAX_SIBLINGS
from yurttunnel.server.siblings.session import STALE_NODES_TTL
from yurttunnel.tunnel.cancelled_dials import CANCELLED_DIAL_HOLD
from yurttunnel.tunnel.connection import HELLO_TIMEOUT, MAX_UNFINISHED
from yurttunnel.tunnel.direct.tls import MAX_REPLY_BYTES
from yurttunnel.tunnel.session import MIN_STREAM_NUMBERS
from yurttunnel.tunnel.shares import CALLER, ENTRY, KUBELET_CALLER
from yurttunnel.wire.credit import RESERVE
from yurttunnel.wire.frames import MAX_STREAM
from yurttunnel.wire.hello import Limits

DOCUMENT = Path(__file__).parents[4] / "docs" / "limits.md"
KIB = 1024
BODY = BodyLimits()
POOL = PoolSettings()
ANSWER = HeadLimits()

VALUES = {
    "connections of callers": [SETTINGS.max_connections],
    "time for a credential plugin": [PLUGIN_SECONDS],
    "requests to kubelets under way": [SETTINGS.max_connections, SETTINGS.max_connections / 2],
    "connections besides": [SETTINGS.max_lingering],
    "TLS handshakes at once": [SETTINGS.max_handshakes],
    "time for the TLS handshake and": [SETTINGS.head_timeout],
    "time for each later head": [SETTINGS.head_timeout],
    "head of a request": [SETTINGS.limits.max_bytes / KIB, SETTINGS.limits.max_fields],
    f"heads of more than {head.LONG_HEAD // KIB} KiB": [
        SETTINGS.max_long_heads / KIB / KIB,
        SETTINGS.max_long_heads / KIB / KIB / 2,
    ],
    "`Accept`": [MAX_ACCEPT / KIB],
    "what a connection remembers": [head._MAX_CACHED_BYTES / KIB, head._MAX_CACHED_FIELDS],
    "time for 10,000 bytes": [
        SETTINGS.body_timeout,
        SETTINGS.min_body_bytes / SETTINGS.body_timeout,
    ],
    "beginning of a request's body": [BODY_START / KIB, BODY_START_TIMEOUT],
    "around the data": [
        BODY.max_line_bytes,
        BODY.max_overhead / KIB,
        BODY.max_trailer_bytes / KIB,
        BODY.max_trailers,
    ],
    "what is read of a body": [MAX_DROPPED / KIB],
    "requests at once": [1],
    "time between two": [SETTINGS.idle_timeout],
    "time for the answer after": [SETTINGS.half_closed_timeout],
    "the same, also over TLS": [SETTINGS.half_closed_timeout, SETTINGS.half_closed_timeout],
    "time for a caller to close": [SETTINGS.linger, SETTINGS.idle_timeout],
    "connections to one kubelet that are idle": [POOL.max_per_key, POOL.max_per_key / 2],
    "connections to one kubelet that are in use, or being made, for upgrades": [
        POOL.max_upgrades_per_key,
        POOL.max_upgrades_per_key / 2,
    ],
    "connections to one kubelet that are in use, or being made, for uploads": [
        POOL.max_uploads_per_key,
        POOL.max_uploads_per_key / 2,
    ],
    "all connections": [POOL.max_connections_per_key, POOL.max_connections_per_key / 2],
    "requests that wait": [*[POOL.max_waiting] * 3, POOL.max_waiting / 2],
    "time that a request waits": [POOL.waiting_timeout],
    "time for the agent": [DIAL_TIMEOUT],
    "wait for an agent": [RECONNECT_TIMEOUT],
    "return of an agent": [],
    "wait for the successor": [RECONNECT_GRACE * 1000],
    "time to come back": [RECONNECT_TIMEOUT],
    "time for the TLS handshake with": [HANDSHAKE_TIMEOUT],
    "time to the head": [float(Options()["response-timeout"])],
    "time in which a kubelet": [float(Options()["response-timeout"]), 0, UPLOAD_TIMEOUT],
    "interim answers": [MAX_INTERIM_RESPONSES, MAX_INTERIM_BYTES / KIB],
    "head of an answer": [ANSWER.max_bytes / KIB, ANSWER.max_fields],
    "time for which an idle": [POOL.idle_timeout],
    "time for one side": [RelaySettings().linger],
    "certificates kept": [MAX_CERTIFICATES],
    "time to end all": [float(Options()["drain-timeout"])],
    "descriptors of the process": [],
    "the same at an agent": [],
    "connections to the agents' port before": [MAX_UNFINISHED, HELLO_TIMEOUT],
    "what TLS answers": [MAX_REPLY_BYTES / KIB],
    "connections for enrolment": [MAX_CONNECTIONS, REQUEST_DEADLINE, CLOSE_DEADLINE],
    "streams to a node": [Limits().max_streams, Limits().stream_window / KIB],
    "streams that a session": [(MAX_STREAM + 1) / 2, MIN_STREAM_NUMBERS],
    "streams in a process": [
        Limits().stream_window / KIB,
        MEMORY_BUDGET / Limits().stream_window,
    ],
    "time for which a dial": [CANCELLED_DIAL_HOLD],
    "part of both": [1, RESERVE],
    "what an entry": [ENTRY, 584, Limits().max_streams],
    "what a caller": [CALLER, 572, Limits().max_streams, KUBELET_CALLER],
    "answer of the API": [MAX_BODY / KIB / KIB],
    "line of a watch": [MAX_WATCH_LINE / KIB / KIB],
    "reviews of callers at once": [MAX_REVIEWS, REVIEW_TIMEOUT],
    "reviews of callers that wait": [MAX_WAITING_REVIEWS],
    "answers of reviews": [MAX_ENTRIES],
    "certificate requests": [MAX_KEYS],
    "certificate request that": [MAX_REQUEST / KIB],
    "identifiers of a node": [MAX_IDENTIFIERS],
    "events that wait": [MAX_WAITING, MAX_MESSAGE],
    "time for a certificate": [MAX_WAIT / 60],
    "file of authorities": [plain_files.MAX_BYTES / KIB / KIB],
    "time from its start": [LISTING_TIMEOUT],
    "time in which agents look": [URGENT_DELAY],
    "other servers": [MAX_SIBLINGS],
    "sessions of one node": [MAX_SESSIONS_OF_NODE],
    "sessions of other": [MAX_SESSIONS],
    "nodes of another": [MAX_NODES],
    "time for which nodes of a server": [STALE_NODES_TTL],
    "description of a node": [MAX_LINE / KIB],
}
"""The expected second column of each row of the tables, by the beginning of the row."""

DIALS = DialLimits()

CONNECT_VALUES = {
    "dials of an agent to one": [DIALS.max_concurrent],
    "dials of an agent that": [DIALS.max_pending],
    "different names": [MAX_LOOKUPS],
    "TLS handshakes at once": [MAX_HANDSHAKES],
    "connections without": [MAX_UNREAD_HEADS],
    "time for the TLS handshake and": [HEAD_TIMEOUT],
    "head of a request": [ANSWER.max_bytes / KIB, ANSWER.max_fields],
    "dials at once": [MAX_PENDING_DIALS, MAX_PENDING_DIALS / 2],
    "time for a dial": [DIAL_TIMEOUT],
    "time to take an error": [LINGER],
    "time to close after": [LINGER, STALL_TIMEOUT],
    "time to take the last": [],
}
"""The expected second column of the section on CONNECT and forwards, whose rows begin alike."""


class LimitsTests(SynchronousTestCase):
    """The documented limits are those of the code."""

    def rows(self, of_connect=False):
        """Return the rows of the tables, without the heads.

        ``tests.deploy`` compares the limits of steering, the meta ports and the other programs.
        """
        sections = DOCUMENT.read_text("utf-8").split("\n## ")
        own = [
            each
            for each in sections
            if not each.startswith(("Steering", "Meta ports", "The service proxy", "The hub"))
            and each.startswith("CONNECT") is of_connect
        ]
        for line in "\n".join(own).splitlines():
            if line.startswith("| ") and not line.startswith(("| bound ", "| metric")):
                yield [cell.strip() for cell in line.strip("|").split("|")]

    def test_values(self):
        """Each row has the values of the code, and each of these values has a row."""
        for of_connect, values in ((False, VALUES), (True, CONNECT_VALUES)):
            shown = {}
            for bound, value, *_ in (row for row in self.rows(of_connect) if len(row) == 3):
                [name] = [name for name in values if bound.startswith(name)]
                shown[name] = [float(number) for number in re.findall(r"\d+", value)]
            self.assertEqual(values, shown)

    def test_trailers(self):
        """The trailer fields that are passed on are named."""
        [row] = [row for row in self.rows() if row[0].startswith("around the data")]
        named = {name.lower().encode() for name in re.findall("`(.+?)`", row[2])}
        self.assertEqual(SENT_IN_TRAILERS, named)

    def test_metrics(self):
        """The metrics that it refers to exist."""
        names = {f"`{metric.name.removeprefix('yurttunnel_server_')}`" for metric in METRICS}
        named = {row[0] for row in self.rows() if len(row) == 2}
        self.assertEqual(5, len(named))
        self.assertEqual(set(), named - names)
