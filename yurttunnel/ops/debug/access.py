"""Who may see ``/debug``: programs and people on the same machine, and no web page they look at.

The meta port may listen on other addresses than loopback, and a browser on this machine carries
requests of whatever page is open in it. So the address of the client has to be loopback, the Host
field has to name it (against names that are made to lead here, DNS rebinding), and a browser has
to say that the request is of no other site (Fetch Metadata, and Origin of RFC 6454). An agent
makes connections for callers of the tunnel, who are elsewhere: they come from loopback, too.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.address import IPv4Address as TcpAddress
from twisted.internet.address import IPv6Address as Tcp6Address
from twisted.internet.interfaces import IAddress
from twisted.web.http import Request

from yurttunnel.http.authority import Address
from yurttunnel.ops.rebinding import asked_host, is_loopback, is_of_another_page

"""What a browser says in Sec-Fetch-Site of requests of this page itself, or of the user."""


IsTunnelled = Callable[[IAddress, IAddress], bool]
"""Says of a client's address, and of the listener's, that they are joined through the tunnel."""


def refusal(request: Request, is_tunnelled: IsTunnelled) -> str | None:
    """Return in one line why ``request`` is refused, ``None`` when it is not."""
    peer = request.getClientAddress()
    if not isinstance(peer, TcpAddress | Tcp6Address) or not is_loopback(peer.host):
        return "/debug is for this machine alone: connect to the meta port by a loopback address"
    if is_tunnelled(peer, request.getHost()):
        return "/debug is for this machine alone: it is not served through the tunnel"
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    if len(hosts) != 1 or not _names_loopback(hosts[0]):
        return "/debug wants a loopback address, or localhost, in the Host field"
    sites = request.requestHeaders.getRawHeaders(b"sec-fetch-site", [])
    origins = request.requestHeaders.getRawHeaders(b"origin", [])
    if is_of_another_page(hosts[0], sites, origins):
        return "/debug answers no requests that pages of other sites make in a browser"
    return None


def _names_loopback(field: bytes) -> bool:
    host = asked_host(field)
    return host == "localhost" or (isinstance(host, Address) and host.is_loopback)
