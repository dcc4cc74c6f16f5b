"""Tests of which flows have to be cut."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from twisted.trial.unittest import SynchronousTestCase

from tests.steering.manager_support import INSECURE, SECURE, addresses, flow
from yurttunnel.steering.family import wrong_flows
from yurttunnel.steering.interception import Interception, Match, Target

EDGE, CLOUD, OTHER = "192.168.0.1", "10.0.0.2", "203.0.113.1"
ANYWHERE = Target(None, 10263)


class WrongFlowsTests(SynchronousTestCase):
    """Checks of one flow at a time."""

    def is_wrong(self, flow, match=Match.EDGE_SET, secure=SECURE, **changes):
        """Check a flow with one edge and one cloud node."""
        desired = {
            "version": 4,
            "match": match,
            "edge": addresses(EDGE),
            "cloud": addresses(CLOUD),
            "ports": {10250: secure, 10255: INSECURE},
            **changes,
        }
        nodes = addresses(EDGE, CLOUD)
        return wrong_flows(Interception(**desired), {secure, INSECURE}, nodes)(flow)

    def test_right_listener(self):
        """A flow to an edge node that the right listener answers continues."""
        for match in Match:
            self.assertFalse(self.is_wrong(flow(EDGE, 10250, SECURE), match))
            self.assertFalse(self.is_wrong(flow(EDGE, 10255, INSECURE), match))

    def test_direct(self):
        """A direct flow to an edge node is cut, answered or not."""
        for match in Match:
            self.assertTrue(self.is_wrong(flow(EDGE, 10250), match))

    def test_other_listener(self):
        """A flow that another listener answers than its port now leads to is cut."""
        for responder in (INSECURE, Target(ip_address("10.0.0.9"), 10263)):
            self.assertTrue(self.is_wrong(flow(EDGE, 10250, responder)))

    def test_cloud(self):
        """A direct flow to a cloud node continues; one that we answer is cut."""
        for match in Match:
            self.assertFalse(self.is_wrong(flow(CLOUD, 10250), match))
            self.assertTrue(self.is_wrong(flow(CLOUD, 10250, SECURE), match))

    def test_left_port(self):
        """On a port that is no longer intercepted, flows that we answer are cut."""
        self.assertTrue(self.is_wrong(flow(EDGE, 9100, INSECURE)))
        self.assertFalse(self.is_wrong(flow(EDGE, 9100)))

    def test_third_host(self):
        """Flows to other hosts are intercepted, and so cut, only with cloud-return."""
        self.assertFalse(self.is_wrong(flow(OTHER, 10250)))
        self.assertTrue(self.is_wrong(flow(OTHER, 10250), Match.CLOUD_RETURN))

    def test_service(self):
        """A flow that kube-proxy redirects from the address of our Service to us continues."""
        service = flow("10.96.0.10", 10250, SECURE)
        self.assertFalse(self.is_wrong(service))
        self.assertFalse(self.is_wrong(flow("10.96.0.10", 10250, SECURE, local=False)))

    def test_any_own_address(self):
        """If a listener is on all addresses, any of them is right."""
        for responder in ("127.0.0.1", "10.0.0.1"):
            redirected = flow(EDGE, 10250, Target(ip_address(responder), 10263))
            self.assertFalse(self.is_wrong(redirected, secure=ANYWHERE))
        direct = flow(EDGE, 10250, Target(ip_address(EDGE), 10250))
        self.assertTrue(self.is_wrong(direct, secure=ANYWHERE))

    def test_not_redirected(self):
        """A flow whose original destination was our listener is left alone."""
        self.assertFalse(self.is_wrong(flow(CLOUD, 10263), secure=ANYWHERE))
        self.assertFalse(self.is_wrong(flow(CLOUD, 10263), secure=Target(ip_address(CLOUD), 10263)))

    def test_own_addresses(self):
        """A direct flow to this machine itself continues; one that we answer is cut."""
        for match in Match:
            for address in (EDGE, OTHER):
                direct = replace(flow(address, 10250), to_self=True)
                self.assertFalse(self.is_wrong(direct, match))
                pods = {"pod_ports": {10250: SECURE}}
                self.assertFalse(self.is_wrong(replace(direct, local=False), match, **pods))
            led = replace(flow(EDGE, 10250, SECURE), to_self=True)
            self.assertTrue(self.is_wrong(led, match))

    def test_pods(self):
        """Forwarded flows are checked with the ports of pods."""
        direct = flow(EDGE, 10250, local=False)
        led = flow(EDGE, 10250, SECURE, local=False)
        self.assertFalse(self.is_wrong(direct))
        self.assertTrue(self.is_wrong(led))
        self.assertTrue(self.is_wrong(direct, pod_ports={10250: SECURE}))
        self.assertFalse(self.is_wrong(led, pod_ports={10250: SECURE}))

    def test_nothing(self):
        """If nothing is intercepted any more, flows that we answer are cut, and no others."""
        self.assertTrue(self.is_wrong(flow(EDGE, 10250, SECURE), edge=frozenset()))
        self.assertFalse(self.is_wrong(flow(EDGE, 10250), edge=frozenset()))
