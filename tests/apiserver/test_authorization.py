"""Authorization: roles, bindings, kubelets, and the errors of rejected requests."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.attributes import Attributes, request_attributes
from tests.apiserver.bootstrap_roles import rule
from tests.apiserver.kinds import CLUSTER_ROLES, RESOURCES
from tests.apiserver.rbac import allows
from tests.apiserver.support import ApiTestCase, kubelet
from tests.yurtlab.api.support import PODS_PATH, pod, user
from yurtlab.api.options import parse_query
from yurtlab.api.resources import LEASES, NODES, PODS, Routes

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BOB = user("bob", "team")


class AttributeTests(SynchronousTestCase):
    """The attributes of requests."""

    def attributes(self, method, address):
        """Return the attributes of a request."""
        path, _, query = address.partition("?")
        return request_attributes(method, path, parse_query(query), Routes(RESOURCES).find(path))

    def test_verbs(self):
        """The verb depends on the method, and on whether the path has a name."""
        for method, address, verb in (
            ("GET", PODS_PATH, "list"),
            ("HEAD", PODS_PATH, "list"),
            ("GET", f"{PODS_PATH}?watch=true", "watch"),
            ("GET", f"{PODS_PATH}?watch=false", "list"),
            ("DELETE", PODS_PATH, "deletecollection"),
            ("POST", PODS_PATH, "create"),
            ("GET", f"{PODS_PATH}/a", "get"),
            ("PUT", f"{PODS_PATH}/a", "update"),
            ("PATCH", f"{PODS_PATH}/a", "patch"),
            ("DELETE", f"{PODS_PATH}/a", "delete"),
            ("POST", f"{PODS_PATH}/a/exec", "create"),
            ("GET", f"{PODS_PATH}/a/log", "get"),
        ):
            self.assertEqual(verb, self.attributes(method, address).verb, (method, address))

    def test_places(self):
        """Group, kind, subresource, namespace and name are from the path."""
        for address, expected in (
            (f"{PODS_PATH}/a/log", ("", "pods", "log", "default", "a")),
            ("/api/v1/nodes/n/proxy/x", ("", "nodes", "proxy", "", "n")),
            ("/api/v1/namespaces/a", ("", "namespaces", "", "a", "a")),
            ("/api/v1/namespaces/a/status", ("", "namespaces", "status", "a", "a")),
            ("/apis/coordination.k8s.io/v1/leases", ("coordination.k8s.io", "leases", "", "", "")),
            # Kinds that are not served are no exception.
            ("/api/v1/namespaces/a/cars/b/door", ("", "cars", "door", "a", "b")),
            ("/apis/x/v1/cars", ("x", "cars", "", "", "")),
            ("/apis/x/v1/namespaces/a", ("x", "namespaces", "", "a", "a")),
            ("/apis/x/v1/namespaces/a/status", ("x", "namespaces", "status", "a", "a")),
        ):
            found = self.attributes("GET", address)
            actual = (found.group, found.resource, found.subresource, found.namespace, found.name)
            self.assertEqual(expected, actual, address)

    def test_names_of_selectors(self):
        """A list that selects one object by name has that name; a deletion has not."""
        address = f"{PODS_PATH}?watch=1&fieldSelector=metadata.name%3Da,spec.nodeName%3D%3Dn"
        found = self.attributes("GET", address)
        self.assertEqual(("watch", "a"), (found.verb, found.name))
        self.assertEqual((("metadata.name", "a"), ("spec.nodeName", "n")), found.fields)
        found = self.attributes("DELETE", f"{PODS_PATH}?fieldSelector=metadata.name%3Da")
        self.assertEqual(("deletecollection", ""), (found.verb, found.name))
        for selector, name in (
            ("metadata.name!%3Da", ""),
            ("metadata.name%3Da,x", ""),
            ("metadata.name%3Da,,", "a"),
        ):
            found = self.attributes("GET", f"{PODS_PATH}?fieldSelector={selector}")
            self.assertEqual(name, found.name, selector)

    def test_paths(self):
        """A request for a non-resource URL has its path, and the method as its verb."""
        for path in ("/", "/version", "/api", "/apis/x/v1", "/openapi/v3/api/v1"):
            self.assertEqual(Attributes("get", path=path), self.attributes("GET", path))


class RuleTests(SynchronousTestCase):
    """Rules."""

    def test_resources(self):
        """A rule grants verbs on resources of groups, with or without subresources."""
        desired = Attributes("get", "g", "v1", "pods", "log", "n", "a")
        for granted, allowed in (
            (rule("get", "g", "pods/log"), True),
            (rule("list get", "g", "cars", "pods/log"), True),
            (rule("*", "*", "*"), True),
            (rule("get", "g", "*/log"), True),
            (rule("get", "g", "pods"), False),
            (rule("get", "g", "pods/*"), False),
            (rule("list", "g", "pods/log"), False),
            (rule("get", "", "pods/log"), False),
            ({"verbs": ["get"], "nonResourceURLs": ["*"]}, False),
            ({}, False),
        ):
            self.assertEqual(allowed, allows(granted, desired), granted)
        self.assertFalse(allows(rule("get", "g", "pods/log"), Attributes("get", "g", "v1", "pods")))

    def test_names(self):
        """A rule may be restricted to the names of objects."""
        granted = {**rule("get list", "", "pods"), "resourceNames": ["a", "b"]}
        self.assertTrue(allows(granted, Attributes("get", resource="pods", name="b")))
        self.assertFalse(allows(granted, Attributes("get", resource="pods", name="c")))
        self.assertFalse(allows(granted, Attributes("list", resource="pods")))

    def test_paths(self):
        """A rule may have paths, with an asterisk at the end."""
        granted = {"verbs": ["get"], "nonResourceURLs": ["/a", "/b/*"]}
        for path, allowed in (("/a", True), ("/a/x", False), ("/b/x/y", True), ("/b", False)):
            self.assertEqual(allowed, allows(granted, Attributes("get", path=path)), path)
        self.assertFalse(allows(granted, Attributes("post", path="/a")))
        self.assertFalse(allows(rule("*", "*", "*"), Attributes("get", path="/a")))


class RefusalTests(ApiTestCase):
    """The errors of rejected requests."""

    def test_words(self):
        """The error is Forbidden, with the message of kube-apiserver."""
        for method, path, message in (
            (
                "GET",
                "/api/v1/pods",
                'pods is forbidden: User "bob" cannot list resource "pods" in API group "" at the'
                " cluster scope",
            ),
            (
                "GET",
                f"{PODS_PATH}/web/log",
                'pods "web" is forbidden: User "bob" cannot get resource "pods/log" in API group'
                ' "" in the namespace "default"',
            ),
            (
                "DELETE",
                "/apis/coordination.k8s.io/v1/namespaces/a/leases",
                'leases.coordination.k8s.io is forbidden: User "bob" cannot deletecollection'
                ' resource "leases" in API group "coordination.k8s.io" in the namespace "a"',
            ),
            (
                "GET",
                "/api/v1/cars",
                'cars is forbidden: User "bob" cannot list resource "cars" in API group "" at the'
                " cluster scope",
            ),
            ("GET", "/metrics", 'forbidden: User "bob" cannot get path "/metrics"'),
        ):
            answer = self.call(method, path, known=BOB)
            self.assert_error(answer, 403, "Forbidden", message)
        self.assertEqual(
            {"name": "web", "kind": "pods"},
            self.call("GET", f"{PODS_PATH}/web", known=BOB)[1]["details"],
        )

    def test_missing_role(self):
        """The reason names a binding to a missing role."""
        binding = {
            "metadata": {"name": "b"},
            "subjects": [{"kind": "Group", "name": "team"}],
            "roleRef": {"kind": "ClusterRole", "name": "gone"},
        }
        self.create(binding, f"{RBAC}/clusterrolebindings")
        _, answer = self.call("GET", "/api/v1/pods", known=BOB)
        self.assertTrue(
            answer["message"].endswith(
                'at the cluster scope: RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found'
            ),
            answer["message"],
        )

    def test_audit(self):
        """Every request is recorded with its user, its attributes, and whether it was allowed."""
        self.grant("bob", rule("list", "", "pods"))
        self.audit.clear()
        self.call("GET", "/api/v1/pods", known=BOB)
        self.call("GET", "/api/v1/pods?watch=1", known=BOB)
        self.exchange("GET", "/healthz", known=False)
        shown = [(who.name, what.verb, what.resource, yes) for who, what, yes in self.audit]
        self.assertEqual([("bob", "list", "pods", True), ("bob", "watch", "pods", False)], shown)


class RoleTests(ApiTestCase):
    """Roles and bindings."""

    def allowed(self, method, path, who=BOB):
        """Return whether a request is allowed."""
        return self.exchange(method, path, known=who)[0] != 403

    def test_cluster_wide(self):
        """A cluster role with a cluster role binding applies to all namespaces."""
        self.grant("bob", rule("list watch", "", "pods"))
        self.assertTrue(self.allowed("GET", "/api/v1/pods"))
        self.assertTrue(self.allowed("GET", PODS_PATH))
        self.assertFalse(self.allowed("GET", f"{PODS_PATH}/a"))
        self.assertFalse(self.allowed("GET", "/api/v1/pods", user("eve")))

    def test_in_a_namespace(self):
        """A role, or a cluster role that is bound in a namespace, applies only there."""
        for name, role in (("bob", "Role"), ("eve", "ClusterRole")):
            self.grant(name, rule("list", "", "pods"), namespace="default", role=role)
            self.assertTrue(self.allowed("GET", PODS_PATH, user(name)))
            self.assertFalse(self.allowed("GET", "/api/v1/pods", user(name)))
            self.assertFalse(self.allowed("GET", "/api/v1/namespaces/kube-system/pods", user(name)))

    def test_groups(self):
        """Groups may be bound."""
        self.grant("team", rule("list", "", "pods"), kind="Group")
        self.assertTrue(self.allowed("GET", PODS_PATH))

    def test_one_object(self):
        """A single object can be watched with a permission for its name only."""
        named = {**rule("get list watch", "", "pods"), "resourceNames": ["a"]}
        self.grant("bob", named, namespace="default")
        self.assertTrue(self.allowed("GET", f"{PODS_PATH}?fieldSelector=metadata.name%3Da"))
        self.assertFalse(self.allowed("GET", f"{PODS_PATH}?fieldSelector=metadata.name%3Db"))
        self.assertFalse(self.allowed("GET", PODS_PATH))

    def test_changes_count_at_once(self):
        """A change or deletion of a role applies at once."""
        self.grant("bob", rule("list", "", "pods"))
        role = {"metadata": {"name": "of-bob"}, "rules": [rule("list", "", "nodes")]}
        self.call("PUT", f"{RBAC}/clusterroles/of-bob", role)
        self.assertFalse(self.allowed("GET", "/api/v1/pods"))
        self.assertTrue(self.allowed("GET", "/api/v1/nodes"))
        self.call("DELETE", f"{RBAC}/clusterroles/of-bob")
        self.assertFalse(self.allowed("GET", "/api/v1/nodes"))

    def test_everybody(self):
        """All authenticated users may use discovery, and request their own permissions."""
        for path in ("/version", "/api", "/apis", "/api/v1", "/openapi/v3", "/healthz"):
            self.assertTrue(self.allowed("GET", path), path)
        self.assertFalse(self.allowed("GET", "/readyz/ping"))
        review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        self.assertEqual(201, self.call("POST", path, review, known=BOB)[0])

    def test_masters(self):
        """Members of system:masters may do everything."""
        self.assertTrue(self.allowed("GET", "/metrics", user("eve", "system:masters")))
        self.assertTrue(self.allowed("DELETE", PODS_PATH, user("eve", "system:masters")))

    def test_defaults(self):
        """API groups are filled in: of the role, and of subjects that are users and groups."""
        self.grant("bob", rule("get", "", "pods"))
        _, binding = self.call("GET", f"{RBAC}/clusterrolebindings/of-bob")
        group = "rbac.authorization.k8s.io"
        self.assertEqual(group, binding["roleRef"]["apiGroup"])
        self.assertEqual([{"kind": "User", "name": "bob", "apiGroup": group}], binding["subjects"])
        del binding["roleRef"]["apiGroup"]
        binding["subjects"] = [{"kind": "Group", "name": "team"}]
        _, binding = self.call("PUT", f"{RBAC}/clusterrolebindings/of-bob", binding)
        self.assertEqual(group, binding["roleRef"]["apiGroup"])
        self.assertEqual(
            [{"kind": "Group", "name": "team", "apiGroup": group}], binding["subjects"]
        )

    def refused(self, path, body):
        """Return the invalid fields of an object."""
        status, answer = self.call("POST", f"{RBAC}/{path}", {"metadata": {"name": "x"}, **body})
        self.assertEqual((422, "Invalid"), (status, answer["reason"]), answer)
        return [cause["field"] for cause in answer["details"]["causes"]]

    def test_invalid_roles(self):
        """Rules have verbs, and either resources or paths."""
        rules = [
            {"verbs": []},
            {"verbs": ["get"], "apiGroups": [""]},
            {"verbs": ["get"], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/a"], "apiGroups": [""]},
        ]
        self.assertEqual(
            [
                "rules[0].verbs",
                "rules[0].apiGroups",
                "rules[0].resources",
                "rules[1].resources",
                "rules[2].apiGroups",
                "rules[3].nonResourceURLs",
            ],
            self.refused("clusterroles", {"rules": rules}),
        )
        rules = [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]
        path = "namespaces/default/roles"
        self.assertEqual(["rules[0].nonResourceURLs"], self.refused(path, {"rules": rules}))

    def test_invalid_bindings(self):
        """A binding has a role of an allowed kind, and valid subjects."""
        body = {"roleRef": {"kind": "Role"}, "subjects": [{"kind": "Car"}, {"kind": "User"}]}
        self.assertEqual(
            [
                "roleRef.kind",
                "roleRef.name",
                "subjects[0].name",
                "subjects[0].kind",
                "subjects[1].name",
            ],
            self.refused("clusterrolebindings", body),
        )
        subject = {"kind": "ServiceAccount", "name": "a"}
        body = {"roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [subject]}
        self.assertEqual(["subjects[0].namespace"], self.refused("clusterrolebindings", body))

    def test_the_role_of_a_binding_stays(self):
        """The role of a binding is immutable."""
        self.grant("bob", rule("get", "", "pods"))
        _, binding = self.call("GET", f"{RBAC}/clusterrolebindings/of-bob")
        binding["roleRef"]["name"] = "cluster-admin"
        status, answer = self.call("PUT", f"{RBAC}/clusterrolebindings/of-bob", binding)
        self.assertEqual(422, status)
        self.assertIn("cannot change roleRef", answer["message"])

    def test_names(self):
        """Names of roles may have colons, but must be valid in a path."""
        self.create({"metadata": {"name": "a:B"}}, f"{RBAC}/clusterroles")
        self.assertEqual(["metadata.name"], self.refused_name("a/b"))
        self.assertIn("a:B", self.names(CLUSTER_ROLES))

    def refused_name(self, name):
        """Return the invalid fields of a role with this name."""
        _, answer = self.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}})
        return [cause["field"] for cause in answer["details"]["causes"]]


class KubeletTests(ApiTestCase):
    """The permissions of kubelets."""

    def setUp(self):
        """Create two nodes with a pod each."""
        super().setUp()
        self.store.create(NODES, None, {"metadata": {"name": "edge-2"}})
        for number in (1, 2):
            volume = {"name": "v", "configMap": {"name": f"map-{number}"}}
            secret = {"name": f"secret-{number}"}
            body = pod(
                f"pod-{number}",
                nodeName=f"edge-{number}",
                serviceAccountName=f"account-{number}",
                volumes=[volume],
                imagePullSecrets=[secret],
            )
            self.create(body)

    def message(self, path, method="GET"):
        """Return the reason of a rejection, or ``None`` if the request is allowed."""
        status, answer = self.call(method, path, known=kubelet())
        if status != 403:
            return None
        return answer["message"].partition(": ")[2].partition(": ")[2]

    def test_nodes(self):
        """A kubelet reads its own node, and writes nodes."""
        path = "/api/v1/nodes"
        self.assertIsNone(self.message(f"{path}/edge-1"))
        self.assertIsNone(self.message(f"{path}?fieldSelector=metadata.name%3Dedge-1"))
        self.assertEqual(
            "node 'edge-1' cannot read 'edge-2', only its own Node object",
            self.message(f"{path}/edge-2"),
        )
        self.assertEqual(
            "node 'edge-1' cannot read all nodes, only its own Node object", self.message(path)
        )
        self.assertEqual("", self.message(f"{path}/edge-1", "DELETE"))

    def test_pods(self):
        """A kubelet reads the pods of its node."""
        self.assertIsNone(self.message(f"{PODS_PATH}/pod-1"))
        self.assertIsNone(self.message("/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-1"))
        related = "no relationship found between node 'edge-1' and this object"
        self.assertEqual(related, self.message(f"{PODS_PATH}/pod-2"))
        self.assertEqual(
            "can only list/watch pods with spec.nodeName field selector",
            self.message("/api/v1/pods?fieldSelector=spec.nodeName%3Dedge-2"),
        )

    def test_contents(self):
        """A kubelet reads the objects that pods of its node use."""
        base = "/api/v1/namespaces/default"
        for kind, name in (("configmaps", "map"), ("secrets", "secret")):
            self.assertIsNone(self.message(f"{base}/{kind}/{name}-1"))
            self.assertEqual(
                "no relationship found between node 'edge-1' and this object",
                self.message(f"{base}/{kind}/{name}-2"),
            )
            self.assertEqual("No Object name found", self.message(f"{base}/{kind}"))
            self.assertEqual(
                "can only read namespaced object of this type", self.message(f"/api/v1/{kind}")
            )
        path = f"{base}/serviceaccounts/account"
        self.assertIsNone(self.message(f"{path}-1/token", "POST"))
        self.assertIsNotNone(self.message(f"{path}-2/token", "POST"))

    def test_where_contents_are_named(self):
        """A kubelet may read the ConfigMaps, Secrets and accounts that any field of a pod names."""

        def named(name):
            return {"name": name}

        def container(*names, **fields):
            first, second, third, fourth = names
            return {
                "image": "none",
                "envFrom": [{"configMapRef": named(first)}, {"secretRef": named(second)}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {**named(third), "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {**named(fourth), "key": "k"}}},
                ],
                **fields,
            }

        sources = [{"configMap": named("c-7")}, {"secret": named("s-7")}]
        self.create(
            pod(
                "many",
                nodeName="edge-1",
                serviceAccountName="account-9",
                imagePullSecrets=[named("s-1"), named("s-2")],
                volumes=[
                    {"name": "a", "configMap": named("c-3")},
                    {"name": "b", "secret": {"secretName": "s-3"}},
                    {"name": "c", "projected": {"sources": sources}},
                ],
                initContainers=[container("c-4", "s-4", "c-5", "s-5", name="init")],
                containers=[container("c-1", "s-8", "c-2", "s-9", name="main")],
            )
        )
        base = "/api/v1/namespaces/default"
        for kind, letter, numbers in (
            ("configmaps", "c", (1, 2, 3, 4, 5, 7)),
            ("secrets", "s", (1, 2, 3, 4, 5, 7, 8, 9)),
        ):
            for number in range(1, 10):
                message = self.message(f"{base}/{kind}/{letter}-{number}")
                self.assertEqual(number in numbers, message is None, (kind, number))
        self.assertIsNone(self.message(f"{base}/serviceaccounts/account-9/token", "POST"))

    def test_leases(self):
        """A kubelet uses its own lease only."""
        path = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
        for namespace, name, message in (
            ("kube-node-lease", "/edge-1", None),
            (
                "kube-node-lease",
                "/edge-2",
                "can only access node lease with the same name as the requesting node",
            ),
            (
                "default",
                "/edge-1",
                'can only access leases in the "kube-node-lease" system namespace',
            ),
            (
                "kube-node-lease",
                "",
                "can only get, create, update, patch, or delete a node lease",
            ),
        ):
            self.assertEqual(message, self.message(path.format(namespace) + name))
        self.assertEqual([], self.names(LEASES))

    def test_the_rest(self):
        """A kubelet reads Services, requests certificates, and creates access reviews."""
        csr = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
        for method, path, allowed in (
            ("GET", "/api/v1/services", True),
            ("GET", csr, True),
            ("POST", csr, True),
            ("DELETE", csr, False),
            ("PUT", f"{csr}/a/approval", False),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", True),
            ("GET", "/apis/discovery.k8s.io/v1/endpointslices", False),
            ("GET", "/api/v1/namespaces", False),
        ):
            self.assertEqual(allowed, self.message(path, method) is None, (method, path))

    def test_who_is_none(self):
        """The name or the group alone does not make a user a kubelet."""
        for who in (user("system:node:edge-1"), user("edge-1", "system:nodes")):
            self.assertEqual(403, self.call("GET", "/api/v1/nodes/edge-1", known=who)[0])
        self.assertEqual(2, len(self.names(PODS)))


class ImpersonationTests(ApiTestCase):
    """Impersonation."""

    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"

    def ask(self, *fields, known=True):
        """Request the effective user."""
        status, _, body = self.exchange("POST", self.path, {}, fields=fields, known=known)
        return status, json.loads(body)

    def who(self, *fields):
        """Return the effective user of the administrator."""
        status, answer = self.ask(*fields)
        self.assertEqual(201, status, answer)
        return answer["status"]["userInfo"]

    def test_somebody(self):
        """With permission a request has the impersonated user, groups and other attributes."""
        self.assertEqual(
            {
                "username": "bob",
                "uid": "7",
                "groups": ["team", "other", "system:authenticated"],
                "extra": {"example.com/k": ["v", "w"]},
            },
            self.who(
                "Impersonate-User: bob",
                "Impersonate-Group: team",
                "Impersonate-Group: other",
                "Impersonate-Uid: 7",
                "Impersonate-Extra-example.com%2fk: v",
                "Impersonate-Extra-example.com%2fk: w",
            ),
        )

    def test_account(self):
        """An impersonated service account gets its groups."""
        info = self.who("Impersonate-User: system:serviceaccount:a:b")
        groups = ["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]
        self.assertEqual(groups, info["groups"])

    def test_permission(self):
        """Without permission impersonation is rejected."""
        status, answer = self.ask("Impersonate-User: ada", known=BOB)
        text = 'User "bob" cannot impersonate resource "users" in API group "" at the cluster scope'
        self.assertEqual((403, f'users "ada" is forbidden: {text}'), (status, answer["message"]))
        self.grant("bob", {**rule("impersonate", "", "users"), "resourceNames": ["ada"]})
        self.assertEqual(201, self.ask("Impersonate-User: ada", known=BOB)[0])
        for field in (
            "Impersonate-Group: system:masters",
            "Impersonate-Uid: 1",
            "Impersonate-Extra-k: v",
        ):
            self.assertEqual(403, self.ask("Impersonate-User: ada", field, known=BOB)[0])

    def test_rights(self):
        """The permissions of the impersonated user apply."""
        fields = ["Impersonate-User: bob"]
        status, _, _ = self.exchange("GET", PODS_PATH, fields=fields)
        self.assertEqual(403, status)

    def test_nobody(self):
        """Groups without a user are rejected."""
        self.assertEqual(500, self.ask("Impersonate-Group: team")[0])
