"""The caching policy."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers
from tests.hub.test_configuration import hub_config_map
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.policy import Policy
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller, ResourceType
from yurttunnel.kube.resources import CONFIG_MAPS

PODS = ResourceType("", "v1", "pods")
KUBELET = Caller("kubelet")


def request_for(verb, resource=PODS, **more):
    """Create a request; the path does not matter for a resource."""
    return ApiRequest(verb, "/whatever", resource, **more)


class PolicyTestCase(SynchronousTestCase):
    """A policy, and its ConfigMap."""

    def setUp(self):
        """Make it."""
        self.informers = FakeInformers()
        self.evicted = []
        self.policy = Policy(
            HubConfiguration(self.informers, "kube-system", ()), self.evicted.append
        )

    def configure(self, agents):
        """Set the cached clients."""
        self.informers.put(CONFIG_MAPS, hub_config_map({"cache_agents": agents}))

    def caches(self, component, **more):
        """Return whether a list of pods is cached."""
        return self.policy.caches(Caller(component, **more), request_for("list"))


class RequestTests(PolicyTestCase):
    """Requests."""

    def test_verbs(self):
        """Reads are cached, and writes whose responses have the current object."""
        for verb in ("get", "list", "watch", "create", "update", "patch"):
            self.assertTrue(self.policy.caches(KUBELET, request_for(verb)), verb)
        for verb in ("delete", "deletecollection", "connect", "post"):
            self.assertFalse(self.policy.caches(KUBELET, request_for(verb)), verb)

    def test_subresources(self):
        """The status is the object; no other subresource is cached."""
        for subresource, kept in (("", True), ("status", True), ("log", False), ("token", False)):
            request = request_for("get", subresource=subresource)
            self.assertEqual(kept, self.policy.caches(KUBELET, request), subresource)

    def test_questions(self):
        """Reviews and requests to the cloud are not cached, nor are Leases."""
        for group, name in (
            ("authentication.k8s.io", "tokenreviews"),
            ("authentication.k8s.io", "selfsubjectreviews"),
            ("authorization.k8s.io", "subjectaccessreviews"),
            ("authorization.k8s.io", "localsubjectaccessreviews"),
            ("certificates.k8s.io", "certificatesigningrequests"),
            ("coordination.k8s.io", "leases"),
        ):
            for verb in ("get", "list", "create"):
                request = request_for(verb, ResourceType(group, "v1", name))
                self.assertFalse(self.policy.caches(KUBELET, request), name)

    def test_namesakes(self):
        """The rules apply only to resources of Kubernetes, not to others with the same name."""
        for name in ("leases", "tokenreviews", "certificatesigningrequests"):
            request = request_for("list", ResourceType("example.com", "v1", name))
            self.assertTrue(self.policy.caches(KUBELET, request), name)

    def test_events(self):
        """Events are cached for clients that read them, not for those that send them."""
        for group in ("", "events.k8s.io"):
            events = ResourceType(group, "v1", "events")
            self.assertTrue(self.policy.caches(KUBELET, request_for("list", events)))
            self.assertFalse(self.policy.caches(KUBELET, request_for("create", events)))
            self.assertFalse(self.policy.caches(KUBELET, request_for("patch", events)))

    def test_documents(self):
        """Versions, discovery and OpenAPI are cached for any client."""
        for path in ("/version", "/api", "/api/v1", "/apis", "/apis/apps/v1", "/openapi/v3/api/v1"):
            for component in ("kubelet", "kubectl"):
                request = ApiRequest("get", path)
                self.assertTrue(self.policy.caches(Caller(component), request), path)

    def test_other_paths(self):
        """Other paths have the cloud's current state; and only a GET returns a document."""
        for path in ("/healthz", "/livez/ping", "/metrics", "/", "/apisx", "/logs/x", "/versions"):
            self.assertFalse(self.policy.caches(KUBELET, ApiRequest("get", path)), path)
        self.assertFalse(self.policy.caches(KUBELET, ApiRequest("post", "/version")))


