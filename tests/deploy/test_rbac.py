"""The comparison of granted and used permissions finds every difference, and only those."""

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
    """Read the objects of a manifest."""
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
    """What is used must be granted."""

    def test_nothing_is_missing_when_all_is_granted(self):
        """Requests that the roles cover are not reported."""
        self.assertEqual(("", ()), (str(audit(objects(), ALL)), audit(objects(), ALL).missing))

    def test_every_part_of_a_request_counts(self):
        """A request that differs in one part from what is granted is missing."""
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
        """A rule with resourceNames does not allow to create the object of that name."""
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}
        rule["resourceNames"] = ["cfg"]
        request = Request(SERVER, "create", "", "configmaps", "", "kube-system", "cfg")
        self.assertEqual((request,), audit(granted(rule, "kube-system"), [request]).missing)

    def test_a_cluster_role_holds_in_every_namespace(self):
        """What a ClusterRoleBinding grants is allowed in a namespace, too."""
        grants = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        used = [
            Request(SERVER, "list", "", "pods"),
            Request(SERVER, "list", "", "pods", namespace="default"),
        ]
        self.assertEqual("", str(audit(grants, used)))

    def test_a_role_binding_keeps_a_cluster_role_in_its_namespace(self):
        """A ClusterRole that a RoleBinding refers to holds in the binding's namespace only."""
        role, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        binding["kind"] = "RoleBinding"
        binding["metadata"] = {"name": "one", "namespace": "default"}
        inside = Request(SERVER, "list", "", "pods", namespace="default")
        outside = Request(SERVER, "list", "", "pods", namespace="kube-system")
        self.assertEqual((outside,), audit([role, binding], [inside, outside]).missing)

    def test_groups_of_service_accounts_count(self):
        """What is granted to all service accounts is granted to each."""
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
        """A user who is called like a group is not granted what the group is."""
        role, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        binding["subjects"] = [{"kind": "Group", "name": "x"}]
        request = Request("x", "list", "", "pods")
        self.assertEqual((request,), audit([role, binding], [request]).missing)


class SuperfluousTests(unittest.TestCase):
    """What is granted must be used."""

    def test_each_verb_that_nobody_uses_is_named(self):
        """Leaving out one request reports exactly the grant that was for it."""
        for request in ALL:
            found = audit(objects(), [each for each in ALL if each is not request])
            (line,) = found.superfluous
            self.assertIn("superfluous: ", line)
            self.assertIn(f"{request.verb} {request.path}.", line)

    def test_names_are_looked_at_one_by_one(self):
        """Of two names in a rule the one that nobody asks for is superfluous."""
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
        """What is used in one namespace only belongs into a Role."""
        rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
        rule["verbs"] = ["list"]
        used = [Request(SERVER, "list", "discovery.k8s.io", "endpointslices", "", "kube-system")]
        (line,) = audit(granted(rule), used).superfluous
        self.assertIn("too wide", line)
        self.assertIn("kube-system only", line)
        self.assertEqual((), audit(granted(rule, "kube-system"), used).superfluous)

    def test_all_names_where_a_few_are_used_are_too_wide(self):
        """What is used for known names only belongs under resourceNames."""
        rule = {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}
        used = [Request(SERVER, "list", "", "services", "", "kube-system", "svc")]
        (line,) = audit(granted(rule, "kube-system"), used).superfluous
        self.assertIn("used for svc only", line)

    def test_names_that_are_generated_need_no_resource_names(self):
        """Reading certificate requests by name, and creating, are not too wide."""
        group = "certificates.k8s.io"
        rule = {"apiGroups": [group], "resources": ["certificatesigningrequests"]}
        rule["verbs"] = ["get"]
        used = [Request(SERVER, "get", group, "certificatesigningrequests", name="csr-x")]
        self.assertEqual((), audit(granted(rule), used).superfluous)
        rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}
        used = [Request(SERVER, "create", "coordination.k8s.io", "leases", "", "kube-system", "l")]
        self.assertEqual((), audit(granted(rule, "kube-system"), used).superfluous)

    def test_only_the_users_in_question_are_looked_at(self):
        """With users given, requests of others and grants to others are left out."""
        other = Request("somebody", "delete", "", "nodes")
        self.assertEqual("", str(audit(objects(), [*ALL, other], users=[SERVER])))
        self.assertEqual("", str(audit(objects(), [], users=["nobody"])))


class BindingTests(unittest.TestCase):
    """Bindings and roles belong together."""

    def test_a_binding_without_its_role_is_an_error(self):
        """A binding to a role that is not there names both."""
        _, binding = granted({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
        error = self.assertRaises(LookupError, list, grants_of([binding]))
        self.assertIn("ClusterRoleBinding one: no ClusterRole one", str(error))
