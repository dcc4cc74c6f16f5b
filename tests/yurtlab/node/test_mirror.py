"""The mirror of an API: objects that the node gets, and those that it reports."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.fakes import FakeKubeClient
from yurtlab.api import resources as local
from yurtlab.api.errors import ApiError
from yurtlab.api.store import Store
from yurtlab.node.mirror import Mirror
from yurttunnel.kube import resources as remote
from yurttunnel.kube.errors import ApiUnreachable


def pod(name="web", node="edge-1", **metadata):
    """Return a pod as in the API."""
    return {
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending"},
    }


class MirrorTests(SynchronousTestCase):
    """A node ``edge-1``, and the API to which it is connected over the network."""

    def setUp(self):
        """Start one."""
        self.clock = Clock()
        self.clock.advance(1_700_000_000)
        self.api = FakeKubeClient(self.clock)
        self.store = Store(self.clock)
        self.mirror = Mirror(self.clock, self.api, self.store, "edge-1")
        self.mirror.startService()
        self.addCleanup(self.mirror.stopService)

    def own(self, kind, name, namespace=None):
        """Return the node's copy of an object, ``None`` if it has none."""
        try:
            return self.store.get(kind, namespace, name)
        except ApiError:
            return None

    def test_pods_of_the_node(self):
        """The node gets its own pods only, with their identity in the API."""
        created = self.api.put(remote.PODS, pod())
        self.api.put(remote.PODS, pod("other", "edge-2"))
        self.assertEqual(
            self.own(local.PODS, "web", "default")["metadata"]["uid"], created["metadata"]["uid"]
        )
        self.assertIsNone(self.own(local.PODS, "other", "default"))

    def test_configuration_of_pods(self):
        """The node gets configuration, its changes and its deletion."""
        metadata = {"name": "settings", "namespace": "default"}
        self.api.put(remote.CONFIG_MAPS, {"metadata": metadata, "data": {"a": "1"}})
        self.api.put(remote.SECRETS, {"metadata": metadata, "data": {"b": "Mg=="}})
        self.api.put(remote.CONFIG_MAPS, {"metadata": metadata, "data": {"a": "2"}})
        self.assertEqual(self.own(local.CONFIG_MAPS, "settings", "default")["data"], {"a": "2"})
        self.assertEqual(self.own(local.SECRETS, "settings", "default")["data"], {"b": "Mg=="})
        self.api.remove(remote.CONFIG_MAPS, "settings", "default")
        self.assertIsNone(self.own(local.CONFIG_MAPS, "settings", "default"))

    def test_status_of_a_pod(self):
        """The API gets the status, and the API's own changes are not reverted."""
        self.api.put(remote.PODS, pod())
        self.store.update_status(local.PODS, "default", "web", {"phase": "Running"})
        self.assertEqual(self.api.look(remote.PODS, "web", "default")["status"]["phase"], "Running")
        changed = self.api.look(remote.PODS, "web", "default")
        changed["metadata"]["labels"] = {"a": "b"}
        self.api.put(remote.PODS, changed)
        own = self.own(local.PODS, "web", "default")
        self.assertEqual(
            (own["metadata"]["labels"], own["status"]["phase"]), ({"a": "b"}, "Running")
        )

    def test_end_of_a_pod(self):
        """A pod removed by the node is removed from the API, and vice versa."""
        self.api.put(remote.PODS, pod())
        self.store.remove(local.PODS, "default", "web")
        self.assertIsNone(self.api.look(remote.PODS, "web", "default"))
        self.api.put(remote.PODS, pod("next"))
        self.api.remove(remote.PODS, "next", "default")
        self.assertIsNone(self.own(local.PODS, "next", "default"))

    def test_another_pod_of_the_name(self):
        """A pod's deletion is delivered before the next pod with its name."""
        first = self.api.put(remote.PODS, pod())["metadata"]["uid"]
        seen = []
        self.store.watch(
            local.PODS, lambda change, one: seen.append((change, one["metadata"]["uid"]))
        )
        self.api.end_watches()
        self.api.remove(remote.PODS, "web", "default")
        second = self.api.put(remote.PODS, pod())["metadata"]["uid"]
        self.clock.pump([1] * 60)
        self.assertEqual(seen, [("ADDED", first), ("DELETED", first), ("ADDED", second)])

    def test_the_node(self):
        """The node is registered once, with its labels, and its status and lease are reported."""
        body = {"metadata": {"name": "edge-1", "labels": {"a": "b"}}, "status": {"phase": "x"}}
        self.store.create(local.NODES, None, body)
        lease = {"metadata": {"name": "edge-1"}, "spec": {"renewTime": "1"}}
        self.store.create(local.LEASES, "kube-node-lease", lease)
        lease["spec"]["renewTime"] = "2"
        self.store.replace(local.LEASES, "kube-node-lease", "edge-1", lease)
        self.store.update_status(local.NODES, None, "edge-1", {"phase": "y"})
        found = self.api.look(remote.NODES, "edge-1")
        self.assertEqual(
            (found["metadata"]["labels"], found["status"]), ({"a": "b"}, {"phase": "y"})
        )
        reported = self.api.look(remote.LEASES, "edge-1", "kube-node-lease")
        self.assertEqual(reported["spec"], {"renewTime": "2"})

    def test_registered_node(self):
        """If the node is registered already, only its status is replaced."""
        known = self.api.put(remote.NODES, {"metadata": {"name": "edge-1", "labels": {"c": "d"}}})
        self.store.adopt(local.NODES, {**known, "status": {"phase": "x"}})
        found = self.api.look(remote.NODES, "edge-1")
        self.assertEqual(found["metadata"]["uid"], known["metadata"]["uid"])
        self.assertEqual(
            (found["metadata"]["labels"], found["status"]), ({"c": "d"}, {"phase": "x"})
        )

    def test_events(self):
        """Events are reported with their counts."""
        event = {"metadata": {"name": "web.1"}, "count": 1}
        self.store.create(local.EVENTS, "default", event)
        self.store.replace(local.EVENTS, "default", "web.1", {**event, "count": 2})
        self.assertEqual(self.api.look(remote.EVENTS, "web.1", "default")["count"], 2)

    def test_without_the_api(self):
        """The node continues without the API, and reports all changes when it is reachable
        again.
        """
        self.api.put(remote.PODS, pod())
        self.api.fail(ApiUnreachable("away"))
        self.store.update_status(local.PODS, "default", "web", {"phase": "Running"})
        self.store.create(local.EVENTS, "default", {"metadata": {"name": "web.1"}})
        self.assertIsNotNone(self.own(local.PODS, "web", "default"))
        self.clock.advance(10)
        self.api.recover()
        self.clock.pump([1] * 120)
        self.assertEqual(self.api.look(remote.PODS, "web", "default")["status"]["phase"], "Running")
        self.assertIsNotNone(self.api.look(remote.EVENTS, "web.1", "default"))