class ClientTests(PolicyTestCase):
    """Clients."""

    def test_default(self):
        """The default clients are cached, others are not."""
        for component in ("kubelet", "kube-proxy", "coredns", "flanneld", "raven-agent-ds"):
            self.assertTrue(self.caches(component), component)
        for component in ("yurthub", "yurtproxy", "yurttunnel", "yurttunnel-agent"):
            self.assertTrue(self.caches(component), component)
        for component in ("kubectl", "kube", "kubelet2", "*"):
            self.assertFalse(self.caches(component), component)

    def test_nameless(self):
        """Clients without a User-Agent, and the hub's pages, are never cached."""
        self.configure("*")
        for component in ("", PAGES):
            self.assertFalse(self.caches(component, wants_caching=True))
            self.assertFalse(self.policy.caches(Caller(component), ApiRequest("get", "/version")))

    def test_configured(self):
        """Clients listed in ``cache_agents`` are cached, with immediate effect."""
        self.configure("ingress, My-Op")
        self.assertTrue(self.caches("ingress"))
        self.assertTrue(self.caches("my-op"))
        self.assertFalse(self.caches("kubectl"))
        self.configure("*")
        self.assertTrue(self.caches("kubectl"))

    def test_simple_client(self):
        """A request can require caching, with the same restrictions."""
        caller = Caller("kubectl", wants_caching=True)
        self.assertTrue(self.policy.caches(caller, request_for("list")))
        self.assertFalse(self.policy.caches(caller, request_for("get", subresource="log")))
        self.assertFalse(self.policy.caches(caller, request_for("delete")))

    def test_views(self):
        """Owners of tokens have data of their own, separate from the node's and each other's."""
        caller = Caller("coredns", "t")
        dns, other = "system:serviceaccount:kube-system:coredns", "system:serviceaccount:a:b"
        views = {self.policy.client(caller, owner) for owner in ("", dns, other)}
        self.assertEqual({"coredns", f"coredns {dns}", f"coredns {other}"}, views)


class GuestTests(PolicyTestCase):
    """Guests, which are not the node's own clients."""

    def is_guest(self, component, owner=""):
        """Return whether a client is a guest."""
        return self.policy.is_guest(self.policy.client(Caller(component), owner))

    def test_own(self):
        """Listed components are the node's own, as the node or as a cluster's account."""
        account = "system:serviceaccount:kube-system:coredns"
        self.assertFalse(self.is_guest("kubelet"))
        self.assertFalse(self.is_guest("coredns", account))

    def test_other_owners(self):
        """A client with such a name and a token of another account is a guest."""
        for owner in (
            "system:serviceaccount:default:coredns",
            "system:serviceaccount:kube-systems:a",
            "somebody",
        ):
            self.assertTrue(self.is_guest("kubelet", owner), owner)

    def test_simple_client(self):
        """A client that is cached on request is a guest, also as the node, until it is listed."""
        self.assertTrue(self.is_guest("mine"))
        self.configure("mine")
        self.assertFalse(self.is_guest("mine"))
        self.assertTrue(self.is_guest("mine", "somebody"))


class ForgettingTests(PolicyTestCase):
    """Evictions when a name is removed from ``cache_agents``."""

    def cached_clients(self, *components):
        """Return which of the clients stay, by the last call."""
        caches = self.evicted.pop()
        self.assertEqual([], self.evicted)
        return {each for each in components if caches(each)}

    def test_name(self):
        """Only that name is evicted: others may be cached on request."""
        self.configure("a,b")
        self.assertEqual([], self.evicted)
        self.configure("b")
        self.assertEqual(
            {"b", "kubelet", "asked"}, self.cached_clients("a", "b", "kubelet", "asked")
        )

    def test_all(self):
        """Without ``*`` all clients are evicted that are not listed."""
        self.configure("*")
        self.configure("b")
        self.assertEqual({"b", "kubelet"}, self.cached_clients("a", "b", "kubelet"))

    def test_default(self):
        """A default client stays, and so do all when ``*`` replaces a name."""
        self.configure("kubelet,a")
        self.configure("*")
        self.assertEqual({"a", "b", "kubelet"}, self.cached_clients("a", "b", "kubelet"))

    def test_deleted(self):
        """Without the ConfigMap only the default clients are cached."""
        self.configure("a")
        self.informers.delete(CONFIG_MAPS, "yurt-hub-cfg", "kube-system")
        self.assertEqual({"kubelet"}, self.cached_clients("a", "kubelet"))
        self.assertFalse(self.caches("a"))

    def test_malformed(self):
        """An invalid value evicts nothing."""
        self.configure("a")
        self.configure("a b")
        self.assertEqual([], self.evicted)
        self.assertTrue(self.caches("a"))
