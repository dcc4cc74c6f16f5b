"""A DNS controller with an API in memory."""

from __future__ import annotations

from twisted.internet.defer import fail
from twisted.internet.task import Clock
from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, node
from tests.kube.fakes import FakeEvents, FakeKubeClient
from tests.logged import Logged
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.resources import CONFIG_MAPS, NODES, SERVICES
from yurttunnel.steering.dns.controller import DnsController
from yurttunnel.steering.dns.service_ports import ServerPorts

NAMESPACE = "kube-system"
SERVICE = "x-tunnel-server-internal-svc"
NAME = "yurt-tunnel-nodes"
PERIOD = 1800.0

HTTPS = {"name": "https", "protocol": "TCP", "port": 10250, "targetPort": 10263}


def service(address="10.96.0.5", ports=(HTTPS,), **spec):
    """Make the internal Service."""
    return {
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {"type": "ClusterIP", "clusterIP": address, "ports": list(ports), **spec},
    }


class ControllerTestCase(SynchronousTestCase):
    """A controller in a cluster with a node on each side of the tunnel."""

    server = ServerPorts(10263, 10264)

    def setUp(self):
        """Make the controller; tests start it."""
        self.clock = Clock()
        self.clock.advance(1_800_000_000)
        self.client = FakeKubeClient(self.clock)
        self.client.put(NODES, node("edge-1", "10.0.0.1", labels=EDGE))
        self.client.put(NODES, node("cloud-1", "192.0.2.1", labels=CLOUD))
        self.client.put(SERVICES, service())
        self.events = FakeEvents()
        self.make()
        self.addCleanup(self.close)
        self.lines = Logged(self, level=LogLevel.warn)

    def make(self):
        """Make a controller whose caches are not synced yet."""
        self.informers = Informers(self.clock, self.client)
        self.controller = DnsController(
            self.clock,
            self.client,
            self.informers,
            self.events,
            NAMESPACE,
            ProxyPorts(self.informers, NAMESPACE, 10264, lambda *_: None),
            self.server,
            PERIOD,
        )
        self.informers.startService()

    def close(self):
        """Stop everything; no timer may be left."""
        if self.controller.running:
            self.stop()
        self.successResultOf(self.informers.stopService())
        self.assertEqual([], self.clock.getDelayedCalls())

    def start(self):
        """Let it publish."""
        self.controller.startService()
        self.settle()

    def stop(self):
        """Stop it, as a server does that no longer leads."""
        self.successResultOf(self.controller.stopService())

    def settle(self, seconds=3.0):
        """Run everything that is due, and what follows from it."""
        self.clock.pump([0.1] * round(seconds * 10))

    def text(self):
        """Return the published records."""
        return self.client.look(CONFIG_MAPS, NAME, NAMESPACE)["data"]["tunnel-nodes"]

    def ports(self):
        """Return the Service's ports by their numbers: name and target."""
        found = self.client.look(SERVICES, SERVICE, NAMESPACE)["spec"]["ports"]
        return {each["port"]: (each["name"], each["targetPort"]) for each in found}

    def writes(self):
        """Return what was written to the API."""
        return [call for call in self.client.calls if call[0] in ("create", "update")]

    def refuse(self, verb, error):
        """Have writes of a kind fail from now on; return a function that ends this."""
        was = getattr(self.client, verb)

        def refuse(resource, *arguments):
            self.client.calls.append((verb, resource.plural, None))
            return fail(error)

        setattr(self.client, verb, refuse)
        return lambda: setattr(self.client, verb, was)
