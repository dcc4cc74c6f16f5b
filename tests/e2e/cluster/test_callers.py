"""Who may ask a server for a kubelet."""

from __future__ import annotations

import json

from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import NAMESPACE, SERVERS

READER = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "reader", "namespace": NAMESPACE},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "reader"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "reader",
            },
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": NAMESPACE}],
        },
    ],
}
"""Somebody who may read metrics of nodes and nothing else, as Prometheus does."""


class CallerTests(ClusterTestCase):
    """Callers of port 10263 with a bearer token."""

    async def test_tokens(self):
        """A token is good for what the cluster allows its owner, and for nothing more."""
        world = await self.whole_cluster("edge-1")
        await world.kubectl.output("apply", "-f", "-", stdin=json.dumps(READER).encode())
        token = await world.token("reader")

        async def ask(path, by=token):
            return await world.ask_kubelet(SERVERS[0], "edge-1:10250", path, by)

        status, body = await ask("/metrics")
        self.assertEqual(status, 200, body)
        self.assertIn("process_cpu_seconds_total", body)
        status, body = await ask("/pods")
        self.assertEqual(status, 403, body)
        for word in (f"system:serviceaccount:{NAMESPACE}:reader", "edge-1", "proxy"):
            self.assertIn(word, body)
        self.assertEqual((await ask("/metrics", "no.such.token"))[0], 401)
        agents = await world.token("yurt-tunnel-agent")
        self.assertEqual((await ask("/metrics", agents))[0], 403)
