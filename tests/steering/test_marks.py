"""The server's own connections carry a mark."""

from __future__ import annotations

import errno
import os
import socket

from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.steering.marks import MARK, MASK, OwnMark


class Refusing:
    """A socket that takes no mark."""

    def __init__(self, error):
        self._error = error

    def setsockopt(self, *arguments):
        """Refuse."""
        raise self._error


class OwnMarkTests(SynchronousTestCase):
    """What is done to sockets."""

    def test_a_socket_is_marked(self):
        """The kernel has the mark, which is within the mask."""
        if os.geteuid() != 0:
            raise SkipTest("only root can mark sockets")
        with socket.socket() as sock:
            OwnMark()(sock)
            self.assertEqual(MARK, sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK))
        self.assertEqual(MARK, MARK & MASK)

    def test_without_the_right_to(self):
        """It is told once, with what to do, and connections are made all the same."""
        for error in (
            PermissionError(errno.EPERM, "Operation not permitted"),
            OSError(errno.ENOPROTOOPT, "Protocol not available"),
        ):
            self.check_told(error)

    def check_told(self, error):
        """Check what is told of one error, however often it comes."""
        events = []
        globalLogPublisher.addObserver(events.append)
        self.addCleanup(globalLogPublisher.removeObserver, events.append)
        mark = OwnMark()
        for _ in range(3):
            mark(Refusing(error))
        (told,) = events
        self.assertIn("CAP_NET_ADMIN", told["log_format"])
        self.assertEqual(error.strerror, told["error"])
