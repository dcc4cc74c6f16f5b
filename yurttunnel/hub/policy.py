"""Which clients' responses are cached, and for which requests.

Objects are cached for the default clients, for those that ``cache_agents`` of ``yurt-hub-cfg``
lists, and for those that request it with ``Edge-Cache: true``. Versions, discovery and OpenAPI are
cached for every client with a User-Agent.

All clients except the node's own components are guests, whose data takes no room from theirs.

These responses are not cached:

- reviews, requests for tokens and CertificateSigningRequests, which only the cloud can answer;
- Leases: the hub manages the node's own, and others have the current holder of a lock, which must
  not be read from a copy. They would also be most of the writes;
- Events to be sent to the cloud, which have a queue of their own and are never read here;
- subresources, except ``status``, which returns the whole object.
"""

from __future__ import annotations

from collections.abc import Callable

from yurttunnel.hub.configuration import ALL, CACHE_AGENTS, HubConfiguration
from yurttunnel.hub.request.callers import PAGES, SERVICE_ACCOUNT
from yurttunnel.hub.request.requests import ApiRequest, Caller

DEFAULT_CLIENTS = frozenset(
    {
        "coredns",
        "flanneld",
        "kube-proxy",
        "kubelet",
        "raven-agent-ds",
        "yurthub",
        "yurtproxy",
        # The tunnel's agent: this package's, and upstream's.
        "yurttunnel",
        "yurttunnel-agent",
    }
)
"""Upstream's (pkg/yurthub/util, ``DefaultCacheAgents``), and our own agent and service proxy."""

_SYSTEM = f"{SERVICE_ACCOUNT}kube-system:"
"""The prefix of the names of the cluster's own components in their tokens."""

_READ_VERBS = frozenset({"get", "list", "watch"})
_CACHEABLE_VERBS = _READ_VERBS | {"create", "update", "patch"}
_CACHEABLE_SUBRESOURCES = frozenset({"", "status"})

_REVIEW_GROUPS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""API groups with only reviews."""

_NEVER_CACHED = frozenset(
    {("certificates.k8s.io", "certificatesigningrequests"), ("coordination.k8s.io", "leases")}
)

_NEVER_A_CLIENT = frozenset({"", PAGES})
"""Clients without a User-Agent, and the hub's pages, which show the kubelet's cached data."""

_DOCUMENTS = ("/version", "/api", "/apis", "/openapi")


class Policy:
    """The policy that ``configuration`` defines.

    ``evict(caches)`` is called when clients are no longer cached: the cache then deletes their
    data unless ``caches(component)``, whoever owns their tokens.
    """

    def __init__(
        self, configuration: HubConfiguration, evict: Callable[[Callable[[str], bool]], object]
    ) -> None:
        self._configuration = configuration
        self._evict = evict
        self.cache_agents = configuration.components(CACHE_AGENTS)
        """The configured clients; a new set, compared by identity, when :meth:`caches` changes."""
        configuration.on_changed.append(self._changed)

    def caches(self, caller: Caller, request: ApiRequest) -> bool:
        """Return whether the response to a request is cached, and so may be served offline."""
        if caller.component in _NEVER_A_CLIENT:
            return False
        verb, resource = request.verb, request.resource
        if resource is None:
            return verb == "get" and _is_document(request.path)
        return (
            verb in _CACHEABLE_VERBS
            and request.subresource in _CACHEABLE_SUBRESOURCES
            and resource.group not in _REVIEW_GROUPS
            and (resource.group, resource.name) not in _NEVER_CACHED
            and (resource.name != "events" or verb in _READ_VERBS)
            and (caller.wants_caching or self._is_cached_agent(caller.component))
        )

    def is_configured(self, caller: Caller) -> bool:
        """Return whether a caller is not a default client and does not request caching itself."""
        return bool(caller.component) and not (
            caller.wants_caching or caller.component in DEFAULT_CLIENTS
        )

    def client(self, caller: Caller, owner: str) -> str:
        """Return the component for the node, or the component with the owner of a token."""
        return f"{caller.component} {owner}" if owner else caller.component

    def is_guest(self, client: str) -> bool:
        """Return whether a client is a guest; ``client`` is a result of :meth:`client`.

        The node's own clients are the listed components with the node's identity, or that of a
        service account of ``kube-system``. A component alone proves nothing: any client can send
        any User-Agent.
        """
        component, _, owner = client.partition(" ")
        return not self._is_cached_agent(component) or (
            owner != "" and not owner.startswith(_SYSTEM)
        )

    def _is_cached_agent(self, component: str) -> bool:
        return component in DEFAULT_CLIENTS or not self.cache_agents.isdisjoint((component, ALL))

    def _changed(self) -> None:
        before, self.cache_agents = (
            self.cache_agents,
            self._configuration.components(CACHE_AGENTS),
        )
        removed = before - self.cache_agents
        if ALL in removed:
            self._evict(self._is_cached_agent)
        elif removed:
            # The other clients may be cached because they requested it.
            self._evict(
                lambda component: component not in removed or self._is_cached_agent(component)
            )


def _is_document(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in _DOCUMENTS)
