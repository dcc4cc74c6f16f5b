"""Ports at ``::`` accept both address families, whatever the machine's default is."""

from __future__ import annotations

import socket
from pathlib import Path

from twisted.internet import tcp
from twisted.internet.protocol import ServerFactory
from twisted.internet.testing import MemoryReactorClock

from tests.steering.netlink.support import KernelTestCase
from yurttunnel.ops.listen import listen_tcp
from yurttunnel.tunnel.direct.reactor import DirectReactor


class ListeningReactor(MemoryReactorClock):
    """A reactor that listens on real sockets."""

    def listenTCP(self, port, factory, backlog=50, interface=""):  # Twisted's name
        """Listen on a real socket."""
        listening = tcp.Port(port, factory, backlog, interface, self)
        listening.startListening()
        return listening


class BothFamiliesTests(KernelTestCase):
    """Listening on a machine with ``net.ipv6.bindv6only``."""

    def setUp(self):
        """Set ``net.ipv6.bindv6only``."""
        super().setUp()
        Path("/proc/sys/net/ipv6/bindv6only").write_text("1")

    def test_unspecified(self):
        """IPv4 clients reach a port at the unspecified IPv6 address."""
        for reactor in (ListeningReactor(), DirectReactor(ListeningReactor())):
            port = listen_tcp(reactor, "--bind-address", "::", 0, ServerFactory())
            self.addCleanup(port.stopListening)
            for host in ("127.0.0.1", "::1"):
                socket.create_connection((host, port.getHost().port), 5).close()
