"""Files that the programs read: pipes and devices in their places are refused at once."""

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
    """A pipe that nobody writes to, a device without an end, and a huge file."""

    def setUp(self):
        """Make them."""
        directory = Path(self.mktemp())
        directory.mkdir()
        self.pipe, self.huge = directory / "pipe", directory / "huge"
        os.mkfifo(self.pipe)
        self.huge.touch()
        os.truncate(self.huge, 1 << 40)

    def refused(self, path, why):
        """Check that everything that reads a file gives the reason."""
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
        """Nothing waits, and nothing is read beyond the maximum."""
        self.refused(self.pipe, "it is not a plain file")
        self.refused(Path("/dev/zero"), "it is not a plain file")
        self.refused(self.huge, "it is longer than")

    def test_most(self):
        """The maximum itself is read."""
        os.truncate(self.huge, MAX_BYTES)
        self.assertEqual(MAX_BYTES, len(read_plain(self.huge)))
        self.assertRaises(IsADirectoryError, partial(read_plain, self.huge.parent))
