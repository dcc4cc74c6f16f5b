"""A server in a cluster believes the API before the certificates of agents."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import EDGE, FakeInformers, node
from tests.fakes import FakeSession
from tests.tunnel.certificates import ThrowAwayAuthority
from yurttunnel.kube.resources import NODES
from yurttunnel.server import in_cluster
from yurttunnel.server.options import Options
from yurttunnel.server.process import ServerProcess
from yurttunnel.server.registry import NodeNotConnected


class PartsTestCase(SynchronousTestCase):
    """The parts of a server as they are put together."""

    def setUp(self):
        """Make the parts of a server, over a cluster in memory."""
        self.informers = FakeInformers()
        self.patch(in_cluster, "Informers", lambda *_: self.informers)
        processes = []

        def make_process(*args):
            processes.append(ServerProcess(*args))
            return processes[0]

        self.patch(in_cluster, "ServerProcess", make_process)
        directory = Path(self.mktemp())
        directory.mkdir()
        options = Options()
        options.parseOptions(
            [f"--kube-config={self.configuration(directory)}", f"--cert-dir={directory / 'pki'}"]
        )
        settings = options.settings
        self.server = in_cluster.ClusterServer(MemoryReactorClock(), settings, settings.mode)
        (self.process,) = processes
        self.registry = self.process.registry

    def configuration(self, directory):
        """Write how the API is reached, which nobody does here."""
        certificate = ThrowAwayAuthority("cluster").certificate.public_bytes(Encoding.PEM)
        cluster = {
            "server": "https://192.0.2.100:6443",
            "certificate-authority-data": base64.b64encode(certificate).decode(),
        }
        path = directory / "config"
        path.write_text(
            json.dumps(
                {
                    "current-context": "it",
                    "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                    "clusters": [{"name": "it", "cluster": cluster}],
                    "users": [{"name": "it", "user": {}}],
                }
            )
        )
        return path


class FiguresTests(PartsTestCase):
    """What a scrape shows from the beginning, before there are certificates."""

    def test_each_part_shows_its_own(self):
        """Those that are there in a cluster only."""
        self.informers.setServiceParent = lambda parent: None
        self.server.service()
        names = {family.name.removeprefix("yurttunnel_server_") for family in self.process.metrics}
        for name in (
            "certificate_requests_approved_total",
            "certificate_requests_total",
            "caller_decisions_total",
            "cloud_nodes_counter",
        ):
            self.assertIn(name, names)


class ClaimsTests(PartsTestCase):
    """Who is found by an address."""

    def test_an_address_that_has_become_another_nodes(self):
        """The certificate of its former owner says it still, and counts for nothing."""
        self.informers.put(NODES, node("former", "192.0.2.1", "192.0.2.2", labels=EDGE))
        former = FakeSession("former", addresses=["192.0.2.1", "192.0.2.2"])
        self.registry.add(former)
        self.assertIs(former, self.registry.find("192.0.2.1"))
        self.informers.put(NODES, node("former", "192.0.2.2", labels=EDGE))
        self.informers.put(NODES, node("edge-1", "192.0.2.1", labels=EDGE))
        self.assertRaises(NodeNotConnected, self.registry.find, "192.0.2.1")
        owner = FakeSession("edge-1", addresses=["192.0.2.1"])
        self.registry.add(owner)
        self.assertIs(owner, self.registry.find("192.0.2.1"))
        self.assertIs(former, self.registry.find("192.0.2.2"))
