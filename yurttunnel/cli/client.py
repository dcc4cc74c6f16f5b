"""The client of the admin socket: one request a connection, with timeouts and size limits."""

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
from yurttunnel.ops.listen import MAX_PATH
from yurttunnel.ops.unix_peers import peer_credentials, user_id_behind

SECONDS = 15.0
"""The timeout of a connection and of each read; it equals that of the process itself."""

DISCOVERY_SECONDS = 3.0
"""The timeout for processes that are listed: one that hangs must not delay the command."""

MAX_BYTES = 64 * 1024 * 1024
"""The maximum size of a response: 10,000 nodes take some MiB."""


class CommandFailed(Exception):
    """A command failed; the message says why, and what to do."""


class NotFound(CommandFailed):
    """The requested object does not exist."""


class NoResponse(CommandFailed):
    """The process runs but does not respond."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket whose listener must be the user of this process, or root."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        """Connect; raise :class:`CommandFailed` if another user listens there."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        _connect(self.sock, self._path)
        user = user_id_behind(self.sock)
        # Root may connect to any: the directory was checked, or named by the caller.
        if os.geteuid() not in (0, user) and user != 0:
            raise CommandFailed(
                f"{self._path} is served by another user (id {user}): run this as that user or root"
            )


class Process:
    """A running process with its socket at ``path``; ``seconds`` is the timeout of each wait."""

    def __init__(self, path: Path, seconds: float = SECONDS) -> None:
        self.path = path
        self.name = str(path)
        self._seconds = seconds

    def pid(self) -> int:
        """Return its process ID in this PID namespace, from the kernel."""
        with (
            _readable_errors(self.path, self._seconds),
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.settimeout(self._seconds)
            _connect(connection, self.path)
            return peer_credentials(connection)[0]

    def get(self, page: str) -> Any:
        """Return the JSON of ``page``; raise :class:`CommandFailed`."""
        return _decoded(page, self._request("GET", page))

    def get_text(self, page: str) -> str:
        """Return the text of ``page``; raise :class:`CommandFailed`."""
        return self._request("GET", page).decode("utf-8", "replace")

    def post(self, page: str, **parameters: str) -> Any:
        """Send a POST request, and return the JSON of the response."""
        return _decoded(page, self._request("POST", _with_parameters(page, parameters)))

    def post_text(self, page: str, **parameters: str) -> str:
        """Send a POST request, and return the text of the response."""
        return self._request("POST", _with_parameters(page, parameters)).decode("utf-8", "replace")

    def _request(self, method: str, target: str) -> bytes:
        with _readable_errors(self.path, self._seconds):
            connection = _UnixConnection(self.path, self._seconds)
            try:
                connection.request(method, target)
                response = connection.getresponse()
                body = response.read(MAX_BYTES + 1)
            finally:
                connection.close()
        if len(body) > MAX_BYTES:
            raise CommandFailed(f"{self.path}: the answer is longer than {MAX_BYTES} bytes")
        if response.status == http.client.NOT_FOUND:
            page = target.partition("?")[0]
            raise NotFound(
                f"the process in {self.path.parent} has no {page}: it is another program, runs in a"
                " cluster, or is of another version"
            )
        if response.status != http.client.OK:
            message = shown(body.decode("utf-8", "replace").strip())
            raise CommandFailed(
                message or f"{self.path}: it responds with status {response.status}"
            )
        return body


@contextlib.contextmanager
def _readable_errors(path: Path, seconds: float) -> Iterator[None]:
    """Turn errors of a request to the process at ``path`` into :class:`CommandFailed`."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise CommandFailed(f"{path} is longer than {MAX_PATH} bytes")
    try:
        yield
    except FileNotFoundError:
        raise CommandFailed(f"nothing runs at {path}: the socket does not exist") from None
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
        raise NoResponse(f"{path}: it runs, but did not respond within {seconds:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or str(error) or repr(error)
        raise CommandFailed(f"{path}: {why}") from None


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect a socket with a timeout; without one it would block while the backlog is full."""
    try:
        connection.connect(str(path))
    except BlockingIOError:
        raise NoResponse(f"{path}: it runs, but does not take the connections that wait") from None


def _with_parameters(page: str, parameters: Mapping[str, str]) -> str:
    """Return the target of a request; command-line arguments may be any bytes."""
    return f"{page}?{urlencode(parameters, errors='surrogateescape')}"


def _decoded(page: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise CommandFailed(f"{page} gave no JSON: is it of another version?") from None
