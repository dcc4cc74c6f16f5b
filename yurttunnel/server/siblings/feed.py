"""The list of a server's nodes: its encoding, and the stream that keeps a sibling's copy current.

The list is a stream of JSON lines (``docs/protocol.md``, "Siblings"), each the full state of one
node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.pki.identity import Identifiers, format_identifiers, parse_identifiers
from yurttunnel.pki.names import MAX_HOST_LENGTH, BadIdentity, check_node_name
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.wire.codes import Code

FEED_HOST = "nodes"
"""The host of the OPEN that requests the list; hosts at nodes have the form NUMBER/HOLDER/HOST."""

FEED_PORT = 1

MAX_LINE = 32 * 1024
"""The maximum length of a line in bytes: twice that of a node's identifiers in HELLO."""

MAX_NODES = 50_000
"""The maximum number of nodes of one sibling; each takes about 1 KiB at the reader."""

_MAX_NUMBER = 2**32 - 1

log = Logger()


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A sibling's report of one node: the ``number`` for requests, and its state."""

    number: int
    node: str
    identifiers: Identifiers
    draining: bool


class BadEntry(ValueError):
    """A malformed line; the text is the reason."""


def encode_entry(entry: NodeEntry) -> bytes:
    """Return the line for a present node."""
    return _line(
        {
            "number": entry.number,
            "node": entry.node,
            "identifiers": format_identifiers(entry.identifiers),
            "draining": entry.draining,
        }
    )


def encode_removal(number: int) -> bytes:
    """Return the line for a node that was removed."""
    return _line({"number": number})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> NodeEntry | int:
    """Parse a line: a present node, or the number of one that was removed.

    Unknown fields are ignored. Raises :class:`BadEntry`.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise BadEntry("a line is not JSON") from None
    if not isinstance(fields, dict):
        raise BadEntry("a line is not an object")
    number = fields.get("number")
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_NUMBER:
        raise BadEntry("a line has no number")
    if "node" not in fields:
        return number
    node, identifiers = fields["node"], fields.get("identifiers")
    if not isinstance(node, str) or not isinstance(identifiers, str):
        raise BadEntry("a line has no name or no identifiers")
    try:
        check_node_name(node, MAX_HOST_LENGTH)
        parsed = parse_identifiers(identifiers) if identifiers else Identifiers(frozenset())
    except (BadIdentity, ValueError) as error:
        raise BadEntry(f"a line has a malformed node: {error}") from None
    return NodeEntry(number, node, parsed, fields.get("draining") is True)


@implementer(IPushProducer)
class FeedWriter(Protocol):
    """Writes on one stream the nodes with direct sessions in ``registry``, and each change.

    While the reader is slow, only the names of changed nodes are stored, and their state at the
    time of writing is sent. A node keeps its number while it is present.
    """

    transport: IStream

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._numbers: dict[str, int] = {}
        self._nodes: dict[int, str] = {}
        self._last_number = 0
        # An ordered set, the oldest first.
        self._changed: dict[str, None] = {}
        self._paused = False
        self._warned = False

    def node(self, number: int) -> str | None:
        """Return the node that was reported as ``number``, or ``None``."""
        return self._nodes.get(number)

    def connectionMade(self) -> None:
        self._registry.on_direct_changed.append(self._node_changed)
        self._changed = dict.fromkeys(self._registry.direct_nodes())
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """Reset the stream: readers must not write."""
        self.transport.abort(Code.PROTOCOL, "the reader of the list of nodes has written to it")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._registry.on_direct_changed.remove(self._node_changed)
        self._changed.clear()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        """Report the changes until the stream is full."""
        self._paused = False
        while self._changed and not self._paused:
            node = next(iter(self._changed))
            del self._changed[node]
            self._write_node(node)

    def stopProducing(self) -> None:
        """Stop writing: ``connectionLost`` follows."""
        self._paused = True

    def _node_changed(self, node: str) -> None:
        self._changed[node] = None
        if not self._paused:
            self.resumeProducing()

    def _write_node(self, node: str) -> None:
        session = self._registry.direct(node)
        if session is None:
            number = self._numbers.pop(node, None)
            if number is not None:
                del self._nodes[number]
                self.transport.write(encode_removal(number))
            return
        if node not in self._numbers:
            if len(self._numbers) >= MAX_NODES:
                self._warn_too_many()
                return
            self._last_number += 1
            self._numbers[node] = self._last_number
            self._nodes[self._last_number] = node
        # A sibling should prefer another route while the agent's connection is lost, too.
        draining = session.draining or not session.connected
        entry = NodeEntry(self._numbers[node], node, session.identifiers, draining)
        self.transport.write(encode_entry(entry))

    def _warn_too_many(self) -> None:
        if not self._warned:
            self._warned = True
            log.warn(
                "this server has more than {most} nodes; it does not report the others to siblings",
                most=MAX_NODES,
            )


class FeedReader(LineOnlyReceiver):
    """Reads the list of a sibling; ``on_entry`` is called with each parsed line.

    ``on_failure`` is called once, with the reason, if the list is malformed or ends before
    :meth:`end` was called.
    """

    transport: IStream
    delimiter = b"\n"
    MAX_LENGTH = MAX_LINE

    def __init__(
        self, on_entry: Callable[[NodeEntry | int], object], on_failure: Callable[[str], object]
    ) -> None:
        self._on_entry = on_entry
        self._on_failure = on_failure
        self._ended = False

    def end(self) -> None:
        """Stop reading: the session is about to end."""
        self._ended = True
        if self.connected:
            self.transport.abort(Code.CANCELLED, "the list of nodes is no longer needed")

    def lineReceived(self, line: bytes) -> None:
        if self._ended:
            return
        try:
            self._on_entry(decode_line(line))
        except BadEntry as error:
            self._fail(str(error))

    def lineLengthExceeded(self, line: bytes) -> None:
        """Fail: a sibling does not write such lines."""
        self._fail(f"a line has more than {MAX_LINE} bytes")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report an unexpected end."""
        self._fail("it has ended")

    def _fail(self, text: str) -> None:
        if not self._ended:
            self._ended = True
            self._on_failure(text)
