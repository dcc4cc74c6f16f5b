"""The real kernel, in the test's own network namespace."""

from __future__ import annotations

import subprocess

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.e2e.cluster.network import ClusterNetwork


def run_at_once(job):
    """Run a job in the calling thread, unlike a reactor."""
    return maybeDeferred(job)


def command(*words):
    """Run a program; return its output. The test is skipped if it is not installed."""
    try:
        done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise SkipTest(f"{words[0]} is not installed") from None
    return done.stdout


class KernelTestCase(SynchronousTestCase):
    """Tests in their own network namespace, with ``addresses``."""

    addresses = ()

    def setUp(self):
        """Enter the namespace."""
        self.network = ClusterNetwork(self.addresses)
        self.addCleanup(self.network.close)
