"""The real kernel, in the test's own network namespace."""

from __future__ import annotations

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from tests.e2e.cluster.network import ClusterNetwork


def run_at_once(job):
    """Run a job in the calling thread, unlike a reactor."""
    return maybeDeferred(job)


class KernelTestCase(SynchronousTestCase):
    """Tests in their own network namespace, with ``addresses``."""

    addresses = ()

    def setUp(self):
        """Enter the namespace."""
        self.network = ClusterNetwork(self.addresses)
        self.addCleanup(self.network.close)
