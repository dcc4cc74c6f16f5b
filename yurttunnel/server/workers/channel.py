"""What the processes of one server say to each other: messages, some with an open connection.

It goes over a pair of Unix sockets of which each process holds one; so nobody else can speak, and
the end of one process is the end of what the other one reads. A message is a header, an object of
JSON, and bytes; a connection travels with it as a descriptor (``SCM_RIGHTS``, unix(7)).
"""

from __future__ import annotations

import array
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import EAGAIN, ENOBUFS, ETOOMANYREFS
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.tunnel.reactor import IReactor

MOST_FIELDS = 4 * 1024 * 1024
"""Bytes of JSON in one message: authorities, or what one process tells of its sessions."""

MOST_DATA = 256 * 1024
"""Bytes beside the JSON: what has been read of a connection, of which a head is the largest."""

MOST_WAITING = 16 * 1024 * 1024
"""Bytes that may wait for a process that does not read: one that leaves more has failed."""

ENDED = "it has ended"
"""Why a channel is lost whose other process has ended, or has closed it."""

_HEADER = struct.Struct("!II?")
"""Bytes of JSON, bytes of data, and whether there is a descriptor."""

_NOT_NOW = frozenset({EAGAIN, ENOBUFS})

_READ_SIZE = 256 * 1024
_DESCRIPTOR_SIZE = array.array("i").itemsize


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its ``kind``, what belongs to that, and perhaps an open connection."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    connection: socket.socket | None = None


class BadMessage(Exception):
    """What came is no message; the other process is not what it should be."""


