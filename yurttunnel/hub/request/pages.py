"""Protection of the hub's loopback port against web pages in browsers of its machine.

A request on this port without a token has the node's identity. A web page can send requests to
127.0.0.1, or point its own host name to it (DNS rebinding). ``Origin``, ``Sec-Fetch-Site`` and
``Host`` reveal this, and no page can choose their values.
"""

from __future__ import annotations

from yurttunnel.http.errors import RequestFailed
from yurttunnel.http.head import RequestHead
from yurttunnel.ops.host_check import is_cross_origin, names_this_machine


def reject_web_pages(head: RequestHead) -> None:
    """Raise ``RequestFailed`` (403, 421) for a request that may come from a web page."""
    by_name = head.by_name
    hosts = by_name.get(b"host", [])
    sites, origins = by_name.get(b"sec-fetch-site", ()), by_name.get(b"origin", ())
    if (sites or origins) and is_cross_origin(b"".join(hosts), sites, origins):
        raise RequestFailed(403, "this port rejects requests from web pages")
    if not all(map(names_this_machine, hosts)):
        raise RequestFailed(
            421,
            "Host is not a name of this machine, as in requests from web pages: use an IP"
            " address or localhost as Host",
        )
