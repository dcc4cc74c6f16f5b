"""Writes while offline: rejected, except those that a kubelet needs."""

from __future__ import annotations

from functools import partial

from tests.apiserver.bootstrap_roles import rule
from tests.e2e.hub.clients import names
from tests.e2e.hub.cloud import NODE
from tests.e2e.hub.node_requests import CONFIG_MAPS, LEASE, NODE_PATH, NODE_PODS
from tests.e2e.hub.support import HubTestCase

PODS = "/api/v1/namespaces/default/pods"
MERGE = [(b"Content-Type", b"application/merge-patch+json")]


class RefusedTests(HubTestCase):
    """Writes that need the cloud."""

    async def test_writes_fail_offline(self) -> None:
        """Create, update, patch and delete get 503 with Retry-After, and change nothing."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        cloud.using("reader", config_maps=["settings"])
        cloud.add("configmaps", "settings", "default", data={"color": "red"})
        kubelet = self.client(hub)
        await kubelet.get(NODE_PODS)
        settings = await kubelet.get(f"{CONFIG_MAPS}/settings")
        pod = await kubelet.get(f"{PODS}/web")
        await self.disconnect(cloud, hub)
        changed = {**settings, "data": {"color": "blue"}}
        for method, path, body, fields in (
            ("PUT", f"{CONFIG_MAPS}/settings", changed, ()),
            ("PATCH", f"{CONFIG_MAPS}/settings", b'{"data":{"color":"blue"}}', MERGE),
            ("PATCH", f"{PODS}/web/status", b'{"status":{"phase":"Failed"}}', MERGE),
            ("DELETE", f"{PODS}/web", None, ()),
            ("DELETE", PODS, None, ()),
            ("POST", PODS, {**pod, "metadata": {"name": "new"}}, ()),
        ):
            with self.subTest(method=method, path=path):
                response = await kubelet.ask(path, method, body, fields)
                failure = kubelet.expect(response, 503, path)
                self.assertEqual(
                    (failure["kind"], failure["reason"]), ("Status", "ServiceUnavailable")
                )
                self.assertIn(NODE, failure["message"])
                [seconds] = response.values(b"retry-after")
                self.assertGreater(int(seconds), 0)
        self.assertEqual(await kubelet.get(f"{CONFIG_MAPS}/settings"), settings)
        self.assertEqual(await kubelet.get(f"{PODS}/web"), pod)

    async def test_a_command_on_the_node_gets_the_reason(self) -> None:
        """Exec, logs and port-forward fail at once with the reason."""
        cloud, hub = await self.start()
        cloud.add_pod("web")
        kubelet = self.client(hub)
        await kubelet.get(NODE_PODS)
        await self.disconnect(cloud, hub)
        for what in ("log", "exec?command=true", "portforward"):
            await kubelet.refused(503, f"{PODS}/web/{what}")


class DeletedCollectionTests(HubTestCase):
    """The deletion of many objects at once."""

    async def test_deleted_objects_are_not_in_the_cache(self) -> None:
        """Offline, a deleted object is not served; lists are as far as they are known.

        A client that watches has complete lists; one that does not has none until its next list. A
        dry run changes nothing.
        """
        cloud, hub = await self.start()
        cloud.grant("system:nodes", rule("deletecollection", "", "configmaps"))
        for name in ("blue", "red"):
            cloud.add("configmaps", name, "default", labels={"color": name})
        kubelet, watcher, tester = map(
            partial(self.client, hub), ("kubelet", "kube-proxy", "coredns")
        )
        for client in (kubelet, watcher, tester):
            listed = await client.get(CONFIG_MAPS)
        version = listed["metadata"]["resourceVersion"]
        stream = await watcher.watch(CONFIG_MAPS, resourceVersion=version)
        red = f"{CONFIG_MAPS}?labelSelector=color%3Dred"
        dry_run = {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}
        for target, body in ((f"{red}&dryRun=All", None), (red, dry_run)):
            tester.expect(await tester.ask(target, "DELETE", body), 200, "a dry run")
        for client in (kubelet, watcher):
            client.expect(await client.ask(red, "DELETE"), 200, "the deletion")
            cloud.add("configmaps", "red", "default", labels={"color": "red"})
        cloud.remove("configmaps", "red", "default")
        await self.eventually(lambda: len(stream.events) == 5, "the watch has all events")
        await self.settled(hub)
        await self.disconnect(cloud, hub)
        self.assertEqual(names(await tester.get(CONFIG_MAPS)), ["blue", "red"])
        self.assertEqual(names(await watcher.get(CONFIG_MAPS)), ["blue"])
        await watcher.refused(404, f"{CONFIG_MAPS}/red")
        await kubelet.refused(404, CONFIG_MAPS)
        await kubelet.refused(503, f"{CONFIG_MAPS}/red")
        await kubelet.get(f"{CONFIG_MAPS}/blue")


class KubeletTests(HubTestCase):
    """The requests that a kubelet needs to continue."""

    async def test_the_lease_is_renewed_online_and_offline(self) -> None:
        """The kubelet's renewals succeed online and offline."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NODE, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": NODE, "leaseDurationSeconds": 40},
        }
        found = await kubelet.ask(LEASE)
        if found.status == 404:
            created = await kubelet.ask(LEASE.rpartition("/")[0], "POST", lease)
            kubelet.expect(created, 201, "the lease")
        for _ in range(2):
            current = await kubelet.get(LEASE)
            self.assertEqual(current["spec"]["holderIdentity"], NODE)
            time = "2026-01-01T00:00:00.000000Z"
            body = {**current, "spec": {**current["spec"], "renewTime": time}}
            kubelet.expect(await kubelet.ask(LEASE, "PUT", body), 200, "the renewal")
            await self.disconnect(cloud, hub)

    async def test_a_node_that_starts_offline_exists_already(self) -> None:
        """A kubelet that registers its node gets a conflict, and reads the Node."""
        cloud, hub = await self.start()
        kubelet = self.client(hub)
        node = await kubelet.get(NODE_PATH)
        await self.disconnect(cloud, hub)
        failure = await kubelet.refused(
            409, "/api/v1/nodes", "POST", {"apiVersion": "v1", "kind": "Node",
                                           "metadata": {"name": NODE}}
        )  # fmt: skip
        self.assertEqual(failure["reason"], "AlreadyExists")
        self.assertEqual(await kubelet.get(NODE_PATH), node)

    async def test_a_pod_that_starts_offline_gets_a_placeholder_for_its_token(self) -> None:
        """If placeholders are disabled, its kubelet gets an error, and retries."""
        for flags, status in (((), 201), (("--offline-token-placeholders=false",), 503)):
            cloud = await self.start_cloud()
            hub = await self.start_hub(cloud, *flags, state=f"H{status}")
            cloud.add("serviceaccounts", "web", "default")
            pod = cloud.add_pod("web", spec={"serviceAccountName": "web"})
            kubelet = self.client(hub)
            await kubelet.get(NODE_PODS)
            await self.disconnect(cloud, hub)
            bound = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "web",
                "uid": pod["metadata"]["uid"],
            }
            request = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [], "expirationSeconds": 3607, "boundObjectRef": bound},
            }
            path = "/api/v1/namespaces/default/serviceaccounts/web/token"
            answer = kubelet.expect(await kubelet.ask(path, "POST", request), status, path)
            if status == 201:
                self.assertTrue(answer["status"]["token"])
                self.assertTrue(answer["status"]["expirationTimestamp"])
