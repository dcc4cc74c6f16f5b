"""The cloud of a test: an API, and fault proxies as its servers in front of it.

All servers lead to the same API, so each gives the same responses, as in a cluster with several
kube-apiservers. The API is in the process of the test, which can access its objects directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.apiserver.bootstrap_roles import rule
from tests.apiserver.kinds import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, RESOURCES
from tests.apiserver.tokens import ISSUER
from tests.deploy.rendering import DEPLOY
from tests.e2e.cluster.embedded_api import EmbeddedAPI
from tests.e2e.cluster.identities import Identities
from tests.e2e.faults import FaultProxy
from tests.e2e.hub.canned import CannedAnswers
from tests.e2e.hub.node_identity import HubSigner, join
from tests.e2e.hub.programs import NODE
from yurtlab.api.resources import SERVICE_ACCOUNTS
from yurtlab.api.store import Object

KINDS = {kind.plural: kind for kind in RESOURCES}
"""The resources of the API, by their plural names."""

READ = "get list watch"

# The permissions of clients with the node's identity, in addition to those of hubs.
CLIENT_RULES: tuple[Object, ...] = (
    rule(READ, "", "configmaps", "namespaces", "nodes", "pods"),
    rule(READ, "storage.k8s.io", "csinodes"),
)


class Cloud:
    """An API with files in ``directory``, and that number of ``servers`` in front of it.

    ``store`` has its objects, ``identities`` creates other identities, ``signer`` signs the
    certificates of hubs, and ``requests`` has the callers and their requests: name, attributes, and
    whether the request was allowed. ``answers`` replace the API's responses, see
    :class:`CannedAnswers`.
    """

    def __init__(self, reactor, directory: str, servers: int = 1) -> None:
        self._reactor = reactor
        self.identities = Identities(reactor, Path(directory, "pki"))
        self.kubelet_port = 0
        self.api = EmbeddedAPI(
            reactor,
            "127.0.0.1",
            self.identities.serving("api", ["kubernetes"], "127.0.0.1"),
            self.identities.caller(),
            lambda: [("127.0.0.1", self.kubelet_port)],
            join=True,
            in_front=self._in_front,
        )
        self.store = self.api.store
        self.signer = HubSigner(reactor, self.identities, self.store)
        self.servers = [FaultProxy(reactor, self.api.port) for _ in range(servers)]
        self._left = False
        self.url = f"https://127.0.0.1:{self.api.port}"

    @property
    def urls(self) -> str:
        """The value of ``--server-addr`` for a hub."""
        return ",".join(f"https://127.0.0.1:{server.port}" for server in self.servers)

    def _in_front(self, handler) -> CannedAnswers:
        canned = CannedAnswers(handler)
        self.answers = canned.answers
        return canned

    @property
    def requests(self) -> set:
        """The callers and their requests."""
        return self.api.requests

    async def start(self) -> None:
        """Listen, with a node and its permissions."""
        await self.api.start(None)
        for server in self.servers:
            server.start()
        self.add("nodes", NODE, status={"conditions": [{"type": "Ready", "status": "True"}]})
        role, binding = yaml.safe_load_all((DEPLOY / "overlays/hub/rbac.yaml").read_text())
        self.store.create(CLUSTER_ROLES, None, role)
        self.store.create(CLUSTER_ROLE_BINDINGS, None, binding)
        self.grant("system:nodes", *CLIENT_RULES)

    def join(self, directory: str, node: str = NODE) -> None:
        """Create the files of a hub that has joined in its directory."""
        join(self._reactor, self.signer, self.identities, Path(directory), node)

    async def stop(self) -> None:
        """Stop everything."""
        for server in self.servers:
            await server.stop()
        self.signer.stop()
        await self.api.stop()

    # -- Faults --------------------------------------------------------------------------------

    async def refuse_connections(self) -> None:
        """Become unreachable with a known route: refuse and reset connections."""
        self._left = True
        for server in self.servers:
            await server.refuse()
            server.for_all("reset")

    def drop_packets(self, *servers: FaultProxy) -> None:
        """Drop all data to these servers, or to all, without any response."""
        for server in servers or self.servers:
            server.turns = 0
            server.for_all("swallow")

    def restore(self) -> None:
        """Become reachable again; lost connections stay lost."""
        for server in self.servers:
            server.turns = None
        if self._left:
            self._left = False
            for server in self.servers:
                server.start()

    # -- Objects -------------------------------------------------------------------------------

    def add(self, plural: str, name: str, namespace: str | None = None, **content: Any) -> Object:
        """Add an object; ``labels`` and ``annotations`` are put into its metadata."""
        metadata: Object = {"name": name}
        for field in ("labels", "annotations"):
            if field in content:
                metadata[field] = content.pop(field)
        body = {"metadata": metadata, **content}
        return self.store.create(KINDS[plural], namespace, body)

    def add_pod(self, name: str, namespace: str = "default", node: str = NODE, **content) -> Object:
        """Add a pod, by default on the node of the test."""
        containers = [{"name": "main", "image": "none"}]
        spec = {"nodeName": node, "containers": containers, **content.pop("spec", {})}
        return self.add("pods", name, namespace, spec=spec, **content)

    def using(self, name: str, *, config_maps: Iterable[str] = (), secrets: Iterable[str] = ()):
        """Add a pod that uses these objects, so that its kubelet may read them."""
        volumes = [{"name": each, "configMap": {"name": each}} for each in config_maps]
        volumes += [{"name": each, "secret": {"secretName": each}} for each in secrets]
        return self.add_pod(name, spec={"volumes": volumes})

    def change(self, plural: str, name: str, namespace: str | None = None, **content) -> Object:
        """Change fields of an object, or its labels."""
        kind = KINDS[plural]
        body = self.store.get(kind, namespace, name)
        if "labels" in content:
            body["metadata"]["labels"] = content.pop("labels")
        return self.store.replace(kind, namespace, name, {**body, **content})

    def remove(self, plural: str, name: str, namespace: str | None = None) -> Object:
        """Remove an object at once."""
        return self.store.remove(KINDS[plural], namespace, name)

    def grant(self, group: str, *rules: Object) -> None:
        """Grant rules to the members of a group in all namespaces."""
        number = len(self.store.view(CLUSTER_ROLES))
        metadata = {"name": f"test-{number}"}
        self.store.create(CLUSTER_ROLES, None, {"metadata": metadata, "rules": list(rules)})
        subject = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group}
        role = {"kind": "ClusterRole", "name": metadata["name"]}
        binding = {"metadata": metadata, "subjects": [subject], "roleRef": role}
        self.store.create(CLUSTER_ROLE_BINDINGS, None, binding)

    def token(self, account: str, namespace: str = "default", seconds: int = 3600) -> str:
        """Create a token of a service account, which is created with its first token."""
        known = {
            one["metadata"]["name"]: one for one in self.store.view(SERVICE_ACCOUNTS, namespace)
        }
        body = known.get(account) or self.add("serviceaccounts", account, namespace)
        return self.api.api.tokens.issue(body, [ISSUER], seconds)[0]

    def names(self, plural: str, namespace: str | None = None) -> list[str]:
        """Return the names of all objects."""
        return [one["metadata"]["name"] for one in self.store.view(KINDS[plural], namespace)]
