"""What is kept of answers."""

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


def asking(verb, resource=PODS, **more):
    """Make a request; what its path is does not matter for a resource."""
    return ApiRequest(verb, "/whatever", resource, **more)


class PolicyTestCase(SynchronousTestCase):
    """A policy, and the ConfigMap that it follows."""

    def setUp(self):
        """Make it."""
        self.informers = FakeInformers()
        self.forgotten = []
        self.policy = Policy(
            HubConfiguration(self.informers, "kube-system", ()), self.forgotten.append
        )

    def configure(self, agents):
        """Set whose answers are kept."""
        self.informers.put(CONFIG_MAPS, hub_config_map({"cache_agents": agents}))

    def keeps(self, component, **more):
        """Return whether a list of pods is kept."""
        return self.policy.keeps(Caller(component, **more), asking("list"))


class RequestTests(PolicyTestCase):
    """Which requests."""

    def test_verbs(self):
        """What reads is kept, and what is answered with the object as it is now."""
        for verb in ("get", "list", "watch", "create", "update", "patch"):
            self.assertTrue(self.policy.keeps(KUBELET, asking(verb)), verb)
        for verb in ("delete", "deletecollection", "connect", "post"):
            self.assertFalse(self.policy.keeps(KUBELET, asking(verb)), verb)

    def test_subresources(self):
        """The status is the object; no other subresource is."""
        for subresource, kept in (("", True), ("status", True), ("log", False), ("token", False)):
            request = asking("get", subresource=subresource)
            self.assertEqual(kept, self.policy.keeps(KUBELET, request), subresource)

    def test_questions(self):
        """What asks the cloud something is not kept, nor what says who holds something now."""
        for group, name in (
            ("authentication.k8s.io", "tokenreviews"),
            ("authentication.k8s.io", "selfsubjectreviews"),
            ("authorization.k8s.io", "subjectaccessreviews"),
            ("authorization.k8s.io", "localsubjectaccessreviews"),
            ("certificates.k8s.io", "certificatesigningrequests"),
            ("coordination.k8s.io", "leases"),
        ):
            for verb in ("get", "list", "create"):
                request = asking(verb, ResourceType(group, "v1", name))
                self.assertFalse(self.policy.keeps(KUBELET, request), name)

    def test_namesakes(self):
        """Only the resources of Kubernetes are meant, not others of the same name."""
        for name in ("leases", "tokenreviews", "certificatesigningrequests"):
            request = asking("list", ResourceType("example.com", "v1", name))
            self.assertTrue(self.policy.keeps(KUBELET, request), name)

    def test_events(self):
        """Events are kept for who reads them, not for who sends them."""
        for group in ("", "events.k8s.io"):
            events = ResourceType(group, "v1", "events")
            self.assertTrue(self.policy.keeps(KUBELET, asking("list", events)))
            self.assertFalse(self.policy.keeps(KUBELET, asking("create", events)))
            self.assertFalse(self.policy.keeps(KUBELET, asking("patch", events)))

    def test_documents(self):
        """Whoever it is finds its way with versions, discovery and OpenAPI."""
        for path in ("/version", "/api", "/api/v1", "/apis", "/apis/apps/v1", "/openapi/v3/api/v1"):
            for component in ("kubelet", "kubectl"):
                request = ApiRequest("get", path)
                self.assertTrue(self.policy.keeps(Caller(component), request), path)

    def test_other_paths(self):
        """Other paths say how the cloud is now; and only a GET is answered with a document."""
        for path in ("/healthz", "/livez/ping", "/metrics", "/", "/apisx", "/logs/x", "/versions"):
            self.assertFalse(self.policy.keeps(KUBELET, ApiRequest("get", path)), path)
        self.assertFalse(self.policy.keeps(KUBELET, ApiRequest("post", "/version")))


