"""Authorization of callers."""

from __future__ import annotations

import json
from pathlib import Path

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
"""A service account with permission to read the metrics of nodes only, like Prometheus."""


class CallerTests(ClusterTestCase):
    """Callers of port 10263 with a bearer token."""

    async def test_tokens(self):
        """A token permits exactly what the cluster permits its owner."""
        world = await self.start_cluster("edge-1")
        await world.kubectl.output("apply", "-f", "-", stdin=json.dumps(READER).encode())
        token = await world.token("reader")

        async def ask(path, by=token):
            return await world.request_kubelet(SERVERS[0], "edge-1:10250", path, by)

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


LISTER = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "lister", "namespace": NAMESPACE},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "lister", "namespace": NAMESPACE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "lister"},
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}
            ],
        },
    ],
}
"""The permissions that ``somebody`` gets, who has none before."""


class PluginTests(ClusterTestCase):
    """Users of ``kubectl yurttunnel``."""

    async def test_their_own_rights(self):
        """They can do what they are permitted to, and get a one-line error otherwise."""
        world = await self.make_world()
        kubeconfig = world.identities.client_kubeconfig("somebody", world.url, "somebody", None)
        world.kubectl.add_plugin(Path(self.directory, "bin"))

        async def printed() -> str:
            arguments = ("yurttunnel", "nodes", f"--kubeconfig={kubeconfig}")
            finished = await world.kubectl.run(*arguments)
            self.assertEqual((b"", 1), (finished.out, finished.status))
            return finished.error.decode()

        self.assertRegex(
            await printed(),
            r"\Akubectl yurttunnel nodes: kubectl: Error from server \(Forbidden\): "
            r'.*User "somebody" cannot list resource "pods".*\n\Z',
        )
        await world.kubectl.output("apply", "-f", "-", stdin=json.dumps(LISTER).encode())
        self.assertIn(f"no server runs in namespace {NAMESPACE}", await printed())
