"""Kinds with rules of their own, and requests that are not supported."""

from __future__ import annotations

from tests.yurtlab.api.support import MAPS, MERGE, PODS_PATH, STRATEGIC, ApiTestCase, config_map
from yurtlab.api.resources import CONFIG_MAPS, MAKE_PODS, NODES, PODS, SERVICE_ACCOUNTS


class NamespaceTests(ApiTestCase):
    """Namespaces."""

    path = "/api/v1/namespaces"

    def namespace(self, name="team"):
        """Return a namespace, or the status of an error."""
        return self.call("GET", f"{self.path}/{name}")

    def test_initial(self):
        """A new cluster has four namespaces."""
        _, answer = self.call("GET", self.path)
        names = [one["metadata"]["name"] for one in answer["items"]]
        self.assertEqual(["default", "kube-node-lease", "kube-public", "kube-system"], names)

    def test_created(self):
        """A new namespace is active and labeled with its name, also after a change."""
        made = self.create({"metadata": {"name": "team"}}, self.path)
        self.assertEqual("Active", made["status"]["phase"])
        label = {"kubernetes.io/metadata.name": "team"}
        self.assertEqual(label, made["metadata"]["labels"])
        _, changed = self.call("PUT", f"{self.path}/team", {"metadata": {"name": "team"}})
        self.assertEqual(label, changed["metadata"]["labels"])
        self.assertEqual({"finalizers": ["kubernetes"]}, changed["spec"])

    def test_name(self):
        """The name of a namespace is a label."""
        status, _ = self.call("POST", self.path, {"metadata": {"name": "a.b"}})
        self.assertEqual(422, status)

    def test_immortal(self):
        """Some namespaces cannot be deleted."""
        answer = self.call("DELETE", f"{self.path}/default")
        text = 'namespaces "default" is forbidden: this namespace may not be deleted'
        self.assert_error(answer, 403, "Forbidden", text)

    def test_empty(self):
        """An empty namespace is removed at once."""
        self.create({"metadata": {"name": "team"}}, self.path)
        status, answer = self.call("DELETE", f"{self.path}/team")
        self.assertEqual((200, "Terminating"), (status, answer["status"]["phase"]))
        self.assertEqual(404, self.namespace()[0])

    def test_with_contents(self):
        """A deleted namespace is removed with its last object, and accepts no new ones."""
        self.create({"metadata": {"name": "team"}}, self.path)
        self.create(path=f"{self.path}/team/pods")
        self.create(config_map(), f"{self.path}/team/configmaps")
        self.call("DELETE", f"{self.path}/team")
        self.assertEqual([], self.names(CONFIG_MAPS))
        self.assertEqual("Terminating", self.namespace()[1]["status"]["phase"])
        answer = self.call("POST", f"{self.path}/team/configmaps", config_map())
        text = (
            'configmaps "settings" is forbidden: unable to create new content in namespace team'
            " because it is being terminated"
        )
        self.assert_error(answer, 403, "Forbidden", text)
        self.store.remove(PODS, "team", "web")
        self.assertEqual(404, self.namespace()[0])

    def test_dry_run(self):
        """A dry run deletes nothing in it."""
        self.create({"metadata": {"name": "team"}}, self.path)
        self.create(config_map(), f"{self.path}/team/configmaps")
        self.call("DELETE", f"{self.path}/team?dryRun=All")
        self.assertEqual(["settings"], self.names(CONFIG_MAPS))
        self.assertEqual("Active", self.namespace()[1]["status"]["phase"])


class NodeTests(ApiTestCase):
    """Nodes."""

    def test_status_at_creation(self):
        """A node may be created with its status."""
        body = {"metadata": {"name": "edge-2"}, "status": {"phase": "Running"}}
        self.create(body, "/api/v1/nodes")
        self.assertEqual("Running", self.store.get(NODES, None, "edge-2")["status"]["phase"])


