"""Socket options are set in the kernel."""

from __future__ import annotations

import socket

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.tunnel import sockets


class SocketOptionTests(SynchronousTestCase):
    """The options of a configured socket, as reported by the kernel."""

    def socket(self, family: int = socket.AF_INET) -> socket.socket:
        """Return an unconnected socket."""
        sock = socket.socket(family, socket.SOCK_STREAM)
        self.addCleanup(sock.close)
        return sock

    def tcp(self, sock: socket.socket, option: int) -> int:
        """Get a TCP option."""
        return sock.getsockopt(socket.IPPROTO_TCP, option)

    def test_session_socket(self) -> None:
        """A session's socket has low latency, a short queue and a silence limit of 25 seconds."""
        sock = self.socket()
        sockets.tune_session_socket(sock)
        self.assertNotEqual(0, self.tcp(sock, socket.TCP_NODELAY))
        self.assertNotEqual(0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        idle = self.tcp(sock, socket.TCP_KEEPIDLE)
        interval = self.tcp(sock, socket.TCP_KEEPINTVL)
        probes = self.tcp(sock, socket.TCP_KEEPCNT)
        self.assertEqual(25, idle + interval * probes)
        self.assertEqual(25_000, self.tcp(sock, socket.TCP_USER_TIMEOUT))
        self.assertEqual(128 * 1024, self.tcp(sock, socket.TCP_NOTSENT_LOWAT))

    def test_local_socket(self) -> None:
        """A local TCP socket of either family has low latency and keepalive, but may stall."""
        for family in (socket.AF_INET, socket.AF_INET6):
            sock = self.socket(family)
            sockets.tune_local_socket(sock)
            self.assertNotEqual(0, self.tcp(sock, socket.TCP_NODELAY))
            self.assertNotEqual(0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            self.assertEqual(15, self.tcp(sock, socket.TCP_KEEPIDLE))
            self.assertEqual(15, self.tcp(sock, socket.TCP_KEEPINTVL))
            self.assertEqual(9, self.tcp(sock, socket.TCP_KEEPCNT))
            self.assertEqual(0, self.tcp(sock, socket.TCP_USER_TIMEOUT))

    def test_unix_socket(self) -> None:
        """A Unix socket has no such options and is left unchanged."""
        sock = self.socket(socket.AF_UNIX)
        sockets.tune_local_socket(sock)
        self.assertEqual(0, sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def test_user_timeout_is_in_seconds(self) -> None:
        """The user timeout is given in seconds, fractions included."""
        sock = self.socket()
        sockets.set_user_timeout(sock, 2.5)
        self.assertEqual(2500, self.tcp(sock, socket.TCP_USER_TIMEOUT))
