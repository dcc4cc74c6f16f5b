"""How the firewall knows the server's own connections: by the mark that their packets carry.

They must never be led to the server again. A destination tells nothing, since with
``--intercept-match cloud-return`` any address may be led there.
"""

from __future__ import annotations

import socket

from twisted.logger import Logger

MARK = 0x59
MASK = 0xFF
"""Of ``SO_MARK`` (socket(7)). What else marks packets on a node has other bits: kube-proxy (0x4000,
0x8000), Calico (0xffff0000) and Cilium (0xf00). Where Cilium joins several clusters, though, it
keeps the id of a cluster in the low byte of identities: in cluster 89 these look like our own."""

_SO_MARK = getattr(socket, "SO_MARK", 36)


class OwnMark:
    """Marks sockets as the server's own; where that is refused it says so once.

    It takes the capability CAP_NET_ADMIN, and a kernel that has marks.
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
