"""Ports that two processes never both choose, even of different users."""

from __future__ import annotations

import os
import shutil
import tempfile

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.ports import FreePorts, NoPorts

NOBODY = 65534


class UsersTests(SynchronousTestCase):
    """Two users of one machine."""

    def setUp(self) -> None:
        """Create a directory for locks that all users can write to, like /tmp."""
        if os.geteuid() != 0:
            raise SkipTest("only root can be two users")
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        os.chmod(directory, 0o1777)
        self.patch(tempfile, "tempdir", directory)

    def test_blocks_of_others(self) -> None:
        """A block with the lock file of another user is skipped."""
        self.patch(FreePorts, "BLOCKS", 2)
        (number,) = {0, 1} - {os.getpid() % 2}
        path = f"{tempfile.gettempdir()}/yurttunnel-test-ports-{os.getpid() % 2}"
        with open(path, "w"):
            os.chmod(path, 0o600)
        os.seteuid(NOBODY)
        self.addCleanup(os.seteuid, 0)
        first = FreePorts.FIRST + number * FreePorts.BLOCK
        self.assertIn(FreePorts().take(), range(first, first + FreePorts.BLOCK))
        self.assertRaises(NoPorts, FreePorts().take)
