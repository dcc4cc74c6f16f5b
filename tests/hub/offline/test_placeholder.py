"""The secret that signs placeholder tokens."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.offline.placeholder import KEY, SECRET_BYTES, kept_secret
from yurttunnel.pki.directory import StateDirectory, StateError


class SecretTests(SynchronousTestCase):
    """A file in the directory of keys."""

    def setUp(self):
        """Create a directory."""
        self.directory = StateDirectory.open(Path(self.mktemp()))

    def test_outlives_the_process(self):
        """It is created once, and replaced only if the file is invalid."""
        secret = kept_secret(self.directory)
        self.assertEqual(SECRET_BYTES, len(secret))
        self.assertEqual(secret, kept_secret(self.directory))
        self.directory.write(KEY, secret[1:])
        self.assertNotEqual(secret, kept_secret(self.directory))
        self.assertEqual(0o600, (self.directory.path / KEY).stat().st_mode & 0o777)

    def test_directory_that_cannot_be_written(self):
        """If it cannot be stored, it lasts as long as the process, which is logged."""
        secrets = set()
        for number in (errno.EROFS, errno.ENOSPC):
            with (
                mock.patch("os.open", side_effect=OSError(number, "no")),
                mock.patch.object(self.directory, "read", return_value=None),
                capturedLogs() as logged,
            ):
                secrets.add(kept_secret(self.directory))
            (event,) = logged
            self.assertIn("after a restart", formatEvent(event))
        self.assertEqual(2, len(secrets))
        self.assertEqual({SECRET_BYTES}, {len(each) for each in secrets})
        self.assertEqual([], self.directory.names())

    def test_secret_that_others_can_read(self):
        """A secret that others can read is neither used nor replaced."""
        kept_secret(self.directory)
        (self.directory.path / KEY).chmod(0o644)
        self.assertRaises(StateError, kept_secret, self.directory)
