"""The nodes of pods."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers, pod
from yurttunnel.cluster.pods import PODS_SPEC, Pods, node_of
from yurttunnel.kube.resources import PODS


class PodsTests(SynchronousTestCase):
    """Finding the node."""

    def test_found(self):
        """A pod is found by namespace and name while it exists."""
        informers = FakeInformers()
        pods = Pods(informers)
        informers.put(PODS, pod("default", "web", "edge-1"))
        informers.put(PODS, pod("other", "web", "edge-2"))
        self.assertEqual("edge-1", pods.node_of("default", "web"))
        self.assertEqual("edge-2", pods.node_of("other", "web"))
        informers.delete(PODS, "web", "default")
        self.assertIsNone(pods.node_of("default", "web"))

    def test_no_node(self):
        """Pods without a node are not requested, and ignored if they are received."""
        self.assertEqual("spec.nodeName!=", PODS_SPEC.field_selector)
        for malformed in (pod("default", "web"), {"spec": None}, {"spec": {"nodeName": 1}}, {}):
            self.assertEqual("", node_of(malformed))
        informers = FakeInformers()
        pods = Pods(informers)
        informers.put(PODS, pod("default", "web"))
        self.assertIsNone(pods.node_of("default", "web"))

    def test_memory(self):
        """All pods of a node share one string, and nothing else of them is cached."""
        name = "edge-" + str(len(self.id()))
        kept = [node_of(pod("default", f"web-{i}", "".join(list(name)))) for i in range(2)]
        self.assertIs(kept[0], kept[1])
        self.assertIs(str, type(kept[0]))
