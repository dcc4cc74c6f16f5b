"""Asks a running process by its socket: one request a connection, with deadlines and bounds."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from yurttunnel.cli.output import shown
from yurttunnel.ops.unix_peers import peer_credentials, user_id_behind

SECONDS = 15.0
"""For a connection and each read: what the process itself allows."""

FOUND_SECONDS = 3.0
"""The same for a process that is only found to run: one that hangs holds up no command."""

MOST_BYTES = 64 * 1024 * 1024
"""Of an answer: 10,000 nodes have some MiB."""

_LONGEST_PATH = 107
"""Bytes of a Unix socket's path: ``sun_path`` of unix(7) without its final NUL."""


class CommandFailed(Exception):
    """A command cannot do what it is to do; a sentence says why, and what to do."""


class Missing(CommandFailed):
    """What is asked for is not there."""


class NoAnswer(CommandFailed):
    """A process runs, and is silent."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to the user of this process, or root, who listens on a Unix socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        """Connect; raises :class:`CommandFailed` when another user listens there."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        _connect(self.sock, self._path)
        user = user_id_behind(self.sock)
        # Root may ask everybody: the directory has been looked at, or named.
        if os.geteuid() not in (0, user) and user != 0:
            raise CommandFailed(
                f"{self._path} is served by another user (id {user}): run this as that user or root"
            )


class Process:
    """A running process, asked by its socket at ``path``; each wait takes ``seconds`` at most."""

    def __init__(self, path: Path, seconds: float = SECONDS) -> None:
        self.path = path
        self.name = str(path)
        self._seconds = seconds

    def pid(self) -> int:
        """Return its number in this namespace of processes, as the kernel says."""
        with _in_sentences(self.path, self._seconds), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._seconds)
            _connect(connection, self.path)
            return peer_credentials(connection)[0]

    def get(self, page: str) -> Any:
        """Return what ``page`` has as JSON; raises :class:`CommandFailed`."""
        return _decoded(page, self._ask("GET", page))

    def get_text(self, page: str) -> str:
        """Return what ``page`` has as text; raises :class:`CommandFailed`."""
        return self._ask("GET", page).decode("utf-8", "replace")

    def post(self, page: str, **parameters: str) -> Any:
        """Have something changed, and return what is told of it as JSON."""
        return _decoded(page, self._ask("POST", _with_parameters(page, parameters)))

    def post_text(self, page: str, **parameters: str) -> str:
        """Have something changed, and return what is told of it as text."""
        return self._ask("POST", _with_parameters(page, parameters)).decode("utf-8", "replace")

    def _ask(self, method: str, target: str) -> bytes:
        with _in_sentences(self.path, self._seconds):
            connection = _UnixConnection(self.path, self._seconds)
            try:
                connection.request(method, target)
                response = connection.getresponse()
                body = response.read(MOST_BYTES + 1)
            finally:
                connection.close()
        if len(body) > MOST_BYTES:
            raise CommandFailed(f"{self.path}: the answer is longer than {MOST_BYTES} bytes")
        if response.status == http.client.NOT_FOUND:
            page = target.partition("?")[0]
            raise Missing(
                f"the process in {self.path.parent} has no {page}: it is another program, runs in a"
                " cluster, or is of another version"
            )
        if response.status != http.client.OK:
            said = shown(body.decode("utf-8", "replace").strip())
            raise CommandFailed(said or f"{self.path}: it answers with status {response.status}")
        return body


@contextlib.contextmanager
def _in_sentences(path: Path, seconds: float) -> Iterator[None]:
    """Say by :class:`CommandFailed` why the process at ``path`` cannot be asked."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise CommandFailed(f"{path} is longer than {_LONGEST_PATH} bytes")
    try:
        yield
    except FileNotFoundError:
        raise CommandFailed(f"nothing runs at {path}: there is no such socket") from None
    except NotADirectoryError:
        raise CommandFailed(
            f"{path.parent} is not a directory: name the one that has {path.name}"
        ) from None
    except ConnectionRefusedError:
        raise CommandFailed(
            f"nothing runs at {path}: the process that made this socket has ended"
        ) from None
    except PermissionError:
        raise CommandFailed(f"{path} is another user's: run this as that user or root") from None
    except TimeoutError:
        raise NoAnswer(f"{path}: it runs, but gave no answer within {seconds:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or repr(error)
        raise CommandFailed(f"{path}: {why}") from None


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect it, which has a timeout: without one it waits as long as the queue there is full."""
    try:
        connection.connect(str(path))
    except BlockingIOError:
        raise NoAnswer(f"{path}: it runs, but does not take the connections that wait") from None


def _with_parameters(page: str, parameters: Mapping[str, str]) -> str:
    """Return the target of a request; words of a command line may be any bytes."""
    return f"{page}?{urlencode(parameters, errors='surrogateescape')}"


def _decoded(page: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise CommandFailed(f"{page} gave no JSON: is it of another version?") from None
