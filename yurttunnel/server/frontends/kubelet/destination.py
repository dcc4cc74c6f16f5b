"""Which node a request means, and which address there.

The fields are those of yurttunnel 1.2. A caller that believes it dials the kubelet sends the
kubelet's host and port as ``Host``. One that dials the server itself may name the destination in
``X-Tunnel-Proxy-Dest``; and when the destination does not tell the node, as 127.0.0.1 does not,
the node goes into ``X-Tunnel-Proxy-Host``. In a cluster more is known than the fields say:
:mod:`yurttunnel.server.frontends.kubelet.resolution`.
"""

from __future__ import annotations

from dataclasses import dataclass

from yurttunnel.http.authority import BadAuthority, join_authority, split_authority, strip_port
from yurttunnel.http.head import HeadError, RequestHead

NODE_FIELD = b"x-tunnel-proxy-host"
DESTINATION_FIELD = b"x-tunnel-proxy-dest"
PREFIX = b"x-tunnel-"
"""Fields that begin so are for the server, and not passed on."""

_EXAMPLE = "edge-1:10250"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes: ``host`` and ``port`` as the agent dials them.

    ``node`` is the name or address by which the agent is found.
    """

    node: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as ``Host`` has them."""
        return join_authority(self.host, self.port)


def destination_of(head: RequestHead) -> Destination:
    """Read the destination; raises :class:`HeadError` (400) with what to write instead."""
    host, port = _host_and_port(head)
    node = named_node(head) if NODE_FIELD in head.by_name else ""
    return Destination(node or host, host, port)


def named_node(head: RequestHead) -> str:
    """Read ``X-Tunnel-Proxy-Host``, an empty text without it; raises as :func:`destination_of`."""
    text = _single(head, NODE_FIELD)
    try:
        return strip_port(text) if text else ""
    except BadAuthority as error:
        text = f"X-Tunnel-Proxy-Host is not a node: {error}; write its name or address"
        raise HeadError(400, text) from None


def names_destination(head: RequestHead) -> bool:
    """Return whether ``X-Tunnel-Proxy-Dest`` names host and port; raises as the others."""
    return bool(_single(head, DESTINATION_FIELD))


def _host_and_port(head: RequestHead) -> tuple[str, int]:
    name, text = "X-Tunnel-Proxy-Dest", ""
    if DESTINATION_FIELD in head.by_name:
        text = _single(head, DESTINATION_FIELD)
    if not text:
        name, text = "Host", _single(head, b"host")
    if not text:
        raise HeadError(400, f"the request has no Host: write host:port, as {_EXAMPLE}")
    try:
        return split_authority(text)
    except BadAuthority as error:
        text = f"{name} is not a destination, as {_EXAMPLE} is one: {error}"
        raise HeadError(400, text) from None


def _single(head: RequestHead, name: bytes) -> str:
    """Return the value of a field that may be there once, an empty one when it is not."""
    values = head.by_name.get(name)
    if not values:
        return ""
    if len(values) > 1:
        raise HeadError(400, f"{name.decode().title()} is given more than once")
    return values[0].decode("ascii", "backslashreplace")
