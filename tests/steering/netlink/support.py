"""The real kernel, in a network namespace of the test's own."""

from __future__ import annotations

import subprocess

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.e2e.cluster.network import OwnNetwork


def run_at_once(job):
    """Run a job where it is asked for, as no reactor should."""
    return maybeDeferred(job)


def command(*words):
    """Run a program; give what it says. The test is skipped where it is not installed."""
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise SkipTest(f"{words[0]} is not installed") from None
    return done.stdout


class KernelTestCase(SynchronousTestCase):
    """Tests in a network namespace of their own, which has ``addresses``."""

    addresses = ()

    def setUp(self):
        """Go there."""
        self.network = OwnNetwork(self.addresses)
        self.addCleanup(self.network.close)
