"""The relay between a client and an endpoint, which passes on data, ends and resets.

Small messages are read and sent. When a read fills its buffer, the data that follows in that
direction is moved by splice(2), which copies nothing into this process. Data that one end does not
accept waits in the pipe or in a buffer, and the other end is not read meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from yurttunnel.proxy.sockets.half_closed import HalfClosed
from yurttunnel.proxy.sockets.pacing import Pacing
from yurttunnel.proxy.sockets.pipes import PIPE_BYTES, Pipe, PipePool
from yurttunnel.proxy.state.virtual_services import Endpoint
from yurttunnel.tunnel.direct.descriptors import DescriptorSet

READ_BYTES = 16 * 1024
"""The size of a read, and the maximum that a direction buffers outside of pipes."""

MAX_PASSES = 8
"""How often one event of a direction may fill the pipe before others are served."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

_INT = struct.Struct("i")

_NOT_BLOCKING = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What the relays of one process share."""

    descriptors: DescriptorSet
    pipes: PipePool
    half_closed: HalfClosed
    pacing: Pacing


def reset(connected: socket.socket) -> None:
    """Close a connection with a reset."""
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    connected.close()


def _unacknowledged(number: int) -> int:
    """Return the number of unsent or unacknowledged bytes in the kernel (``SIOCOUTQ``, tcp(7))."""
    unsent: int = _INT.unpack(fcntl.ioctl(number, termios.TIOCOUTQ, bytes(_INT.size)))[0]
    return unsent


class Relay:
    """Owns two connected non-blocking sockets; calls ``ended`` once, after both are closed."""

    __slots__ = ("_client", "_context", "_ended", "_server", "endpoint")

    def __init__(
        self,
        context: RelayContext,
        client: socket.socket,
        server: socket.socket,
        endpoint: Endpoint,
        ended: Callable[[Relay], None],
    ) -> None:
        self.endpoint = endpoint
        self._context = context
        self._ended = ended
        self._client = _End(self, context, client)
        self._server = _End(self, context, server)
        self._client.other, self._server.other = self._server, self._client

    @property
    def received(self) -> int:
        """The number of bytes received from the client."""
        return self._client.transferred

    @property
    def sent(self) -> int:
        """The number of bytes received from the endpoint."""
        return self._server.transferred

    def progress(self) -> int:
        """Return the number of bytes delivered in both directions, as far as the peers acknowledge
        them.

        A slow reader may have much data to take from the pipe and from the kernel, long after the
        last of it was received.
        """
        return self._client.delivered() + self._server.delivered()

    def start(self) -> None:
        """Start the relay."""
        descriptors = self._context.descriptors
        descriptors.addReader(self._server)
        descriptors.addReader(self._client)
        # In most protocols the client sends first, and has done so by now.
        self._client.doRead()

    def close(self) -> None:
        """Close both ends."""
        self._end(socket.socket.close)

    def reset(self) -> None:
        """Reset both ends: one has failed, and the other must learn that data is missing."""
        self._end(reset)

    def expire(self) -> None:
        """Close both ends because they are idle; reset them if data has not been delivered."""
        if self._client.waiting_bytes or self._server.waiting_bytes:
            self.reset()
        else:
            self.close()

    def half_closed(self) -> None:
        """Record that one direction has ended."""
        self._context.half_closed.add(self)

    def _end(self, close: Callable[[socket.socket], None]) -> None:
        if self._client.release(close):
            self._server.release(close)
            self._context.half_closed.discard(self)
            self._ended(self)


@implementer(IReadWriteDescriptor)
class _End:
    """One socket; data read from it goes to the ``other``."""

    __slots__ = (
        "_buffered",
        "_context",
        "_descriptors",
        "_filled",
        "_is_open",
        "_number",
        "_pipe",
        "_receive",
        "_relay",
        "_socket",
        "has_ended",
        "other",
        "send",
        "transferred",
    )

    other: _End

    def __init__(self, relay: Relay, context: RelayContext, connected: socket.socket) -> None:
        self._relay = relay
        self._context = context
        self._descriptors = context.descriptors
        self._socket = connected
        self._number = connected.fileno()
        # Looked up once, because they are called for each piece of data.
        self._receive = connected.recv
        self.send = connected.send
        self.transferred = 0
        self.has_ended = False
        self._is_open = True
        # Whether the last read filled its buffer.
        self._filled = False
        # The data that the other end has not accepted is in the pipe, or here.
        self._pipe: Pipe | None = None
        self._buffered = b""

    def fileno(self) -> int:
        return self._number

    def logPrefix(self) -> str:
        return "proxied connection"

    def doRead(self) -> None:
        if self._buffered or self._pipe is not None:
            # The other end accepts nothing for now.
            self._descriptors.removeReader(self)
            return
        if self._filled and self._splice():
            return
        try:
            data = self._receive(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._relay.reset()
            return
        size = len(data)
        if not size:
            self._finish()
            return
        before = self.transferred
        self.transferred += size
        if size == READ_BYTES:
            self._filled = True
        if before < READ_BYTES <= self.transferred:
            # Once, when enough data has been received; nothing is spliced before.
            self._context.pacing.use_bbr_if_distant(self.other._socket)
        try:
            sent = self.other.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._relay.reset()
            return
        if sent < size:
            self._buffered = data[sent:]
            self._descriptors.addWriter(self.other)

    def doWrite(self) -> None:
        """Send the data that waits for this end."""
        self.other.resume()

    def connectionLost(self, reason: Failure) -> None:
        """End both sides: the socket has failed, or the reactor stops."""
        self._relay.reset()

    def resume(self) -> None:
        """Forward the waiting data, then what has been received meanwhile, and continue to read."""
        other, pipe = self.other, self._pipe
        try:
            if pipe is not None:
                pipe.size -= os.splice(pipe.read_end, other._number, pipe.size, flags=_NOT_BLOCKING)
                if pipe.size:
                    return
                self._pipe = None
                self._context.pipes.release(pipe)
            else:
                self._buffered = self._buffered[other.send(self._buffered) :]
                if self._buffered:
                    return
        except BlockingIOError:
            return
        except OSError:
            self._relay.reset()
            return
        if self._filled:
            # Much has been received meanwhile, so do not wait for another event.
            self._splice()
        if self._is_open and not self.waiting_bytes:
            self._descriptors.removeWriter(other)
            if not self.has_ended:
                self._descriptors.addReader(self)

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that the other end has not accepted."""
        return len(self._buffered) if self._pipe is None else self._pipe.size

    def delivered(self) -> int:
        """Return the number of bytes delivered to the peer of the other end."""
        return self.transferred - self.waiting_bytes - _unacknowledged(self.other._number)

    def release(self, close: Callable[[socket.socket], None]) -> bool:
        """Close the socket; return whether it was open."""
        if not self._is_open:
            return False
        self._is_open = self._filled = False
        self._descriptors.remove(self)
        # So that the ends and their relay are no reference cycle.
        del self._relay, self.other
        close(self._socket)
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._context.pipes.release(pipe)
        self._buffered = b""
        return True

    def _splice(self) -> bool:
        """Forward received data by splice; return whether a pipe was available."""
        pipe = self._context.pipes.acquire()
        if pipe is None:
            return False
        source, target, splice = self._number, self.other._number, os.splice
        moved, has_ended, is_broken = 0, False, False
        try:
            for _ in range(MAX_PASSES):
                got = splice(source, pipe.write_end, PIPE_BYTES, flags=_NOT_BLOCKING)
                if not got:
                    has_ended = True
                    break
                moved += got
                pipe.size = got
                pipe.size -= splice(pipe.read_end, target, got, flags=_NOT_BLOCKING)
                if pipe.size:
                    break
        except BlockingIOError:
            # There is no more data, or the other end accepts no more.
            pass
        except OSError:
            is_broken = True
        self.transferred += moved
        self._filled = moved >= READ_BYTES
        if pipe.size and not is_broken:
            self._pipe = pipe
            self._descriptors.addWriter(self.other)
            return True
        self._context.pipes.release(pipe)
        if is_broken:
            self._relay.reset()
        elif has_ended:
            self._finish()
        return True

    def _finish(self) -> None:
        """Forward the end of this direction."""
        self.has_ended = True
        if self.other.has_ended:
            self._relay.close()
            return
        self._descriptors.removeReader(self)
        try:
            self.other._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._relay.reset()
            return
        self._relay.half_closed()
