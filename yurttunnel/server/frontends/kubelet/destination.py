"""The node that a request names, and the address there.

The fields are those of yurttunnel 1.2. A caller that believes it has dialed the kubelet sends the
kubelet's host and port as ``Host``. One that dials the server itself may name the destination in
``X-Tunnel-Proxy-Dest``. If the destination does not determine the node, as 127.0.0.1 does not, the
node is in ``X-Tunnel-Proxy-Host``. In a cluster there is more information than the fields:
:mod:`yurttunnel.server.frontends.kubelet.resolution`.
"""

from __future__ import annotations

from dataclasses import dataclass

from yurttunnel.http.authority import BadAuthority, join_authority, split_authority, strip_port
from yurttunnel.http.head import HeadError, RequestHead

NODE_FIELD = b"x-tunnel-proxy-host"
DESTINATION_FIELD = b"x-tunnel-proxy-dest"
PREFIX = b"x-tunnel-"
"""Fields with this prefix are for the server, and not passed on."""

_EXAMPLE = "edge-1:10250"


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a request: ``host`` and ``port`` as the agent dials them.

    ``node`` is the name or address by which the agent is found.
    """

    node: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port in the form of ``Host``."""
        return join_authority(self.host, self.port)


def destination_of(head: RequestHead) -> Destination:
    """Parse the destination; raises :class:`HeadError` (400) with the correct form."""
    host, port = _host_and_port(head)
    node = named_node(head) if NODE_FIELD in head.by_name else ""
    return Destination(node or host, host, port)


def named_node(head: RequestHead) -> str:
    """Parse ``X-Tunnel-Proxy-Host``, empty if absent; raises like :func:`destination_of`."""
    text = _single(head, NODE_FIELD)
    try:
        return strip_port(text) if text else ""
    except BadAuthority as error:
        text = f"X-Tunnel-Proxy-Host is not a node: {error}; write its name or address"
        raise HeadError(400, text) from None


def names_destination(head: RequestHead) -> bool:
    """Return whether ``X-Tunnel-Proxy-Dest`` names host and port; raises like the others."""
    return bool(_single(head, DESTINATION_FIELD))


def _host_and_port(head: RequestHead) -> tuple[str, int]:
    name, text = "X-Tunnel-Proxy-Dest", ""
    if DESTINATION_FIELD in head.by_name:
        text = _single(head, DESTINATION_FIELD)
    if not text:
        name, text = "Host", _single(head, b"host")
    if not text:
        raise HeadError(400, f"the request has no Host: write host:port, such as {_EXAMPLE}")
    try:
        return split_authority(text)
    except BadAuthority as error:
        text = f"{name} is not a destination such as {_EXAMPLE}: {error}"
        raise HeadError(400, text) from None


def _single(head: RequestHead, name: bytes) -> str:
    """Return the value of a field that may occur once, empty if absent."""
    values = head.by_name.get(name)
    if not values:
        return ""
    if len(values) > 1:
        raise HeadError(400, f"{name.decode().title()} is given more than once")
    return values[0].decode("ascii", "backslashreplace")
