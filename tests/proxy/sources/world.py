"""Support for tests of sources, with an API in memory, a directory and a clock."""

from __future__ import annotations

import math
import shutil
import tempfile
from ipaddress import ip_address
from pathlib import Path

from twisted.internet.defer import execute
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.hub.cache.caches import HeldJobs
from tests.kube.fakes import FakeKubeClient
from tests.logged import Logged
from tests.proxy.objects import shown
from yurttunnel.kube.informer import Informers
from yurttunnel.ops import slices
from yurttunnel.proxy import node
from yurttunnel.proxy.node import ThisNode, machine_addresses
from yurttunnel.proxy.sources.sources import Sources

OWN = ip_address("192.0.2.7")
"""The address of the machine, unless a test sets another one."""


class WorldCase(SynchronousTestCase):
    """Tests with sources that are not started."""

    def setUp(self):
        """Make an API and a directory."""
        self.clock = Clock()
        # Otherwise a collection of garbage might add turns.
        self.patch(slices, "WORK_SECONDS", math.inf)
        self.client = FakeKubeClient(self.clock)
        self.informers = Informers(self.clock, self.client)
        self.directory = Path(tempfile.mkdtemp(dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.addresses = frozenset({OWN})
        self.versions = (4, 6)
        self.patch(node, "has_family", lambda version: version in self.versions)
        self.warnings = Logged(self, level=LogLevel.warn)
        self.changes = 0

    def start(self, api=True, manifests=None):
        """Start the sources, and what they need."""
        informers = self.informers if api else None
        self.node = ThisNode(self.clock, self.run_at_once, "here", 30.0, informers)
        self.sources = Sources(self.clock, HeldJobs(), self.node, informers, manifests)
        self.sources.on_changed.append(self.count)
        for service in (self.informers, self.node, self.sources):
            service.startService()
            self.addCleanup(service.stopService)
        self.settle()

    def run_at_once(self, job):
        """Replace the kernel: use the test's addresses, or error; each link has an address."""
        return execute(self.asked if job is machine_addresses else frozenset)

    def asked(self):
        """Answer as the kernel does."""
        if isinstance(self.addresses, Exception):
            raise self.addresses
        return self.addresses

    def count(self):
        """Count a reported change."""
        self.changes += 1

    def settle(self, seconds=0.0):
        """Let the sources process changes, after ``seconds``."""
        self.clock.advance(seconds)
        self.clock.pump([0.01] * 10)

    def shown(self):
        """Return what is served, ``None`` if there is no state."""
        state = self.sources.state()
        return None if state is None else shown(state)

    def endpoints(self, key="default/web TCP IPv4"):
        """Return the endpoints of a virtual service."""
        return self.shown()[key][1]
