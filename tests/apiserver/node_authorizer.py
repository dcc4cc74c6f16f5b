"""Authorization of kubelets: general permissions, and those for their own node and pods.

The rules and messages are those of Kubernetes (plugin/pkg/auth/authorizer/node/node_authorizer.go,
with the feature AuthorizeNodeWithSelectors, which is on since 1.32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.apiserver.attributes import Attributes
from tests.apiserver.bootstrap_roles import NODE_RULES
from tests.apiserver.rbac import Decision, allows
from tests.apiserver.users import node_of
from yurtlab.api.access import User
from yurtlab.api.pods import containers
from yurtlab.api.resources import PODS
from yurtlab.api.store import Object, Store

LEASE_NAMESPACE = "kube-node-lease"

_READ = ("get", "list", "watch")
_ALLOWED, _NO_OPINION = Decision(True), Decision(False)


def _no(reason: str) -> Decision:
    return Decision(False, reason)


class NodeAuthorizer:
    """Authorizes requests of kubelets by the pods in ``store`` on their nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._particular: dict[tuple[str, str], Callable[[str, Attributes], Decision]] = {
            ("", "secrets"): self._contents,
            ("", "configmaps"): self._contents,
            ("", "serviceaccounts"): self._token,
            ("", "nodes"): _node,
            ("", "pods"): self._pod,
            ("coordination.k8s.io", "leases"): _lease,
        }

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """Return whether ``user`` is allowed to do this, which only kubelets can be."""
        node = node_of(user)
        if node is None:
            return _NO_OPINION
        if not node:
            return _no(f'unknown node for user "{user.name}"')
        particular = self._particular.get((attributes.group, attributes.resource))
        if particular is not None and not attributes.path:
            return particular(node, attributes)
        return Decision(any(allows(rule, attributes) for rule in NODE_RULES))

    def _contents(self, node: str, attributes: Attributes) -> Decision:
        """Authorize access to ConfigMaps and Secrets that pods on the node use."""
        if attributes.verb not in _READ:
            return _no("can only read resources of this type")
        if attributes.subresource:
            return _no("cannot read subresource")
        if not attributes.namespace:
            return _no("can only read namespaced object of this type")
        return self._related(node, attributes)

    def _token(self, node: str, attributes: Attributes) -> Decision:
        if attributes.verb != "create" or not attributes.name:
            return _no("can only create tokens for individual service accounts")
        if attributes.subresource != "token":
            return _no("can only create token subresource of serviceaccount")
        return self._related(node, attributes)

    def _pod(self, node: str, attributes: Attributes) -> Decision:
        match attributes.subresource, attributes.verb:
            case ("", "get"):
                return self._related(node, attributes)
            case ("", "list" | "watch"):
                if ("spec.nodeName", node) in attributes.fields:
                    return _ALLOWED
                if attributes.name:
                    return self._related(node, attributes)
                return _no("can only list/watch pods with spec.nodeName field selector")
            case (
                ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create")
            ):
                return _ALLOWED
        return _NO_OPINION

    def _related(self, node: str, attributes: Attributes) -> Decision:
        if not attributes.name:
            return _no("No Object name found")
        desired = (attributes.resource, attributes.name)
        for pod in self._store.view(PODS, attributes.namespace or None):
            if pod["spec"].get("nodeName") == node and desired in _references(pod):
                return _ALLOWED
        return _no(f"no relationship found between node '{node}' and this object")


def _node(node: str, attributes: Attributes) -> Decision:
    """Authorize access to nodes: a kubelet reads only its own; admission checks its writes."""
    match attributes.subresource, attributes.verb:
        case ("", "create" | "update" | "patch") | ("status", "update" | "patch"):
            return _ALLOWED
        case ("", "get" | "list" | "watch"):
            if attributes.name == node:
                return _ALLOWED
            what = f"'{attributes.name}'" if attributes.name else "all nodes"
            return _no(f"node '{node}' cannot read {what}, only its own Node object")
    return _NO_OPINION


def _lease(node: str, attributes: Attributes) -> Decision:
    verb = attributes.verb
    if verb not in ("get", "create", "update", "patch", "delete"):
        return _no("can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASE_NAMESPACE:
        return _no(f'can only access leases in the "{LEASE_NAMESPACE}" system namespace')
    if verb != "create" and attributes.name != node:
        return _no("can only access node lease with the same name as the requesting node")
    return _ALLOWED


def _references(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield the objects that a pod uses, as pairs of kind and name (pkg/api/v1/pod visitors)."""
    spec = pod["spec"]
    yield "pods", pod["metadata"]["name"]
    if spec.get("serviceAccountName"):
        yield "serviceaccounts", spec["serviceAccountName"]
    for secret in spec.get("imagePullSecrets", ()):
        yield "secrets", secret.get("name", "")
    for volume in spec.get("volumes", ()):
        yield from _of_volume(volume)
        for source in volume.get("projected", {}).get("sources", ()):
            yield from _of_source(source)
    for container in containers(spec):
        for source in container.get("envFrom", ()):
            yield "configmaps", source.get("configMapRef", {}).get("name", "")
            yield "secrets", source.get("secretRef", {}).get("name", "")
        for variable in container.get("env", ()):
            value = variable.get("valueFrom", {})
            yield "configmaps", value.get("configMapKeyRef", {}).get("name", "")
            yield "secrets", value.get("secretKeyRef", {}).get("name", "")


def _of_volume(volume: Object) -> Iterator[tuple[str, str]]:
    yield "configmaps", volume.get("configMap", {}).get("name", "")
    yield "secrets", volume.get("secret", {}).get("secretName", "")


def _of_source(source: Object) -> Iterator[tuple[str, str]]:
    yield "configmaps", source.get("configMap", {}).get("name", "")
    yield "secrets", source.get("secret", {}).get("name", "")