class ClientTests(PolicyTestCase):
    """Whose."""

    def test_default(self):
        """Clients that each node has are kept, others are not."""
        for component in ("kubelet", "kube-proxy", "coredns", "flanneld", "raven-agent-ds"):
            self.assertTrue(self.keeps(component), component)
        for component in ("yurthub", "yurtproxy", "yurttunnel", "yurttunnel-agent"):
            self.assertTrue(self.keeps(component), component)
        for component in ("kubectl", "kube", "kubelet2", "*"):
            self.assertFalse(self.keeps(component), component)

    def test_nameless(self):
        """Who does not say what it is is never kept, though it asks for it; nor are hub pages."""
        self.configure("*")
        for component in ("", PAGES):
            self.assertFalse(self.keeps(component, keep=True))
            self.assertFalse(self.policy.keeps(Caller(component), ApiRequest("get", "/version")))

    def test_configured(self):
        """Those that ``cache_agents`` lists are kept, from that moment on."""
        self.configure("ingress, My-Op")
        self.assertTrue(self.keeps("ingress"))
        self.assertTrue(self.keeps("my-op"))
        self.assertFalse(self.keeps("kubectl"))
        self.configure("*")
        self.assertTrue(self.keeps("kubectl"))

    def test_asking(self):
        """A request can ask for it, within the same bounds."""
        caller = Caller("kubectl", keep=True)
        self.assertTrue(self.policy.keeps(caller, asking("list")))
        self.assertFalse(self.policy.keeps(caller, asking("get", subresource="log")))
        self.assertFalse(self.policy.keeps(caller, asking("delete")))

    def test_views(self):
        """Owners of tokens have views of their own, apart from the node's and each other's."""
        caller = Caller("coredns", "t")
        dns, other = "system:serviceaccount:kube-system:coredns", "system:serviceaccount:a:b"
        views = {self.policy.client(caller, owner) for owner in ("", dns, other)}
        self.assertEqual({"coredns", f"coredns {dns}", f"coredns {other}"}, views)


class GuestTests(PolicyTestCase):
    """Who is not one of the node's own."""

    def is_guest(self, component, owner=""):
        """Return whether that client is one."""
        return self.policy.is_guest(self.policy.client(Caller(component), owner))

    def test_own(self):
        """Components that are listed are the node's own, as the node or as the cluster's."""
        account = "system:serviceaccount:kube-system:coredns"
        self.assertFalse(self.is_guest("kubelet"))
        self.assertFalse(self.is_guest("coredns", account))

    def test_other_owners(self):
        """Whoever only says such a name with a token of his own is a guest."""
        for owner in (
            "system:serviceaccount:default:coredns",
            "system:serviceaccount:kube-systems:a",
            "somebody",
        ):
            self.assertTrue(self.is_guest("kubelet", owner), owner)

    def test_asking(self):
        """Who is kept because it asked for it is one, also as the node, until it is listed."""
        self.assertTrue(self.is_guest("mine"))
        self.configure("mine")
        self.assertFalse(self.is_guest("mine"))
        self.assertTrue(self.is_guest("mine", "somebody"))


class ForgettingTests(PolicyTestCase):
    """What goes when a name is taken out of ``cache_agents``."""

    def kept(self, *components):
        """Return which of the clients stay, by what was told last."""
        keeps = self.forgotten.pop()
        self.assertEqual([], self.forgotten)
        return {each for each in components if keeps(each)}

    def test_name(self):
        """Exactly that name goes: another may be kept because it asked for it."""
        self.configure("a,b")
        self.assertEqual([], self.forgotten)
        self.configure("b")
        self.assertEqual({"b", "kubelet", "asked"}, self.kept("a", "b", "kubelet", "asked"))

    def test_all(self):
        """With ``*`` all go that are not listed."""
        self.configure("*")
        self.configure("b")
        self.assertEqual({"b", "kubelet"}, self.kept("a", "b", "kubelet"))

    def test_default(self):
        """A client that is kept anyway stays, and so does all when ``*`` takes a name's place."""
        self.configure("kubelet,a")
        self.configure("*")
        self.assertEqual({"a", "b", "kubelet"}, self.kept("a", "b", "kubelet"))

    def test_deleted(self):
        """Without the ConfigMap only the default clients are kept."""
        self.configure("a")
        self.informers.delete(CONFIG_MAPS, "yurt-hub-cfg", "kube-system")
        self.assertEqual({"kubelet"}, self.kept("a", "kubelet"))
        self.assertFalse(self.keeps("a"))

    def test_malformed(self):
        """A value that cannot be read takes nothing away."""
        self.configure("a")
        self.configure("a b")
        self.assertEqual([], self.forgotten)
        self.assertTrue(self.keeps("a"))
