"""The contract of cutting connections, for the fake and for the kernel's table."""

from __future__ import annotations

from ipaddress import ip_address

from yurttunnel.steering.interception import Target
from yurttunnel.steering.interfaces import Flow

KUBELET, OTHER, SERVER = 10250, 10255, 10263

EDGE, CLOUD, OWN = (ip_address(text) for text in ("10.20.0.1", "10.20.0.2", "10.20.0.9"))
EDGE_6, OWN_6 = (ip_address(text) for text in ("fd00:20::1", "fd00:20::9"))


def flow(destination, port=KUBELET, responder=None, local=True, to_self=True):
    """Make a flow; by default its original destination answers.

    All addresses in these tests are those of one machine, unless specified.
    """
    return Flow(destination, port, responder or Target(destination, port), local, to_self)


class FlowsContract:
    """Tests; a test case has ``flows``, and overrides the method below that raises."""

    def connect(self, flow):
        """Make a connection as ``flow`` describes."""
        raise NotImplementedError

    def cut(self, is_wrong, ports=(KUBELET,), version=4):
        """Cut, at once."""
        return self.successResultOf(self.flows.cut(version, ports, is_wrong))

    def seen(self, ports=(KUBELET,), version=4):
        """Return the current flows; cut none."""
        seen = []

        def is_wrong(flow):
            seen.append(flow)
            return False

        self.assertEqual(0, self.cut(is_wrong, ports, version))
        return set(seen)

    def test_nothing_there(self):
        """There is nothing to cut."""
        self.assertEqual(0, self.cut(lambda flow: True))
        self.assertEqual(0, self.cut(lambda flow: True, ports=()))

    def test_what_is_seen(self):
        """The original destination of a connection and its answering end are known."""
        direct, led = flow(CLOUD), flow(EDGE, responder=Target(OWN, SERVER))
        for each in (direct, led, flow(EDGE, OTHER)):
            self.connect(each)
        self.assertEqual({direct, led}, self.seen())

    def test_only_what_is_wrong_is_cut(self):
        """The rest stays, and cut flows are not found again."""
        direct, led = flow(CLOUD), flow(EDGE, responder=Target(OWN, SERVER))
        for each in (direct, led):
            self.connect(each)
        self.assertEqual(1, self.cut(lambda each: each.responder.port == SERVER))
        self.assertEqual({direct}, self.seen())
        self.assertEqual(0, self.cut(lambda each: each.responder.port == SERVER))

    def test_several_connections(self):
        """All identical ones are cut, and counted."""
        for _ in range(3):
            self.connect(flow(EDGE))
        self.assertEqual(3, self.cut(lambda each: each.destination == EDGE))
        self.assertEqual(set(), self.seen())

    def test_several_ports(self):
        """Only flows to the given ports are considered, for each of them."""
        for port in (KUBELET, OTHER, SERVER):
            self.connect(flow(CLOUD, port))
        self.assertEqual(2, self.cut(lambda each: True, ports=(KUBELET, OTHER)))
        self.assertEqual({flow(CLOUD, SERVER)}, self.seen((KUBELET, OTHER, SERVER)))

    def test_both_families(self):
        """Only the given family is considered."""
        direct, led = flow(OWN_6), flow(EDGE_6, responder=Target(OWN_6, SERVER))
        for each in (flow(EDGE), direct, led):
            self.connect(each)
        self.assertEqual({direct, led}, self.seen(version=6))
        self.assertEqual(1, self.cut(lambda each: each.destination == EDGE_6, version=6))
        self.assertEqual({direct}, self.seen(version=6))
        self.assertEqual({flow(EDGE)}, self.seen())
