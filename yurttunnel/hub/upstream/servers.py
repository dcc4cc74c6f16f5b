"""The API servers, and load balancing among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from yurttunnel.http.authority import join_authority, split_authority


@dataclass(eq=False, slots=True)
class Server:
    """An API server, and whether it is healthy.

    ``host`` is an address, or a name that is resolved for each connection. There is one object for
    each server, compared by identity.
    """

    host: str
    port: int
    healthy: bool = False
    authority: bytes = field(init=False)
    """The value of ``Host``."""
    skip: int = field(default=0, init=False)
    """The number of failed checks, and so of the addresses of ``host`` that are dialed last."""

    def __post_init__(self) -> None:
        self.authority = join_authority(self.host, self.port).encode("ascii")

    def __str__(self) -> str:
        """Return the URL."""
        return f"https://{self.authority.decode()}"


def servers_at(urls: Iterable[str]) -> tuple[Server, ...]:
    """Return the servers of ``--server-addr``, whose parsed values are ``https://HOST:PORT``."""
    return tuple(Server(*split_authority(url.removeprefix("https://"))) for url in urls)


class Balancer:
    """Selects among ``servers``: round robin if it ``rotates``, else in their order."""

    def __init__(self, servers: Collection[Server], rotates: bool) -> None:
        self._order = list(servers)
        self._rotates = rotates

    def pick(self, tried: Collection[Server] = ()) -> Server | None:
        """Return a healthy server that is not in ``tried``, ``None`` if there is none."""
        for server in self._order:
            if server.healthy and server not in tried:
                if self._rotates:
                    self._order.remove(server)
                    self._order.append(server)
                return server
        return None
