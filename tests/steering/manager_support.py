"""A manager with a cluster, a firewall, sets and flows in memory."""

from __future__ import annotations

import random
from ipaddress import ip_address

from twisted.internet.defer import fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import CLOUD, EDGE, FakeInformers, config_map, node
from tests.logged import Logged
from tests.steering.fake_firewall import FakeFirewall
from tests.steering.fakes import FakeAddressSets, FakeFlows
from yurttunnel.cluster.nodes import Nodes
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import ClusterAddresses
from yurttunnel.kube.resources import CONFIG_MAPS, NODES
from yurttunnel.steering.desired_state import Listeners, SteeringSettings
from yurttunnel.steering.failures import SteeringFailed
from yurttunnel.steering.interception import Target
from yurttunnel.steering.interfaces import Firewalls, Flow
from yurttunnel.steering.manager import SETTLE_SECONDS, SteeringManager

PERIOD = 60.0
SECURE = Target(ip_address("10.0.0.1"), 10263)
INSECURE = Target(ip_address("127.0.0.1"), 10264)
SECURE6 = Target(ip_address("fd00::1"), 10263)
INSECURE6 = Target(ip_address("::1"), 10264)
EDGE4, EDGE6 = "YURTTUNNEL-EDGE4", "YURTTUNNEL-EDGE6"

RULES = {10250: (EDGE4, SECURE, None), 10255: (EDGE4, INSECURE, None)}
"""The rules for an edge node with an IPv4 address."""

REFUSED = SteeringFailed("iptables-restore: line 3 failed")


def addresses(*texts):
    """Return a set of addresses."""
    return frozenset(map(ip_address, texts))


def flow(destination, port, responder=None, local=True):
    """Make a flow; ``responder`` is a target, by default the destination itself."""
    address = ip_address(destination)
    return Flow(address, port, responder or Target(address, port), local)


class ManagerTestCase(SynchronousTestCase):
    """The environment of a manager, without a manager."""

    def setUp(self):
        """Make a machine, and record what is logged."""
        self.patch(random, "uniform", lambda low, high: high)
        self.make_machine()
        self.lines = Logged(self, "yurttunnel.steering")

    def make_machine(self):
        """Make a cluster with a cloud node and an edge node, and a server that listens."""
        self.clock = Clock()
        self.calls = []
        self.sets = FakeAddressSets()
        self.flows = FakeFlows()
        self.sets.calls = self.flows.calls = self.calls
        self.firewall = FakeFirewall(4, self.sets, self.calls)
        self.firewall6 = FakeFirewall(6, self.sets, self.calls)
        self.found = {4: self.firewall, 6: self.firewall6}
        self.missing = {}
        self.searches = 0
        self.search_failure = None
        self.closed = None
        self.cpu_seconds = 0.0
        self.informers = FakeInformers()
        self.put("cloud-1", "10.0.0.1", labels=CLOUD)
        self.put("edge-1", "192.168.0.1", labels=EDGE)

    def put(self, *args, **kwargs):
        """Create or change a node."""
        self.informers.put(NODES, node(*args, **kwargs))

    def put_ports(self, **data):
        """Create or change the ConfigMap of the ports."""
        self.informers.put(CONFIG_MAPS, config_map("kube-system", **data))

    def settings(self, **changes):
        """Return the settings of the command line."""
        kept = {
            "listeners": {4: Listeners(SECURE, INSECURE), 6: Listeners(SECURE6, INSECURE6)},
            "match": None,
            "pods": False,
            "passthrough_ports": frozenset({10250}),
            "period": PERIOD,
        }
        return SteeringSettings(**{**kept, **changes})

    def find(self):
        """Detect the firewalls of the machine."""
        self.searches += 1
        if self.search_failure is not None:
            return fail(self.search_failure)
        return succeed(Firewalls(dict(self.found), dict(self.missing)))

    def manager(self, **changes):
        """Make a manager that is not started."""
        return SteeringManager(
            self.clock,
            self.settings(**changes),
            Nodes(self.informers),
            ProxyPorts(self.informers, "kube-system", 10264, lambda *_: None),
            ClusterAddresses(self.informers, "kube-system"),
            self.find,
            self.sets,
            self.flows,
            lambda: self.cpu_seconds,
            lambda: self.not_accepting(),
        )

    def not_accepting(self):
        """Return why the listeners do not accept."""
        return self.closed

    def start(self, **changes):
        """Start a manager, and run what is due at once."""
        manager = self.manager(**changes)
        manager.startService()
        self.clock.advance(0)
        return manager

    def settle(self):
        """Let a change take effect."""
        self.clock.advance(SETTLE_SECONDS)

    def logged(self, *words):
        """Return the log lines that contain all these words."""
        return [line for line in self.lines if all(word in line for word in words)]
