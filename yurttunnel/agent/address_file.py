"""The last known addresses of the servers, stored for an agent that starts without the API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from twisted.logger import Logger

from yurttunnel.agent.routes import Location
from yurttunnel.http.authority import join_authority
from yurttunnel.ops import flags
from yurttunnel.pki.directory import StateDirectory, StateError

FILE_NAME = "server-addresses.json"

_MAX_BYTES = 64 * 1024
_MAX_LOCATIONS = 1000


class AddressFile:
    """A list of ``HOST:PORT`` as JSON, in the directory of the agent's certificates.

    It is neither secret nor trusted: a dialed server still has to present a server's certificate.
    So problems with the file are logged, and the file is not used.
    """

    _log = Logger()

    def __init__(self, directory: Path) -> None:
        self._directory = StateDirectory(directory)
        self._path = directory / FILE_NAME

    def read(self) -> tuple[Location, ...]:
        """Return the addresses in the file, none if it is missing or unusable."""
        try:
            content = self._directory.read(FILE_NAME)
            return () if content is None else _parse(content)
        except StateError as error:
            self._warn(str(error))
        except (ValueError, RecursionError) as error:
            self._warn(f"{self._path} is no list of addresses ({error}); it will be written anew")
        return ()

    def write(self, locations: Sequence[Location]) -> bool:
        """Replace the file, and return whether that succeeded."""
        content = json.dumps([join_authority(*location) for location in locations]).encode()
        try:
            self._directory.write(FILE_NAME, content)
        except StateError as error:
            self._warn(str(error))
            return False
        return True

    def _warn(self, problem: str) -> None:
        self._log.warn("the last known addresses of the servers: {problem}", problem=problem)


def _parse(content: bytes) -> tuple[Location, ...]:
    """Parse the list; raises ``ValueError``."""
    if len(content) > _MAX_BYTES:
        raise ValueError("it is too long")
    entries = json.loads(content)
    if not isinstance(entries, list) or len(entries) > _MAX_LOCATIONS:
        raise ValueError("it is not a list, or too long")
    found = []
    for entry in entries:
        if not isinstance(entry, str):
            raise ValueError("an entry is not a text")
        host, port = flags.host_port(entry, 0)
        if not port:
            raise ValueError(f"{entry!r} has no port")
        found.append((host, port))
    return tuple(found)
