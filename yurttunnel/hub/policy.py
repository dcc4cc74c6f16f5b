"""What is kept of answers: whose, and of which requests.

Kept are answers about objects, for the clients that a node always has, for those that
``cache_agents`` of ``yurt-hub-cfg`` names, and for any that asks for it by ``Edge-Cache: true``;
and for every client what it needs to find its way: versions, discovery and OpenAPI.
Whoever is not one of the node's own components is a guest: what is kept for guests takes nothing of
what is for those.

Not kept are

- reviews, requests for tokens and CertificateSigningRequests, which are questions to the cloud;
- Leases: the node's own is the hub's, and the others' say who holds something now, which nobody
  may learn from a copy. They would be most of what is written, too;
- Events on their way to the cloud, which are queued apart and never read here;
- what subresources answer, but for ``status``, which is the object.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.hub.configuration import ALL, CACHE_AGENTS, HubConfiguration
from yurttunnel.hub.request.callers import PAGES, SERVICE_ACCOUNT
from yurttunnel.hub.request.requests import ApiRequest, Caller, ResourceType

DEFAULT_CLIENTS = frozenset(
    {
        "coredns",
        "flanneld",
        "kube-proxy",
        "kubelet",
        "raven-agent-ds",
        "yurthub",
        "yurtproxy",
        # The tunnel's agent: of this package, and of upstream.
        "yurttunnel",
        "yurttunnel-agent",
    }
)
"""Those of upstream (pkg/yurthub/util, ``DefaultCacheAgents``), our own agent and service proxy."""

_SYSTEM = f"{SERVICE_ACCOUNT}kube-system:"
"""What the owners of the tokens of a cluster's own components are called."""

_READING = frozenset({"get", "list", "watch"})
_KEPT_VERBS = _READING | {"create", "update", "patch"}
_KEPT_SUBRESOURCES = frozenset({"", "status"})

_QUESTIONS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""Groups that have nothing but reviews."""

_NEVER_KEPT = frozenset(
    {
        ("certificates.k8s.io", "certificatesigningrequests"),
        ("coordination.k8s.io", "leases"),
    }
)

_NEVER_A_CLIENT = frozenset({"", PAGES})
"""Who does not say what it is, and the hub's pages, which show what kubelet knows."""

_DOCUMENTS = ("/version", "/api", "/apis", "/openapi")


class Policy:
    """Follows ``configuration``.

    ``forget(keeps)`` is called when clients are kept no longer: what the cache has of a client
    goes unless ``keeps(component)``, whoever owned the tokens.
    """

    def __init__(
        self,
        configuration: HubConfiguration,
        forget: Callable[[Callable[[str], bool]], object],
    ) -> None:
        self._configuration = configuration
        self._forget = forget
        self._listed = configuration.components(CACHE_AGENTS)
        configuration.on_changed.append(self._changed)

    def keeps(self, caller: Caller, request: ApiRequest) -> bool:
        """Return whether the answer to a request is kept, and so may be given offline."""
        if caller.component in _NEVER_A_CLIENT:
            return False
        if request.resource is None:
            return request.verb == "get" and _is_document(request.path)
        return (
            request.verb in _KEPT_VERBS
            and request.subresource in _KEPT_SUBRESOURCES
            and _is_kept(request.resource, request.verb)
            and (caller.keep or self._is_listed(caller.component))
        )

    def is_configured(self, caller: Caller) -> bool:
        """Return whether it is neither always one of the clients, nor asks for it itself."""
        return bool(caller.component) and not (caller.keep or caller.component in DEFAULT_CLIENTS)

    def client(self, caller: Caller, owner: str) -> str:
        """Return the component for the node, and the component of an owner for a token."""
        return f"{caller.component} {owner}" if owner else caller.component

    def is_guest(self, client: str) -> bool:
        """Return whether a client is not one of the node's own, by what :meth:`client` returned.

        Its own are those that are listed: with the node's identity, or with that of an account of
        the cluster itself. A name alone is nothing, since everybody may say any.
        """
        component, _, owner = client.partition(" ")
        return not self._is_listed(component) or (owner != "" and not owner.startswith(_SYSTEM))

    def _is_listed(self, component: str) -> bool:
        return component in DEFAULT_CLIENTS or not self._listed.isdisjoint((component, ALL))

    def _changed(self) -> None:
        before, self._listed = self._listed, self._configuration.components(CACHE_AGENTS)
        gone = before - self._listed
        if ALL in gone:
            self._forget(self._is_listed)
        elif gone:
            # The others may be kept because they asked for it.
            self._forget(lambda component: component not in gone or self._is_listed(component))


def _is_kept(resource: ResourceType, verb: str) -> bool:
    if resource.group in _QUESTIONS or (resource.group, resource.name) in _NEVER_KEPT:
        return False
    return resource.name != "events" or verb in _READING


def _is_document(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in _DOCUMENTS)
