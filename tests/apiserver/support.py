"""The API of a cluster, for the lab's test clients."""

from __future__ import annotations

from tests.apiserver.api import ClusterAPI
from tests.yurtlab.api import support
from tests.yurtlab.api.support import user


def kubelet(node="edge-1"):
    """Return the certificate of a node's kubelet."""
    return user(f"system:node:{node}", "system:nodes")


class ApiTestCase(support.ApiTestCase):
    """A cluster's API with one node; ``audit`` has the recorded requests."""

    def make_api(self):
        """Create the API."""
        self.audit = []
        return ClusterAPI(
            self.clock,
            self.store,
            self.connections,
            on_request=lambda *request: self.audit.append(request),
        )

    def grant(self, name, *rules, namespace=None, kind="User", role="Role"):
        """Grant rules to a user: in the cluster, or in a namespace."""
        scope = f"namespaces/{namespace}/" if namespace else ""
        role = role if namespace else "ClusterRole"
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        place = scope if role == "Role" else ""
        metadata = {"name": f"of-{name.replace(':', '-')}"}
        self.create({"metadata": metadata, "rules": list(rules)}, f"{rbac}/{place}{role.lower()}s")
        subject = {"kind": kind, "name": name}
        binding = {
            "metadata": metadata,
            "subjects": [subject],
            "roleRef": {"kind": role, "name": metadata["name"]},
        }
        bindings = "rolebindings" if namespace else "clusterrolebindings"
        self.create(binding, f"{rbac}/{scope}{bindings}")
