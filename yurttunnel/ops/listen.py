"""Listening ports, and one line to read when one cannot be had.

``twist`` starts services before its reactor runs, and only what fails synchronously there ends
the process. So nothing here returns a Deferred: each function gives the port, or raises
:class:`CannotListen`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
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
from yurttunnel.ops.own_addresses import listed, own_addresses
from yurttunnel.tunnel.direct.reactor import DirectReactor
from yurttunnel.tunnel.sockets import tune_local_socket

BACKLOG = 1024
"""Connections that may wait to be accepted. Connecting to a Unix socket whose queue is full
fails at once (EAGAIN in unix(7)), so a burst has to fit."""

SOCKET_MODE = 0o660
"""Of Unix sockets: whoever can open one reaches the nodes."""

_LONGEST_PATH = 107
"""Bytes of a Unix socket's path: ``sun_path`` of unix(7) without its final NUL."""

_HINTS = {
    errno.EADDRINUSE: (
        "another process listens there, or this one for another flag: stop it, or choose another"
        " port"
    ),
    errno.EACCES: "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE",
}


class CannotListen(SystemExit):
    """A listener that the command line asks for cannot be had.

    As a ``SystemExit`` whose code is a sentence it ends a starting process with that sentence
    on stderr, status 1 and no traceback.
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
    """Listen on an address and a port; raises :class:`CannotListen` that names ``flag``.

    Connections inherit the options that ``tune`` sets, as Linux copies those of the listening
    socket.
    """
    try:
        # Any protocol factory will do; the annotation of listenTCP is narrower.
        listening = reactor.listenTCP(port, cast(ServerFactory, factory), backlog, host)
    except CannotListenError as error:
        where = join_authority(host, port)
        raise CannotListen(flag, f"cannot listen on {where}: {_hint(error)}") from None
    if IFileDescriptor.providedBy(listening):
        # By its own descriptor: there may be no other one left.
        lent = socket.socket(fileno=listening.fileno())
        try:
            tune(lent)
        finally:
            lent.detach()
    return listening


def listen_unix(
    reactor: IReactorUNIX,
    flag: str,
    path: str,
    factory: ServerFactory,
    mode: int = SOCKET_MODE,
    backlog: int = BACKLOG,
) -> IListeningPort:
    """Listen on a Unix socket; raises :class:`CannotListen` that names ``flag``.

    A socket that nobody listens on any more is replaced; the file is removed when the port
    stops listening. The file never has more rights than ``mode``.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise CannotListen(flag, f"{path} is longer than {_LONGEST_PATH} bytes: shorten the path")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise CannotListen(flag, f"the directory {directory} does not exist: create it")
    port = _UnixPort(os.fsencode(path), factory, backlog, mode, reactor)
    if isinstance(reactor, DirectReactor):
        reactor.take_over(port)
    umask = os.umask(0o777 & ~mode)
    try:
        _remove_stale_socket(flag, path)
        port.startListening()
    except CannotListenError as error:
        raise CannotListen(flag, f"cannot listen on {path}: {_hint(error)}") from None
    except OSError as error:
        raise CannotListen(flag, f"cannot listen on {path}: {error.strerror}") from None
    finally:
        os.umask(umask)
    return port


def _hint(error: CannotListenError) -> str:
    """Return what to do about an error where that can be known, else what the system says."""
    reason = error.socketError
    number = getattr(reason, "errno", None)
    if error.interface is None:
        # A path: nothing listens there, as has been tried, so the rest is about its directory.
        return getattr(reason, "strerror", None) or str(reason)
    if number == errno.EADDRNOTAVAIL:
        return f"this machine has no such address: choose one of its own, {listed(own_addresses())}"
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
            pass  # Somebody listens who is too busy to accept.
    raise CannotListen(flag, f"another process listens on {path}: stop it, or choose another path")


class _UnixPort(unix.Port):
    """A port that removes its file when it stops, if the file is still there and still its own.

    Twisted's removes whatever is there, and never finishes to stop when nothing is.
    """

    _file: tuple[int, int] | None = None

    def startListening(self) -> None:
        """Listen, and note which file that made."""
        super().startListening()
        self._file = self._identify()

    def stopListening(self, connDone: Failure = connectionDone) -> Deferred[None] | None:
        """Remove the file now, since before the reactor runs nothing later happens, and close."""
        self._remove_file()
        return super().stopListening(connDone)  # type: ignore[no-any-return] # Twisted's has no types

    def connectionLost(self, reason: Failure) -> None:
        self._remove_file()
        # Past the parent, which would remove the file in its own way.
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
