"""Files that the programs read: pipes and devices are rejected at once."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from twisted.internet.task import Clock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube.configuration import BadKubeConfiguration
from yurttunnel.kube.kube_config import read_kube_config
from yurttunnel.kube.reloaded_file import ReloadedFile
from yurttunnel.ops.configuration.file import parse_file
from yurttunnel.ops.plain_files import MAX_BYTES, read_plain
from yurttunnel.pki.authorities import AuthorityBundle, BadBundle
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.sources.manifests import read_manifests

REFUSALS = (OSError, UsageError, BadBundle, BadKubeConfiguration)


class PlainFileTests(SynchronousTestCase):
    """A pipe without a writer, an endless device, and a huge file."""

    def setUp(self):
        """Make the pipe and the huge file."""
        directory = Path(self.mktemp())
        directory.mkdir()
        self.pipe, self.huge = directory / "pipe", directory / "huge"
        os.mkfifo(self.pipe)
        self.huge.touch()
        os.truncate(self.huge, 1 << 40)

    def refused(self, path, why):
        """Check that every reader of files reports the reason ``why``."""
        readers = (
            lambda: read_plain(path),
            ReloadedFile(path).read,
            lambda: read_kube_config(path),
            lambda: parse_file(path),
            lambda: AuthorityBundle.file(Clock(), path, print),
            lambda: Options().read_file(path),
        )
        for read in readers:
            with self.assertRaises(
                (OSError, ValueError, UsageError, BadBundle, BadKubeConfiguration)
            ) as caught:
                read()
            self.assertIn(why, str(caught.exception))
        (problem,) = read_manifests(path, {})[path].problems
        self.assertIn(f"it cannot be read: {why}", problem.text)

    def test_refused(self):
        """Pipes, devices and files that are too long are rejected without waiting."""
        self.refused(self.pipe, "it is not a plain file")
        self.refused(Path("/dev/zero"), "it is not a plain file")
        self.refused(self.huge, "it is longer than")

    def test_maximum_size(self):
        """A file of the maximum size is read."""
        os.truncate(self.huge, MAX_BYTES)
        self.assertEqual(MAX_BYTES, len(read_plain(self.huge)))
        self.assertRaises(IsADirectoryError, partial(read_plain, self.huge.parent))
