"""Revocation on a disk that is really full: a small one, in a namespace of its own."""

from __future__ import annotations

import datetime
import errno
import os
import secrets
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

from twisted.trial.unittest import SkipTest, TestCase

from tests.e2e.support import which
from tests.pki.support import clock_now
from yurttunnel.pki import revocation
from yurttunnel.pki.directory import RESERVE, StateDirectory
from yurttunnel.pki.records import NodeRecords
from yurttunnel.pki.revocation import RESERVE_INTERVAL, Revocation, Revocations, revoke_node

SIZE, INODES = 4 << 20, 64
PAGE = 4096


class SmallDiskTests(TestCase):
    """A server reserves space for revocations on a disk of 4 MiB, before the disk is full."""

    def setUp(self) -> None:
        """Mount the disk in the namespace of a process of this test, and access it through that."""
        if os.geteuid() != 0:
            raise SkipTest("only root can mount a disk")
        mount_point = Path(self.mktemp()).absolute()
        mount_point.mkdir(mode=0o700)
        options = f"mode=0700,size={SIZE},nr_inodes={INODES}"
        script = f"mount -t tmpfs -o {options} tmpfs {mount_point} && echo mounted && exec cat"
        process = subprocess.Popen(
            [which("unshare"), "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.addCleanup(process.communicate)
        assert process.stdout is not None
        if process.stdout.readline() != b"mounted\n":
            raise SkipTest("this machine lets nobody mount a disk in a namespace")
        self.disk = Path(f"/proc/{process.pid}/root{mount_point}")
        self.clock = clock_now()
        self.directory = StateDirectory.open(self.disk / "state")

    def have_revoked(self, number: int) -> None:
        """Write a list of a number of revocations."""
        now = datetime.datetime.now(datetime.UTC)
        revocation._save(
            self.directory,
            [
                Revocation(f"edge-{n:05}.site.example", secrets.token_hex(16), now)
                for n in range(number)
            ],
        )

    def start(self) -> Revocations:
        """Start the server's part."""
        revocations = Revocations(self.clock, self.directory, NodeRecords(self.directory))
        revocations.startService()
        self.addCleanup(revocations.stopService)
        return revocations

    def until_full(self, take: Callable[[], object]) -> None:
        """Write until the disk is full."""
        with self.assertRaises(OSError) as caught:
            while True:
                take()
        self.assertEqual(caught.exception.errno, errno.ENOSPC)

    def fill_up(self) -> None:
        """Fill the disk to the last byte."""
        with (self.disk / "filler").open("wb", buffering=0) as file:
            self.until_full(lambda: file.write(bytes(PAGE)))

    def fill(self) -> None:
        """Use all space and all inodes."""
        names = count()
        self.fill_up()
        self.until_full(lambda: (self.disk / f"empty-{next(names)}").touch())

    def assert_revokes(self, revocations: Revocations) -> None:
        """Assert that another node is revoked on the full disk, and the server notices."""
        revoked: list[str] = []
        revocations.on_revoked(revoked.append)
        self.assertIsNone(revocations.warning)
        self.fill()
        self.assertIn("free space now", revoke_node(self.clock, self.directory.path, "evil"))
        self.clock.advance(1)
        self.assertEqual(revoked, ["evil"])

    def test_the_list_is_long_at_the_start(self) -> None:
        """However long the list is, there is space for a new one besides the old one."""
        self.have_revoked(5000)
        self.assert_revokes(self.start())

    def test_the_list_grows(self) -> None:
        """The reserve grows with the list."""
        revocations = self.start()
        self.have_revoked(3000)
        self.clock.advance(1)
        self.have_revoked(5000)
        self.clock.pump([1] * int(RESERVE_INTERVAL + 1))
        self.assert_revokes(revocations)

    def test_nothing_was_locked_before(self) -> None:
        """The first revocation needs no file that does not exist yet."""
        self.assert_revokes(self.start())

    def test_no_space_to_reserve(self) -> None:
        """The reserve stays if the disk has no more space, and readiness reports that."""
        revocations = self.start()
        kept = (self.directory.path / RESERVE).stat().st_blocks
        self.have_revoked(3000)
        self.fill_up()
        self.clock.pump([1] * int(RESERVE_INTERVAL + 1))
        self.assertIn("the disk is full", revocations.warning or "")
        self.assertEqual((self.directory.path / RESERVE).stat().st_blocks, kept)
