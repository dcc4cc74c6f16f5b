"""The API servers, and which of them a request goes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from yurttunnel.http.authority import BadAuthority, join_authority, split_optional_port

DEFAULT_PORT = 443
"""The port of a URL that names none; API servers mostly listen on 6443."""


class BadServer(ValueError):
    """This is no API server; one line says why, and what to write instead."""


@dataclass(eq=False, slots=True)
class Server:
    """One API server, and whether it is healthy.

    ``host`` is a name, which is looked up for each connection, or an address. One object stands
    for it everywhere, so two are never equal.
    """

    host: str
    port: int
    healthy: bool = False
    authority: bytes = field(init=False)
    """What ``Host`` has."""

    def __post_init__(self) -> None:
        self.authority = join_authority(self.host, self.port).encode("ascii")

    def __str__(self) -> str:
        """Return its URL."""
        return f"https://{self.authority.decode()}"


def parse_servers(texts: Iterable[str]) -> tuple[Server, ...]:
    """Return the servers of URLs, ``https://HOST:PORT``; the scheme may be left out.

    Raises :class:`BadServer`, also for a server that is there twice and for none at all.
    """
    servers = tuple(_parse(text.strip()) for text in texts)
    if not servers:
        raise BadServer("no API server is given: write https://HOST:PORT")
    seen = set()
    for server in servers:
        if server.authority in seen:
            raise BadServer(f"{server} is given twice")
        seen.add(server.authority)
    return servers


def _parse(text: str) -> Server:
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme.lower() != "https":
        raise BadServer(f"{text!r} is not https, which alone keeps credentials secret")
    try:
        host, port = split_optional_port(rest.removesuffix("/"))
    except BadAuthority as error:
        raise BadServer(f"{text!r} is no API server, as https://HOST:PORT is: {error}") from None
    return Server(host.lower().removesuffix("."), port or DEFAULT_PORT)


class Balancer:
    """Chooses among ``servers``: one after the other if it ``rotates``, else in their order."""

    def __init__(self, servers: Collection[Server], rotates: bool) -> None:
        self._order = list(servers)
        self._rotates = rotates

    def pick(self, tried: Collection[Server] = ()) -> Server | None:
        """Return a healthy server that is not among ``tried``, ``None`` when there is none."""
        for server in self._order:
            if server.healthy and server not in tried:
                if self._rotates:
                    self._order.remove(server)
                    self._order.append(server)
                return server
        return None
