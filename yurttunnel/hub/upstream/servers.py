"""The API servers, and which of them a request goes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from yurttunnel.http.authority import join_authority, split_authority


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


def servers_at(urls: Iterable[str]) -> tuple[Server, ...]:
    """Return the servers of ``--server-addr``, as that is parsed: ``https://HOST:PORT`` of each."""
    return tuple(Server(*split_authority(url.removeprefix("https://"))) for url in urls)


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