@implementer(IReadWriteDescriptor)
class Channel:
    """One end: ``received`` is called with each message, ``lost`` once, with the reason.

    ``connection`` is one of a pair of Unix stream sockets. A connection that comes with a message
    belongs to whoever gets it. ``room`` is called when :meth:`pass_on` can be tried again that
    had no room.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: IReactor,
        connection: socket.socket,
        received: Callable[[Message], object],
        lost: Callable[[str], object],
        room: Callable[[], object] = lambda: None,
    ) -> None:
        connection.setblocking(False)
        self._reactor = reactor
        self._socket = connection
        self._received = received
        self._lost = lost
        self._room = room
        self._room_wanted = False
        self._waiting: deque[memoryview] = deque()
        self._waiting_size = 0
        self._unread = bytearray()
        # In their order; None for one that this process had no room for.
        self._descriptors: deque[int | None] = deque()
        self._open = True
        self._when_sent: list[Deferred[None]] = []

    def start(self) -> None:
        """Begin to read."""
        self._reactor.addReader(self)

    def send(
        self,
        kind: str,
        fields: dict[str, Any] | None = None,
        data: bytes = b"",
    ) -> None:
        """Send a message, now or as soon as there is room."""
        if not self._open:
            return
        frame = _frame(kind, fields or {}, data, False)
        sent = 0 if self._waiting else self._send(frame)
        if sent < len(frame):
            self._keep(memoryview(frame)[sent:])

    def pass_on(
        self, kind: str, fields: dict[str, Any], data: bytes, connection: socket.socket
    ) -> bool:
        """Send a message with ``connection``; ``False``, and nothing is sent, if there is no room.

        The caller closes its own descriptor.
        """
        if not self._open:
            return False
        if self._waiting:
            self._room_wanted = True
            return False
        frame = _frame(kind, fields, data, True)
        rights = array.array("i", [connection.fileno()])
        try:
            sent = self._socket.sendmsg(
                [frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.tobytes())]
            )
        except OSError as error:
            if error.errno in _NOT_NOW:
                self._room_wanted = True
                self._reactor.addWriter(self)
            elif error.errno != ETOOMANYREFS:
                # Too many descriptors under way are no reason to end, nor does the kernel tell
                # when they are fewer.
                self._break(error)
            return False
        if sent < len(frame):
            self._keep(memoryview(frame)[sent:])
        return True

    def all_sent(self) -> Deferred[None]:
        """Return what fires when nothing waits to be sent, or nothing can be sent any more."""
        sent: Deferred[None] = Deferred()
        if self._waiting:
            self._when_sent.append(sent)
        else:
            sent.callback(None)
        return sent

    def read_rest(self) -> None:
        """Read all that a process has left behind that has ended."""
        while self._open and self._read():
            pass

    def close(self) -> None:
        """End it; ``lost`` is not called."""
        if self._open:
            self._open = False
            self._tell_sent()
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            self._socket.close()
            self._waiting.clear()
            while self._descriptors:
                _close(self._descriptors.popleft())

    # -- IReadWriteDescriptor ------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor, -1 when it is closed."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """Name it in the log."""
        return "workers"

    def doRead(self) -> None:
        """Read once, and hand on the messages that are complete."""
        self._read()

    def _read(self) -> bool:
        """Do so; say whether there may be more."""
        space = socket.CMSG_SPACE(_DESCRIPTOR_SIZE)
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_SIZE, space, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # It has left something unread.
            self._end(ENDED)
            return False
        except OSError as error:
            self._end(error.strerror or str(error))
            return False
        self._take_descriptors(ancillary, flags)
        if not data:
            self._end(ENDED)
            return False
        self._unread += data
        try:
            while self._open and (message := self._next_message()) is not None:
                self._received(message)
        except BadMessage as error:
            self._end(str(error))
        return True

    def doWrite(self) -> None:
        """Send what waits."""
        if not self._open:
            # The same event said that there was something to read, and that was the end.
            return
        while self._waiting:
            piece = self._waiting[0]
            sent = self._send(piece)
            self._waiting_size -= sent
            if sent < len(piece):
                self._waiting[0] = piece[sent:]
                return
            self._waiting.popleft()
        self._reactor.removeWriter(self)
        self._tell_sent()
        if self._room_wanted:
            self._room_wanted = False
            self._room()

    def connectionLost(self, reason: Failure) -> None:
        """End it: the reactor stops, or has found the socket broken."""
        self._end(reason.getErrorMessage())

    # -- helpers -------------------------------------------------------------------------------

    def _tell_sent(self) -> None:
        waiting, self._when_sent = self._when_sent, []
        for sent in waiting:
            sent.callback(None)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except OSError as error:
            if error.errno not in _NOT_NOW:
                self._break(error)
            return 0

    def _break(self, error: OSError) -> None:
        """End it soon, for nothing can be sent; whoever sends does not expect that at once."""
        self._reactor.callLater(0, self._broken, error.strerror or str(error))

    def _broken(self, reason: str) -> None:
        # What the other process has said before counts, and its end is a better reason.
        self.read_rest()
        self._end(reason)

    def _keep(self, data: memoryview) -> None:
        self._waiting.append(data)
        self._waiting_size += len(data)
        self._reactor.addWriter(self)
        if self._waiting_size > MOST_WAITING:
            # Not at once: whoever sends does not expect that.
            self._reactor.callLater(0, self._end, f"it has left {MOST_WAITING} bytes unread")

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._lost(reason)

    def _take_descriptors(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        found = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(content[: len(content) - len(content) % _DESCRIPTOR_SIZE])
        if not found and flags & socket.MSG_CTRUNC:
            # All descriptors are in use; the kernel has closed the one that was for us.
            self._descriptors.append(None)
        self._descriptors.extend(found)

    def _next_message(self) -> Message | None:
        unread = self._unread
        if len(unread) < _HEADER.size:
            return None
        fields_size, data_size, with_descriptor = _HEADER.unpack_from(unread)
        if fields_size > MOST_FIELDS or data_size > MOST_DATA:
            raise BadMessage(f"it has begun a message of {fields_size} and {data_size} bytes")
        data_begin = _HEADER.size + fields_size
        end = data_begin + data_size
        if len(unread) < end:
            return None
        try:
            fields = json.loads(unread[_HEADER.size : data_begin])
            kind = fields.pop("kind")
        except (ValueError, LookupError, AttributeError) as error:
            raise BadMessage(f"it has sent what is no message: {error!r}") from None
        data = bytes(unread[data_begin:end])
        del unread[:end]
        return Message(kind, fields, data, self._next_connection() if with_descriptor else None)

    def _next_connection(self) -> socket.socket | None:
        if not self._descriptors:
            raise BadMessage("it has sent a message without its descriptor")
        number = self._descriptors.popleft()
        if number is None:
            self._log.warn(
                "a connection is lost between the processes of this server: all descriptors are"
                " in use; raise the limit (LimitNOFILE= of systemd, ulimit -n)"
            )
            return None
        return socket.socket(fileno=number)


def _frame(kind: str, fields: dict[str, Any], data: bytes, with_descriptor: bool) -> bytes:
    encoded = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()
    if len(encoded) > MOST_FIELDS or len(data) > MOST_DATA:
        raise ValueError(f"a message {kind} of {len(encoded)} and {len(data)} bytes is too long")
    return _HEADER.pack(len(encoded), len(data), with_descriptor) + encoded + data


def _close(number: int | None) -> None:
    if number is not None:
        socket.socket(fileno=number).close()
