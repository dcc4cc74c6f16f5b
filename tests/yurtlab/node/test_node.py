"""The node's service: its object, its pods, and its shutdown."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from tests.waiting import until
from tests.yurtlab.node.support import container
from yurtlab.api.errors import ApiError
from yurtlab.api.resources import LEASES, NODES, PODS
from yurtlab.api.store import Store
from yurtlab.node.leftovers import marked_processes, running
from yurtlab.node.node import HEARTBEAT_SECONDS, Node, NodeSettings


class NodeTests(TestCase):
    """A node with its own store."""

    def setUp(self):
        """Start it."""
        self.store = Store(reactor)
        self.directory = Path(self.mktemp())
        settings = NodeSettings("edge-1", "127.0.0.1", 10250, self.directory)
        self.node = Node(reactor, self.store, settings)
        self.node.startService()
        self.addCleanup(self.stop)

    def stop(self):
        """Stop it, once."""
        return self.node.stopService() if self.node.running else None

    def create(self, *containers, name="web", node="edge-1", **spec):
        """Create a pod."""
        body = {
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": list(containers), **spec},
            "status": {"phase": "Pending"},
        }
        return self.store.create(PODS, "default", body)

    def phase(self, name="web"):
        """Return the phase of a pod, ``None`` after its removal."""
        try:
            return self.store.get(PODS, "default", name).get("status", {}).get("phase")
        except ApiError:
            return None

    def left(self):
        """Return the processes of the node's pods."""
        return marked_processes(running(), f"{self.node._pod_settings.run}/")

    def test_registered(self):
        """The node is registered with the machine's resources, and is ready."""
        node = self.store.get(NODES, None, "edge-1")
        self.assertEqual(node["metadata"]["labels"]["kubernetes.io/hostname"], "edge-1")
        status = node["status"]
        self.assertEqual(status["daemonEndpoints"], {"kubeletEndpoint": {"Port": 10250}})
        self.assertEqual(
            status["addresses"],
            [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": "edge-1"},
            ],
        )
        self.assertEqual(status["capacity"]["cpu"], str(len(os.sched_getaffinity(0))))
        self.assertRegex(status["capacity"]["memory"], r"^\d{5,}Ki$")
        self.assertEqual(status["nodeInfo"]["kernelVersion"], os.uname().release)
        conditions = {one["type"]: one for one in status["conditions"]}
        self.assertEqual(conditions["Ready"]["status"], "True")
        self.assertEqual(
            sorted(conditions), ["DiskPressure", "MemoryPressure", "PIDPressure", "Ready"]
        )

    def test_heartbeat(self):
        """A heartbeat keeps the transition times, and what others wrote."""
        before = self.store.get(NODES, None, "edge-1")["status"]
        before["images"] = ["theirs"]
        for condition in before["conditions"]:
            condition["lastTransitionTime"] = condition["lastHeartbeatTime"] = "then"
        self.store.update_status(NODES, None, "edge-1", before)
        self.node._send_heartbeat()
        after = self.store.get(NODES, None, "edge-1")["status"]
        self.assertEqual(after["images"], ["theirs"])
        ready = after["conditions"][-1]
        self.assertEqual(ready["lastTransitionTime"], "then")
        self.assertNotEqual(ready["lastHeartbeatTime"], "then")

    def test_reregistered(self):
        """A node that was deleted registers again at once; other nodes do not return."""
        self.store.create(NODES, None, {"metadata": {"name": "edge-2"}})
        before = self.store.get(NODES, None, "edge-1")["metadata"]["uid"]
        for name in ("edge-1", "edge-2"):
            self.store.remove(NODES, None, name)
        (node,) = self.store.list(NODES)
        self.assertEqual(node["metadata"]["name"], "edge-1")
        self.assertNotEqual(node["metadata"]["uid"], before)
        self.assertEqual(node["status"]["conditions"][-1]["type"], "Ready")

    async def test_deleted_after_the_end(self):
        """A stopped node does not register again."""
        await self.stop()
        self.store.remove(NODES, None, "edge-1")
        self.assertEqual(self.store.list(NODES), [])

    def test_lease(self):
        """Every heartbeat renews the node's lease, which is valid for several intervals."""
        node = self.store.get(NODES, None, "edge-1")
        before = self.store.get(LEASES, "kube-node-lease", "edge-1")
        (owner,) = before["metadata"]["ownerReferences"]
        self.assertEqual((owner["kind"], owner["uid"]), ("Node", node["metadata"]["uid"]))
        self.assertEqual(before["spec"]["holderIdentity"], "edge-1")
        self.assertRegex(before["spec"]["renewTime"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        self.assertGreater(before["spec"]["leaseDurationSeconds"], 2 * HEARTBEAT_SECONDS)
        self.node._send_heartbeat()
        after = self.store.get(LEASES, "kube-node-lease", "edge-1")
        self.assertGreater(after["spec"]["renewTime"], before["spec"]["renewTime"])

    async def test_pods(self):
        """It runs the pods that are bound to it, and no others."""
        self.create(container("sleep 1000"))
        self.create(container("sleep 1000"), name="other", node="edge-2")
        await until(lambda: self.phase() == "Running", "the pod runs")
        self.assertEqual(self.phase("other"), "Pending")
        self.assertEqual([pod["metadata"]["name"] for pod in self.node._list_pods()], ["web"])
        self.assertIsNotNone(self.node._find_pod("default", "web"))
        self.assertIsNone(self.node._find_pod("default", "other"))

    async def test_bound_later(self):
        """A pod that is bound later is run then."""
        self.store.create(
            PODS,
            "default",
            {"metadata": {"name": "web"}, "spec": {"containers": [container("sleep 1000")]}},
        )
        body = self.store.get(PODS, "default", "web")
        body["spec"]["nodeName"] = "edge-1"
        self.store.replace(PODS, "default", "web", body)
        await until(lambda: self.phase() == "Running", "the pod runs")

    async def test_deleted(self):
        """A deleted pod is terminated, and removed from the store and the disk."""
        self.create(container("sleep 1000"))
        await until(lambda: self.phase() == "Running", "the pod runs")
        self.store.mark_deleted(PODS, "default", "web", 30)
        await until(lambda: self.phase() is None, "the pod is gone")
        self.assertEqual(self.left(), [])
        self.assertEqual(list((self.directory / "pods").iterdir()), [])
        self.assertEqual(self.node._pods, {})

    async def test_deleted_by_force(self):
        """A pod that is removed from the store is killed at once."""
        self.create(container("trap '' TERM; echo up; while :; do sleep 1; done"))
        await until(lambda: self.phase() == "Running", "the pod runs")
        self.store.remove(PODS, "default", "web")
        await until(lambda: not self.node._pods, "it has ended")
        self.assertEqual(self.left(), [])

    async def test_replaced(self):
        """A new pod with the name of one that terminates is a different pod."""
        self.create(container("trap '' TERM; echo up; while :; do sleep 1; done"))
        await until(lambda: self.phase() == "Running", "the pod runs")
        old = self.node._find_pod("default", "web")
        self.store.remove(PODS, "default", "web")
        self.create(container("sleep 1000"))
        self.assertIsNot(self.node._find_pod("default", "web"), old)
        await until(lambda: self.phase() == "Running", "the other runs")

    async def test_stop(self):
        """After a stop, no process and no timer is left."""
        for name in ("a", "b"):
            self.create(container("setsid sleep 1000 & exec sleep 1000"), name=name)
        await until(lambda: self.phase("a") == self.phase("b") == "Running", "both run")
        await self.stop()
        self.assertEqual(self.left(), [])
        self.assertRaises(ChildProcessError, os.waitpid, -1, os.WNOHANG)
