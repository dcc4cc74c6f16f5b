"""The service that locks a program's state directory."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.pki.directory import LockedDirectory, StateDirectory, StateError


class LockedDirectoryTests(SynchronousTestCase):
    """:class:`LockedDirectory`."""

    def setUp(self) -> None:
        """Choose a path that does not exist."""
        self.path = Path(self.mktemp()).absolute()

    def test_from_its_making_on(self) -> None:
        """Other processes are excluded before the service is started, and while it runs."""
        locked = LockedDirectory(self.path)
        for begin in (lambda: None, locked.startService):
            begin()
            error = self.assertRaises(StateError, LockedDirectory, self.path)
            self.assertIn(f"{self.path} is in use by process {os.getpid()}", str(error))
        locked.stopService()

    def test_released(self) -> None:
        """Another process gets the lock as soon as the service is stopped, before all else ends."""
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            locked = LockedDirectory(self.path)
            locked.startService()
            locked.stopService()
            self.assertFalse(locked.running)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_files_are_used_meanwhile(self) -> None:
        """It excludes other holders, but not access to the files."""
        locked = LockedDirectory(self.path)
        self.addCleanup(locked.stopService)
        StateDirectory.open(self.path).write("key", b"")
        with StateDirectory.open_existing(self.path).lock():
            self.assertEqual(StateDirectory.open(self.path).names(), ["key"])

    def test_what_is_no_directory(self) -> None:
        """An unusable path is an error, and no lock is held."""
        self.path.write_bytes(b"")
        error = self.assertRaises(StateError, LockedDirectory, self.path)
        self.assertIn("is not a directory", str(error))
        link = Path(self.mktemp()).absolute()
        there = Path(self.mktemp()).absolute()
        link.symlink_to(there)
        self.assertRaises(StateError, LockedDirectory, link)
        self.assertFalse(there.exists())
