"""The permissions in the manifests are exactly those that the programs need."""

from __future__ import annotations

from ipaddress import ip_address

from cryptography.x509 import IPAddress, SubjectAlternativeName
from twisted.trial.unittest import SkipTest

from tests.deploy.rbac import Request, audit
from tests.deploy.rendering import read_base
from tests.e2e.cluster.real_api import assets
from tests.e2e.cluster.support import ClusterTestCase
from tests.e2e.cluster.world import NAMESPACE, SERVERS, World
from yurttunnel.kube.errors import Conflict
from yurttunnel.kube.resources import LEASES, SERVICES
from yurttunnel.pki.certificate_template import hub_serving_template

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:"
USERS = (f"{ACCOUNT}yurt-tunnel-server", f"{ACCOUNT}yurt-tunnel-agent")
LEASE = "yurt-tunnel-approver"
API_ADDRESS = "10.96.0.1"
"""That of the Service kubernetes."""


class PermissionTests(ClusterTestCase):
    """The embedded API records all requests."""

    async def test_every_call_is_allowed_and_every_permission_is_used(self):
        """From the first start to the last certificate no request is forbidden, and every
        permission of the roles is used."""
        if assets() is not None:
            raise SkipTest("a real kube-apiserver does not tell what it was asked")
        world = await self.make_world()
        # One server, so that it becomes the leader again after it has lost the lease.
        world.servers = [SERVERS[0]]
        await world.add_nodes("edge-1", "edge-2")
        await self.start_tunnel(world, "edge-1")
        await self.make_mistakes(world)
        await self.get_hub_certificate(world, "edge-1")
        await world.request_kubelet(
            SERVERS[0], "edge-1:10250", "/healthz", await world.token("yurt-tunnel-agent")
        )
        await world.publish(type="NodePort")
        await self.until_used(world, "list", "nodes", USERS[1])
        await world.publish(type="ClusterIP")

        def difference():
            return str(audit(read_base(), used(world), USERS))

        try:
            await self.eventually(lambda: not difference(), "", 30, 0.5)
        except self.failureException:
            self.fail(difference())
        refused = [
            (user, str(attributes))
            for user, attributes, allowed in world.api.requests
            if user in USERS and not allowed
        ]
        self.assertEqual(refused, [])

    async def make_mistakes(self, world: World) -> None:
        """Cause the events, twice: a bad port, and a request of a pod without a node."""
        await world.add_agent_pod("nowhere", None)
        impostor = await world.agent("edge-2", pod_of="nowhere")
        impostor.start()
        await self.until_event(world, "NotApproved", 1)
        for count in (1, 2):
            await world.set_proxy_ports({"http-proxy-ports": "no port"})
            await self.until_event(world, "BadProxyPorts", count)
            await world.set_proxy_ports({"http-proxy-ports": "9100"})
            await self.pause(0.5)
        await self.eventually(lambda: self.take_lease(world), "the lease is taken", 20)
        await self.until_event(world, "NotApproved", 2)

    async def get_hub_certificate(self, world: World, node: str) -> None:
        """Get the hub's serving certificate for pods, with the API's address in it."""
        spec = {"clusterIP": API_ADDRESS, "ports": [{"port": 443}]}
        await world.client.create(
            SERVICES, {"metadata": {"name": "kubernetes"}, "spec": spec}, "default"
        )
        template = hub_serving_template(node, [ip_address(API_ADDRESS)])
        chain = await world.issue(node, template)
        names = chain[0].extensions.get_extension_for_class(SubjectAlternativeName).value
        self.assertIn(API_ADDRESS, map(str, names.get_values_for_type(IPAddress)))

    async def take_lease(self, world: World) -> bool:
        """Take the lease from the server for a second, unless it is being renewed."""
        lease = await world.client.get(LEASES, LEASE, NAMESPACE)
        lease["spec"].update(holderIdentity="somebody else", leaseDurationSeconds=1)
        try:
            await world.client.update(LEASES, lease)
        except Conflict:
            return False
        return True

    async def until_event(self, world: World, reason: str, count: int) -> None:
        """Wait until an event with ``reason`` has this count."""

        async def counted():
            counts = await world.kubectl.output(
                *("get", "events", "--all-namespaces"),
                *("--field-selector", f"reason={reason}", "-o", "jsonpath={.items[*].count}"),
            )
            return str(count) in counts.split()

        await self.eventually(counted, f"{reason} was told {count} times", 40, 0.5)

    async def until_used(self, world: World, verb: str, resource: str, user: str) -> None:
        """Wait until ``user`` has made a request."""

        def done():
            return any(
                (who, attributes.verb, attributes.resource) == (user, verb, resource)
                for who, attributes, _ in world.api.requests
            )

        await self.eventually(done, f"{user} does {verb} {resource}", 20)


def used(world: World) -> list[Request]:
    """List the requests to the API."""
    return [
        Request(
            user,
            attributes.verb,
            attributes.group,
            attributes.resource,
            attributes.subresource,
            attributes.namespace,
            attributes.name,
        )
        for user, attributes, _ in world.api.requests
        if not attributes.path
    ]
