"""The common parts of all pages below ``/debug``: access, methods, parameters and responses.

They are for programs and people on the same machine, and not for web pages in a browser there. The
meta port may listen on addresses other than loopback, and a browser on this machine sends the
requests of any page that is open in it. So the address of the client must be a loopback address,
the Host field must name one (against DNS rebinding), and a browser must declare the request as
same-origin (Fetch Metadata, and Origin of RFC 6454). An agent connects for callers of the tunnel,
which are elsewhere, and these connections come from loopback, too: they are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.internet.interfaces import IAddress

from yurttunnel.http.authority import Address
from yurttunnel.ops.host_check import is_cross_origin, is_loopback, requested_host
from yurttunnel.ops.http_site import PageRefused, PageRequest, PageResponse, allowed_methods, text

JSON = b"application/json"
HTML = b"text/html; charset=utf-8"

IsTunnelled = Callable[[IAddress, IAddress], bool]
"""Whether a connection, given by its two addresses, comes through the tunnel."""

Parameters = Mapping[str, str]
"""The parameters of the query, each once."""


Handler = Callable[[Parameters], "PageResponse | Awaitable[PageResponse]"]
"""Makes the response; may raise :class:`PageRefused`."""


def as_json(value: object) -> PageResponse:
    """Return a response of JSON, indented for people."""
    return PageResponse(JSON, json.dumps(value, indent=1).encode() + b"\n")


class Page:
    """A page that ``get`` makes for each request; ``post``, if given, changes something.

    ``parameters`` are the names of the parameters that it accepts.
    """

    def __init__(
        self, get: Handler, post: Handler | None = None, parameters: tuple[str, ...] = ()
    ) -> None:
        self._handlers = {b"GET": get, b"HEAD": get}
        if post is not None:
            self._handlers[b"POST"] = post
        self._parameters = parameters

    def __call__(self, request: PageRequest) -> PageResponse | Awaitable[PageResponse]:
        """Respond to ``request``."""
        handler = self._handlers.get(request.head.method)
        if handler is None:
            sentence, fields = allowed_methods(self._handlers)
            return text(f"{sentence}\n", 405, fields)
        return handler(self._read(request))

    def _read(self, request: PageRequest) -> Parameters:
        given = request.parameters
        if any(name not in self._parameters or len(given[name]) > 1 for name in given):
            expected = ", ".join(self._parameters) or "none"
            raise PageRefused(f"parameters of this page, each once: {expected}")
        return {name: value for name, (value,) in given.items()}


def number(
    parameters: Parameters, name: str, minimum: int, maximum: int, default: int | None
) -> int:
    """Return a parameter that is a number from ``minimum`` to ``maximum``."""
    given = parameters.get(name)
    if given is None and default is not None:
        return default
    if given is None or not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise PageRefused(f"the parameter {name} is required: a number from {minimum} to {maximum}")
    value = int(given)
    if not minimum <= value <= maximum:
        raise PageRefused(f"{name} is a number from {minimum} to {maximum}")
    return value


def refusal(request: PageRequest, is_tunnelled: IsTunnelled) -> str | None:
    """Return the reason, in one line, why ``request`` is refused, or ``None``."""
    peer = request.transport.getPeer()
    if not isinstance(peer, TcpAddress | Tcp6Address) or not is_loopback(peer.host):
        return "/debug is only for this machine: connect to the meta port by a loopback address"
    if is_tunnelled(peer, request.transport.getHost()):
        return "/debug is only for this machine: it is not served through the tunnel"
    hosts = request.head.values(b"host")
    if len(hosts) != 1 or not _names_loopback(hosts[0]):
        return "/debug requires a loopback address, or localhost, in the Host field"
    sites = request.head.values(b"sec-fetch-site")
    origins = request.head.values(b"origin")
    if is_cross_origin(hosts[0], sites, origins):
        return "/debug rejects cross-site requests of browsers"
    return None


def _names_loopback(field: bytes) -> bool:
    host = requested_host(field)
    return host == "localhost" or (isinstance(host, Address) and host.is_loopback)
