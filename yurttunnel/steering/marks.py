"""The mark on packets by which the firewall recognizes the server's own connections.

These must never be redirected to the server. Their destination does not distinguish them, because
with ``--intercept-match cloud-return`` any address may be redirected.
"""

from __future__ import annotations

import socket

from twisted.logger import Logger

MARK = 0x59
MASK = 0xFF
"""The value and mask of ``SO_MARK`` (socket(7)). Other programs that mark packets on a node use
other bits: kube-proxy (0x4000, 0x8000), Calico (0xffff0000) and Cilium (0xf00). But if Cilium joins
several clusters, the low byte of identities is the id of the cluster: in cluster 89 these look like
our own."""

_SO_MARK = getattr(socket, "SO_MARK", 36)


class SocketMarker:
    """Marks sockets as the server's own; logs once if that fails.

    It requires the capability CAP_NET_ADMIN, and a kernel that supports marks.
    """

    _log = Logger()
    _refused = False

    def __call__(self, sock: socket.socket) -> None:
        """Mark ``sock``, which is not connected yet."""
        if self._refused:
            return
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_MARK, MARK)
        except OSError as error:
            self._refused = True
            self._log.warn(
                "--enable-iptables: the server's own connections cannot be marked ({error}), which"
                " needs the capability CAP_NET_ADMIN (deploy/overlays/iptables)",
                error=error.strerror,
            )