class ServiceTests(ApiTestCase):
    """Services."""

    path = "/api/v1/namespaces/default/services"
    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}

    def test_defaults(self):
        """A service gets the default values, but no cluster IP, which would lead nowhere."""
        made = self.create(
            {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}, self.path
        )
        spec = {
            "type": "ClusterIP",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        }
        self.assertEqual((spec, {"loadBalancer": {}}), (made["spec"], made["status"]))

    def test_change(self):
        """Fields that an update omits get their defaults again."""
        self.create(self.service, self.path)
        changed = {"spec": {"type": "NodePort", "ports": [{"port": 81}]}}
        _, after = self.call("PATCH", f"{self.path}/web", changed, media_type=MERGE)
        self.assertEqual("Cluster", after["spec"]["externalTrafficPolicy"])
        ports = [{"port": 81, "protocol": "TCP", "targetPort": 81}]
        self.assertEqual(ports, after["spec"]["ports"])


class CompleteListTests(ApiTestCase):
    """Lists."""

    def test_whole(self):
        """A list is complete, also for clients that request pages."""
        for name in ("a", "b", "c"):
            self.create(config_map(name), MAPS)
        _, found = self.call("GET", f"{MAPS}?limit=2")
        self.assertEqual(["a", "b", "c"], [one["metadata"]["name"] for one in found["items"]])
        self.assertEqual({"resourceVersion": str(self.store.version)}, found["metadata"])


class DemonstrationTests(ApiTestCase):
    """Requests that the quickstart does not support are rejected with an alternative."""

    def test_workloads(self):
        """Workloads that would never run are rejected; they can be listed."""
        for kind in sorted(MAKE_PODS, key=lambda kind: kind.kind):
            path = f"/apis/{kind.group}/v1/namespaces/default/{kind.plural}"
            text = (
                "this is the demonstration API of yurttunnel: it runs pods only, and has no"
                f" controller for the pods of a {kind.kind}; create the pods themselves, as kubectl"
                " run does"
            )
            for method, place, options in (
                ("POST", path, {}),
                # kubectl create and scale send this, which is not to be told first.
                ("POST", path, {"media_type": "application/vnd.kubernetes.protobuf"}),
                ("PUT", f"{path}/web", {}),
                ("PATCH", f"{path}/web", {"media_type": STRATEGIC}),
            ):
                answer = self.call(method, place, {}, **options)
                self.assert_error(answer, 405, "MethodNotAllowed", text)
            self.assertEqual([], self.call("GET", path)[1]["items"])

    def test_proxies_to_pods(self):
        """Proxies to pods and ephemeral containers are rejected."""
        self.create()
        for path, word in (
            (f"{PODS_PATH}/web:80/proxy/index.html", "port-forward"),
            ("/api/v1/namespaces/default/services/web/proxy", "port-forward"),
            (f"{PODS_PATH}/web/ephemeralcontainers", "kubectl exec"),
        ):
            status, answer = self.call("GET", path)
            self.assertEqual((405, "MethodNotAllowed"), (status, answer["reason"]))
            self.assertIn("the demonstration API of yurttunnel", answer["message"])
            self.assertIn(word, answer["message"])

    def test_tokens(self):
        """Tokens of service accounts are rejected: nothing would accept them."""
        path = "/api/v1/namespaces/default/serviceaccounts/default/token"
        status, answer = self.call("POST", path, {})
        self.assertEqual((405, "MethodNotAllowed"), (status, answer["reason"]))
        self.assertIn("it knows its users by their certificates alone", answer["message"])

    def test_default_account(self):
        """Each namespace has a default account, which is deleted with it."""
        self.create({"metadata": {"name": "shop"}}, "/api/v1/namespaces")
        for namespace in ("default", "shop"):
            self.assertEqual(["default"], self.names(SERVICE_ACCOUNTS, namespace))
        self.call("DELETE", "/api/v1/namespaces/shop")
        self.assertEqual(404, self.call("GET", "/api/v1/namespaces/shop")[0])
