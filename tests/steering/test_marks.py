"""Tests of the mark of the server's own connections."""

from __future__ import annotations

import errno
import os
import socket

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.logged import Logged
from yurttunnel.steering.marks import MARK, MASK, SocketMarker


class Refusing:
    """A socket that rejects marks."""

    def __init__(self, error):
        self._error = error

    def setsockopt(self, *arguments):
        """Raise the error."""
        raise self._error


class SocketMarkerTests(SynchronousTestCase):
    """Marking sockets."""

    def test_a_socket_is_marked(self):
        """The kernel has the mark, which is within the mask."""
        if os.geteuid() != 0:
            raise SkipTest("only root can mark sockets")
        with socket.socket() as sock:
            SocketMarker()(sock)
            self.assertEqual(MARK, sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK))
        self.assertEqual(MARK, MARK & MASK)

    def test_without_the_right_to(self):
        """The error is logged once, with what to do, and connections are opened all the same."""
        for error in (
            PermissionError(errno.EPERM, "Operation not permitted"),
            OSError(errno.ENOPROTOOPT, "Protocol not available"),
        ):
            self.assert_logged(error)

    def assert_logged(self, error):
        """Check the message about an error, however often it occurs."""
        logged = Logged(self)
        mark = SocketMarker()
        for _ in range(3):
            mark(Refusing(error))
        (warning,) = logged.events
        self.assertIn("CAP_NET_ADMIN", warning["log_format"])
        self.assertEqual(error.strerror, warning["error"])
