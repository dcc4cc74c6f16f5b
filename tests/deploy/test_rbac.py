"""The comparison of permissions with their use reports exactly the differences."""

from __future__ import annotations

import yaml
from twisted.trial import unittest

from tests.deploy.rbac import Request, audit, grants_of

SERVER = "system:serviceaccount:kube-system:server"

MANIFEST = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: wide}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
- {apiGroups: [certificates.k8s.io], resources: [signers], resourceNames: [a/b], verbs: [approve]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wide}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: wide}
subjects: [{kind: ServiceAccount, name: server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: narrow, namespace: kube-system}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [cfg], verbs: [list]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: narrow, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: narrow}
subjects: [{kind: ServiceAccount, name: server, namespace: kube-system}]
"""

LIST_NODES = Request(SERVER, "list", "", "nodes")
WATCH_NODES = Request(SERVER, "watch", "", "nodes")
APPROVE = Request(SERVER, "approve", "certificates.k8s.io", "signers", name="a/b")
LIST_CFG = Request(SERVER, "list", "", "configmaps", namespace="kube-system", name="cfg")
CREATE_LEASE = Request(SERVER, "create", "coordination.k8s.io", "leases", namespace="kube-system")
ALL = (LIST_NODES, WATCH_NODES, APPROVE, LIST_CFG, CREATE_LEASE)


def objects(manifest=MANIFEST):
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all(manifest))


def granted(rule, namespace=""):
    """Return a role with one rule, and its binding to SERVER."""
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": "one"} | ({"namespace": namespace} if namespace else {})
    subject = {"kind": "ServiceAccount", "name": "server", "namespace": "kube-system"}
    return [
        {"kind": kind, "metadata": metadata, "rules": [rule]},
        {
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"kind": kind, "name": "one"},
            "subjects": [subject],
        },
    ]


class MissingTests(unittest.TestCase):
    """Missing permissions."""

    def test_nothing_is_missing_when_all_is_granted(self):
        """Permitted requests are not reported."""
        self.assertEqual(("", ()), (str(audit(objects(), ALL)), audit(objects(), ALL).missing))

    def test_every_part_of_a_request_counts(self):
        """A request that differs from the permissions in any one part is reported."""
        for other in (
            Request(SERVER, "get", "", "nodes"),
            Request(SERVER, "list", "metrics.k8s.io", "nodes"),
            Request(SERVER, "list", "", "nodes", "proxy"),
            Request("somebody", "list", "", "nodes"),
            Request(SERVER, "approve", "certificates.k8s.io", "signers", name="a/c"),
            Request(SERVER, "approve", "certificates.k8s.io", "signers"),
            Request(SERVER, "list", "", "configmaps", namespace="default", name="cfg"),
            Request(SERVER, "list", "", "configmaps", namespace="kube-system"),
            Request(SERVER, "list", "", "configmaps", name="cfg"),
        ):
            self.assertEqual((other,), audit(objects(), [*ALL, other]).missing)

    def test_names_do_not_allow_to_create(self):
        """A rule with resourceNames does not permit creating an object of that name."""
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
        rule["resourceNames"] = ["cfg"]
        request = Request(SERVER, "create", "", "configmaps", "", "kube-system", "cfg")
        self.assertEqual((request,), audit(granted(rule, "kube-system"), [request]).missing)

    def test_a_cluster_role_applies_in_every_namespace(self):
        """A ClusterRoleBinding's grants also apply within a namespace."""
        grants = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        used = [
            Request(SERVER, "list", "", "pods"),
            Request(SERVER, "list", "", "pods", namespace="default"),
        ]
        self.assertEqual("", str(audit(grants, used)))

    def test_a_role_binding_keeps_a_cluster_role_in_its_namespace(self):
        """A RoleBinding restricts a ClusterRole to its namespace."""
        role, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        binding["kind"] = "RoleBinding"
        binding["metadata"] = {"name": "one", "namespace": "default"}
        inside = Request(SERVER, "list", "", "pods", namespace="default")
        outside = Request(SERVER, "list", "", "pods", namespace="kube-system")
        self.assertEqual((outside,), audit([role, binding], [inside, outside]).missing)

    def test_groups_of_service_accounts_count(self):
        """Grants to a service account's groups apply to the account."""
        role, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        for group in (
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
        ):
            binding["subjects"] = [{"kind": "Group", "name": group}]
            self.assertEqual(
                (), audit([role, binding], [Request(SERVER, "list", "", "pods")]).missing
            )

    def test_a_user_is_not_a_group(self):
        """A user with the name of a group does not get the group's grants."""
        role, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        binding["subjects"] = [{"kind": "Group", "name": "x"}]
        request = Request("x", "list", "", "pods")
        self.assertEqual((request,), audit([role, binding], [request]).missing)


