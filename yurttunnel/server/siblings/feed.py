"""The list of nodes that a server has: how it is told to a sibling, and how that keeps up.

It goes over one stream as lines of JSON (``docs/protocol.md``, "Siblings"), each the whole truth
about one node.
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

from yurttunnel.pki.identity import (
    Identifiers,
    format_identifiers,
    parse_identifiers,
)
from yurttunnel.pki.names import MAX_HOST_LENGTH, BadIdentity, check_node_name
from yurttunnel.server.registry import SessionRegistry
from yurttunnel.tunnel.interfaces import IStream
from yurttunnel.wire.codes import Code

FEED_HOST = "nodes"
"""The host of the OPEN that asks for the list; hosts at nodes are written NUMBER/HOLDER/HOST."""

FEED_PORT = 1

MAX_LINE = 32 * 1024
"""The longest line, in bytes: twice what the identifiers of a node can be in its HELLO."""

MAX_NODES = 50_000
"""How many nodes one sibling may have; each costs the reader about 1 KiB."""

_MAX_NUMBER = 2**32 - 1

log = Logger()


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """What a sibling says of one node: under which ``number`` it is asked for, and what it is."""

    number: int
    node: str
    identifiers: Identifiers
    draining: bool


class BadEntry(ValueError):
    """A line that cannot be understood; the text says why."""


def encode_entry(entry: NodeEntry) -> bytes:
    """Make the line of a node that is there."""
    return _line(
        {
            "number": entry.number,
            "node": entry.node,
            "identifiers": format_identifiers(entry.identifiers),
            "draining": entry.draining,
        }
    )


def encode_gone(number: int) -> bytes:
    """Make the line of a node that has gone."""
    return _line({"number": number})


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> NodeEntry | int:
    """Read a line: a node that is there, or the number of one that has gone.

    Unknown fields are ignored. Raises :class:`BadEntry`.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise BadEntry("a line is not JSON") from None
    if not isinstance(fields, dict):
        raise BadEntry("a line is no object")
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
        raise BadEntry(f"a line is about no node: {error}") from None
    return NodeEntry(number, node, parsed, fields.get("draining") is True)


@implementer(IPushProducer)
class FeedWriter(Protocol):
    """Writes on one stream which nodes ``registry`` has directly, and each change.

    While the reader is slow only the names of the nodes that have changed are kept, and it gets
    what is true of them when it goes on. A node keeps its number while it is there.
    """

    transport: IStream

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry
        self._numbers: dict[str, int] = {}
        self._nodes: dict[int, str] = {}
        self._last_number = 0
        # A set in the order of time.
        self._changed: dict[str, None] = {}
        self._paused = False
        self._warned = False

    def node(self, number: int) -> str | None:
        """Return the node that has been told under ``number``, ``None`` when there is none."""
        return self._nodes.get(number)

    def connectionMade(self) -> None:
        self._registry.on_direct_changed.append(self._node_changed)
        self._changed = dict.fromkeys(self._registry.direct_nodes())
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def dataReceived(self, data: bytes) -> None:
        """Reset the stream: nothing comes from a reader."""
        self.transport.abort(Code.PROTOCOL, "the reader of the list of nodes has written to it")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._registry.on_direct_changed.remove(self._node_changed)
        self._changed.clear()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        """Report what has changed, as long as there is room."""
        self._paused = False
        while self._changed and not self._paused:
            node = next(iter(self._changed))
            del self._changed[node]
            self._tell(node)

    def stopProducing(self) -> None:
        """Write no more: ``connectionLost`` follows."""
        self._paused = True

    def _node_changed(self, node: str) -> None:
        self._changed[node] = None
        if not self._paused:
            self.resumeProducing()

    def _tell(self, node: str) -> None:
        session = self._registry.direct(node)
        if session is None:
            number = self._numbers.pop(node, None)
            if number is not None:
                del self._nodes[number]
                self.transport.write(encode_gone(number))
            return
        if node not in self._numbers:
            if len(self._numbers) >= MAX_NODES:
                self._warn_too_many()
                return
            self._last_number += 1
            self._numbers[node] = self._last_number
            self._nodes[self._last_number] = node
        # A sibling had better choose another way, too, while the agent's connection is lost.
        hesitates = session.draining or not session.connected
        entry = NodeEntry(self._numbers[node], node, session.identifiers, hesitates)
        self.transport.write(encode_entry(entry))

    def _warn_too_many(self) -> None:
        if not self._warned:
            self._warned = True
            log.warn(
                "this server has more than {most} nodes; it does not report the others to siblings",
                most=MAX_NODES,
            )


class FeedReader(LineOnlyReceiver):
    """Reads the list of a sibling; ``told`` is called with each line's meaning.

    ``failed`` is called, once, with the reason when the list is malformed or ends although
    :meth:`end` was not called.
    """

    transport: IStream
    delimiter = b"\n"
    MAX_LENGTH = MAX_LINE

    def __init__(
        self, told: Callable[[NodeEntry | int], object], failed: Callable[[str], object]
    ) -> None:
        self._told = told
        self._failed = failed
        self._ended = False

    def end(self) -> None:
        """Read no more: the session is about to end."""
        self._ended = True
        if self.connected:
            self.transport.abort(Code.CANCELLED, "the list of nodes is needed no longer")

    def lineReceived(self, line: bytes) -> None:
        if self._ended:
            return
        try:
            self._told(decode_line(line))
        except BadEntry as error:
            self._fail(str(error))

    def lineLengthExceeded(self, line: bytes) -> None:
        """Give up: a sibling does not write such lines."""
        self._fail(f"a line has more than {MAX_LINE} bytes")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Report an end that was not asked for."""
        self._fail("it has ended")

    def _fail(self, text: str) -> None:
        if not self._ended:
            self._ended = True
            self._failed(text)
