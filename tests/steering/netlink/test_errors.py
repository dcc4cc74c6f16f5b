"""Tests of messages about errors of the kernel."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.netlink.errors import as_steering_failed
from yurttunnel.steering.netlink.netlink_socket import NetlinkError


class RefusalsTests(SynchronousTestCase):
    """Messages."""

    def message(self, error, **meanings):
        """Return the message of an error, without what was attempted."""
        with (
            self.assertRaises(SteeringFailed) as caught,
            as_steering_failed("cannot do it", {getattr(errno, k): v for k, v in meanings.items()}),
        ):
            raise error
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        self.assertIs(error, caught.exception.__cause__)
        self.assertTrue(text.startswith("cannot do it: "), text)
        return text.removeprefix("cannot do it: ")

    def test_no_error(self):
        """There is no message."""
        with as_steering_failed("cannot do it", {}):
            pass

    def test_from_the_kernel_or_from_the_socket(self):
        """The same words report what is missing, for errors of both."""
        for error in (NetlinkError(errno.EPERM), OSError(errno.EPERM, "not permitted")):
            self.assertIn("NET_ADMIN", self.message(error))

    def test_meaning_of_codes(self):
        """The meanings of the caller take precedence."""
        self.assertEqual("it is no", self.message(NetlinkError(errno.EPERM), EPERM="it is no"))

    def test_no_answer(self):
        """A socket's timeout has no code of its own."""
        self.assertIn("not answered in time", self.message(TimeoutError("timed out")))

    def test_no_netlink(self):
        """A kernel without netlink is reported."""
        self.assertIn("nfnetlink", self.message(OSError(errno.EPROTONOSUPPORT, "?")))

    def test_other_codes(self):
        """They are passed on."""
        self.assertIn(os.strerror(errno.ENOBUFS), self.message(OSError(errno.ENOBUFS, "?")))
        self.assertIn("error 4999", self.message(NetlinkError(4999)))

    def test_defects(self):
        """Other exceptions are not changed."""
        with self.assertRaises(ZeroDivisionError), as_steering_failed("cannot do it", {}):
            _ = 1 // 0