class SuperfluousTests(unittest.TestCase):
    """Superfluous permissions."""

    def test_each_verb_that_nobody_uses_is_named(self):
        """For each unused verb exactly its grant is reported."""
        for request in ALL:
            found = audit(objects(), [each for each in ALL if each is not request])
            (line,) = found.superfluous
            self.assertIn("superfluous: ", line)
            self.assertIn(f"{request.verb} {request.path}.", line)

    def test_names_are_checked_individually(self):
        """An unused name among several names of a rule is reported."""
        rule = {
            "apiGroups": [""],
            "resources": ["services"],
            "verbs": ["list"],
            "resourceNames": ["used", "unused"],
        }
        used = [Request(SERVER, "list", "", "services", namespace="kube-system", name="used")]
        (line,) = audit(granted(rule, "kube-system"), used).superfluous
        self.assertIn("services.core unused in kube-system", line)

    def test_a_cluster_role_for_one_namespace_is_too_wide(self):
        """A grant for all namespaces that is used in only one is too wide."""
        rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
        rule["verbs"] = ["list"]
        used = [Request(SERVER, "list", "discovery.k8s.io", "endpointslices", "", "kube-system")]
        (line,) = audit(granted(rule), used).superfluous
        self.assertIn("too wide", line)
        self.assertIn("kube-system only", line)
        self.assertEqual((), audit(granted(rule, "kube-system"), used).superfluous)

    def test_all_names_where_a_few_are_used_are_too_wide(self):
        """A grant for all names that is used for known names only is too wide."""
        rule = {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}
        used = [Request(SERVER, "list", "", "services", "", "kube-system", "svc")]
        (line,) = audit(granted(rule, "kube-system"), used).superfluous
        self.assertIn("used for svc only", line)

    def test_names_that_are_generated_need_no_resource_names(self):
        """Grants for objects with generated names, and for creation, need no resourceNames."""
        group = "certificates.k8s.io"
        rule = {"apiGroups": [group], "resources": ["certificatesigningrequests"]}
        rule["verbs"] = ["get"]
        used = [Request(SERVER, "get", group, "certificatesigningrequests", name="csr-x")]
        self.assertEqual((), audit(granted(rule), used).superfluous)
        rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}
        used = [Request(SERVER, "create", "coordination.k8s.io", "leases", "", "kube-system", "l")]
        self.assertEqual((), audit(granted(rule, "kube-system"), used).superfluous)

    def test_only_given_users_are_checked(self):
        """With ``users``, requests of others and grants to others are ignored."""
        other = Request("somebody", "delete", "", "nodes")
        self.assertEqual("", str(audit(objects(), [*ALL, other], users=[SERVER])))
        self.assertEqual("", str(audit(objects(), [], users=["nobody"])))


class BindingTests(unittest.TestCase):
    """Bindings without roles."""

    def test_a_binding_without_its_role_is_an_error(self):
        """The error for a missing role names the binding and the role."""
        _, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        error = self.assertRaises(LookupError, list, grants_of([binding]))
        self.assertIn("ClusterRoleBinding one: no ClusterRole one", str(error))
