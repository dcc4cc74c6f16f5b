"""The default roles and bindings of a cluster, as far as they matter here.

They are those of Kubernetes (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.apiserver.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from yurtlab.api.store import Object, Store

_RBAC = "rbac.authorization.k8s.io"
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_ANNOTATIONS = {f"{_RBAC}/autoupdate": "true"}


def rule(verbs: str, group: str, *resources: str) -> Object:
    """Return a rule that grants ``verbs``, separated by spaces, on resources of a group."""
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": list(resources)}


def _paths(*paths: str) -> Object:
    return {"verbs": ["get"], "nonResourceURLs": list(paths)}


NODE_RULES: Sequence[Object] = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "subjectaccessreviews", "localsubjectaccessreviews"),
    rule("get list watch", "", "services"),
    rule("create patch update", "", "events"),
    rule("get", "", "endpoints"),
    rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests"),
    rule("get list watch", "node.k8s.io", "runtimeclasses"),
    rule("get list watch", "storage.k8s.io", "csidrivers"),
)
"""The permissions of all kubelets, in addition to those for their own objects (``NodeRules``)."""

_ROLES: dict[str, list[Object]] = {
    "cluster-admin": [rule("*", "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]}],
    "system:basic-user": [
        rule(
            "create", "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"
        ),
        rule("create", "authentication.k8s.io", "selfsubjectreviews"),
    ],
    "system:discovery": [
        _paths(
            *("/livez", "/readyz", "/healthz"),
            *("/version", "/version/"),
            *("/openapi", "/openapi/*"),
            *("/api", "/api/*"),
            *("/apis", "/apis/*"),
        )
    ],
    "system:public-info-viewer": [_paths("/livez", "/readyz", "/healthz", "/version", "/version/")],
    "system:monitoring": [
        _paths("/healthz/*", "/livez/*", "/readyz/*", "/metrics", "/metrics/slis")
    ],
    "system:auth-delegator": [
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
    ],
    "system:kubelet-api-admin": [
        rule("get list watch", "", "nodes"),
        rule("proxy", "", "nodes"),
        rule("*", "", "nodes/log", "nodes/metrics", "nodes/proxy", "nodes/stats"),
    ],
    "system:node-bootstrapper": [
        rule("create get list watch", "certificates.k8s.io", "certificatesigningrequests")
    ],
}

_BINDINGS: dict[str, tuple[str, ...]] = {
    "cluster-admin": ("system:masters",),
    "system:basic-user": ("system:authenticated",),
    "system:discovery": ("system:authenticated",),
    "system:public-info-viewer": ("system:authenticated", "system:unauthenticated"),
    "system:monitoring": ("system:monitoring",),
}
"""The groups to which each role is bound, by a binding with the role's name."""


def add_initial_roles(store: Store) -> None:
    """Create the default roles and bindings."""
    for name, rules in _ROLES.items():
        store.create(CLUSTER_ROLES, None, {"metadata": _metadata(name), "rules": rules})
    for name, groups in _BINDINGS.items():
        body = {
            "metadata": _metadata(name),
            "subjects": [{"kind": "Group", "apiGroup": _RBAC, "name": group} for group in groups],
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        }
        store.create(CLUSTER_ROLE_BINDINGS, None, body)


def _metadata(name: str) -> Object:
    return {"name": name, "labels": _LABELS, "annotations": _ANNOTATIONS}
