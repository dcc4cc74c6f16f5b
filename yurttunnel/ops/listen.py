"""Listening ports, and a one-line error when a port cannot be opened.

``twist`` starts services before its reactor runs, and only a synchronous failure there ends the
process. So no function here returns a Deferred: each returns the port, or raises
:class:`CannotListen`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import cast

from twisted.internet import tcp, unix
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import (
    IFileDescriptor,
    IListeningPort,
    IProtocolFactory,
    IReactorTCP,
    IReactorUNIX,
)
from twisted.internet.protocol import ServerFactory, connectionDone
from twisted.python.failure import Failure

from yurttunnel.http.authority import join_authority
from yurttunnel.ops.own_addresses import formatted_addresses, own_addresses
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.sockets import tune_local_socket

BACKLOG = 1024
"""The length of the queue of connections to accept. Connecting to a Unix socket whose queue is full
fails at once (EAGAIN in unix(7)), so it must be long enough for a burst."""

SOCKET_MODE = 0o660
"""The mode of Unix sockets: whoever can connect to one reaches the nodes."""

MAX_PATH = 107
"""The maximum length of a Unix socket's path in bytes: ``sun_path`` of unix(7) without its NUL."""

_BIND_IPV6_ONLY = Path("/proc/sys/net/ipv6/bindv6only")
"""The default of IPV6_V6ONLY in ipv6(7)."""

_HINTS = {
    errno.EADDRINUSE: (
        "another process listens there, or this one for another flag: stop it, or choose another"
        " port"
    ),
    errno.EACCES: "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE",
}


class CannotListen(SystemExit):
    """A port that the command line requires cannot be opened.

    As a ``SystemExit`` with a message as its code, it ends a starting process with that message on
    stderr, status 1 and no traceback.
    """

    def __init__(self, flag: str, reason: str) -> None:
        super().__init__(f"{flag}: {reason}")
        self.reason = reason


def listen_tcp(
    reactor: IReactorTCP,
    flag: str,
    host: str,
    port: int,
    factory: IProtocolFactory,
    backlog: int = BACKLOG,
    tune: Callable[[socket.socket], None] = tune_local_socket,
) -> IListeningPort:
    """Listen on an address and a port; raise :class:`CannotListen`, which names ``flag``.

    Connections inherit the options that ``tune`` sets: Linux copies those of the listening socket.
    """
    try:
        # Any protocol factory works; the annotation of listenTCP is narrower.
        listening = _listen(reactor, host, port, cast(ServerFactory, factory), backlog)
    except CannotListenError as error:
        where = join_authority(host, port)
        raise CannotListen(flag, f"cannot listen on {where}: {_hint(error)}") from None
    if IFileDescriptor.providedBy(listening):
        # Set through its own descriptor: there may be no free one to duplicate it.
        lent = socket.socket(fileno=listening.fileno())
        try:
            tune(lent)
        finally:
            lent.detach()
    return listening


def _listen(
    reactor: IReactorTCP, host: str, port: int, factory: ServerFactory, backlog: int
) -> IListeningPort:
    if host != "::" or not _unspecified_is_ipv6_only():
        return reactor.listenTCP(port, factory, backlog, host)
    listening = _BothFamiliesPort(port, factory, backlog, host, reactor)
    if isinstance(reactor, DirectReactor):
        reactor.take_over(listening)
    listening.startListening()
    return listening


def _unspecified_is_ipv6_only() -> bool:
    try:
        return _BIND_IPV6_ONLY.read_bytes().strip() == b"1"
    except OSError:
        return False


def listen_unix(
    reactor: IReactorUNIX,
    flag: str,
    path: str,
    factory: ServerFactory,
    mode: int = SOCKET_MODE,
    backlog: int = BACKLOG,
) -> IListeningPort:
    """Listen on a Unix socket; raise :class:`CannotListen`, which names ``flag``.

    A stale socket, which no process listens on, is replaced. The file is removed when the port
    stops listening. Nobody can connect before it has ``mode``: Twisted's port listens after that.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise CannotListen(flag, f"{path} is longer than {MAX_PATH} bytes: shorten the path")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise CannotListen(flag, f"the directory {directory} does not exist: create it")
    port = _UnixPort(os.fsencode(path), factory, backlog, mode, reactor)
    if isinstance(reactor, DirectReactor):
        reactor.take_over(port)
    try:
        _remove_stale_socket(flag, path)
        port.startListening()
    except CannotListenError as error:
        raise CannotListen(flag, f"cannot listen on {path}: {_hint(error)}") from None
    except OSError as error:
        raise CannotListen(flag, f"cannot listen on {path}: {error.strerror}") from None
    return port


def _hint(error: CannotListenError) -> str:
    """Return how to fix an error if that is known, else the system's message."""
    reason = error.socketError
    number = getattr(reason, "errno", None)
    if error.interface is None:
        # For a path, the check for a stale socket has shown that no process listens on it, so any
        # other error is about its directory.
        return getattr(reason, "strerror", None) or str(reason)
    if number == errno.EADDRNOTAVAIL:
        own = formatted_addresses(own_addresses())
        return f"this machine has no such address: choose one of its own, {own}"
    return _HINTS.get(number or 0) or getattr(reason, "strerror", None) or str(reason)


def _remove_stale_socket(flag: str, path: str) -> None:
    """Remove a socket that a killed process left behind; leave anything else as it is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(flag, f"{path} exists and is not a socket: remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # A process listens on it and is too busy to accept.
    raise CannotListen(flag, f"another process listens on {path}: stop it, or choose another path")


class _BothFamiliesPort(tcp.Port):
    """A port at ``::`` that accepts IPv4, too, as in programs in Go."""

    def createInternetSocket(self) -> socket.socket:
        created: socket.socket = super().createInternetSocket()
        created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return created


class _UnixPort(unix.Port):
    """A Unix port that removes its file when it stops, if the path still refers to that file.

    Twisted's port removes whatever is at the path, and never finishes stopping if there is nothing.
    """

    _file: tuple[int, int] | None = None

    def startListening(self) -> None:
        """Listen, and remember the identity of the file that was created."""
        super().startListening()
        self._file = self._identify()

    def stopListening(self, connDone: Failure = connectionDone) -> Deferred[None] | None:
        """Close, and remove the file now: before the reactor runs, nothing scheduled happens."""
        self._remove_file()
        return super().stopListening(connDone)  # type: ignore[no-any-return] # Twisted's has no types

    def connectionLost(self, reason: Failure) -> None:
        self._remove_file()
        # Skip the parent's method, which would remove the file in its own way.
        tcp.Port.connectionLost(self, reason)

    def _remove_file(self) -> None:
        if self._file is not None and self._identify() == self._file:
            with contextlib.suppress(OSError):
                os.unlink(self._bindPath)

    def _identify(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self._bindPath)
        except OSError:
            return None
        return status.st_dev, status.st_ino
