"""Each filter by examples."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hub.filters.site import Site
from tests.hub.filters.test_bodies import VALUES
from yurttunnel.hub.filters import (
    discardcloudservice,
    forwardkubesvctraffic,
    inclusterconfig,
    masterservice,
    nodeportisolation,
    serviceenvupdater,
    servicetopology,
)
from yurttunnel.hub.filters.chain import ORDER
from yurttunnel.hub.filters.interfaces import IFilter, IFilterMaker
from yurttunnel.hub.request.requests import ApiRequest, ResourceType

MODULES = (
    discardcloudservice,
    forwardkubesvctraffic,
    inclusterconfig,
    masterservice,
    nodeportisolation,
    serviceenvupdater,
    servicetopology,
)


def asking(verb, resource, group="", **more):
    """Make a request."""
    return ApiRequest(verb, "/whatever", ResourceType(group, "v1", resource), **more)


def named(name, namespace="default", **members):
    """Make an object."""
    return {"metadata": {"namespace": namespace, "name": name}, **members}


def annotated(annotations, **spec):
    """Make a Service."""
    metadata = {"namespace": "default", "name": "web", "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


class FilterTestCase(SynchronousTestCase):
    """One filter; ``module`` has its maker."""

    module = None

    def setUp(self):
        """Make it."""
        self.site = Site()
        self.filter = self.site.make(self.module.maker)

    def changed(self, obj):
        """Return what becomes of a copy of an object."""
        return self.filter.change(copy.deepcopy(obj))

    def assertStays(self, obj):
        """Check that nothing is changed."""
        self.assertEqual(obj, self.changed(obj))

    def assertApplies(self, expected, *requests):
        """Check for which requests it is."""
        for request in requests:
            self.assertEqual(expected, self.filter.applies(request), request)


class MasterServiceTests(FilterTestCase):
    """The Service of the API servers."""

    module = masterservice

    def test_kubernetes(self):
        """It has the hub's address and port, and all else as it was."""
        ports = [
            {"name": "https", "port": 443, "targetPort": 6443},
            {"name": "other", "port": 444},
        ]
        spec = {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "type": "ClusterIP"}
        found = self.changed(named("kubernetes", spec={**spec, "ports": ports}))
        self.assertEqual(
            {
                "clusterIP": "169.254.2.1",
                "clusterIPs": ["169.254.2.1"],
                "type": "ClusterIP",
                "ports": [
                    {"name": "https", "port": 10268, "targetPort": 6443},
                    {"name": "other", "port": 444},
                ],
            },
            found["spec"],
        )

    def test_old(self):
        """An API that has no ``clusterIPs`` yet gets none."""
        self.assertEqual(
            {"clusterIP": "169.254.2.1"}, self.changed(named("kubernetes", spec={}))["spec"]
        )

    def test_others(self):
        """Others stay as they are, whatever namespace or name they share with it."""
        for name, namespace in (("kubernetes", "other"), ("web", "default")):
            self.assertStays(named(name, namespace, spec={"clusterIP": "10.96.0.2"}))

    def test_requests(self):
        """It is for what may have that Service."""
        self.assertApplies(
            True,
            asking("list", "services"),
            asking("watch", "services", namespace="default"),
            asking("get", "services", namespace="default", name="kubernetes"),
        )
        self.assertApplies(
            False,
            asking("list", "services", namespace="kube-system"),
            asking("list", "services", name="web"),
            asking("list", "services", "serving.knative.dev"),
            asking("update", "services"),
            asking("get", "services", subresource="status"),
            ApiRequest("get", "/api/v1"),
        )

    def test_no_host(self):
        """Where pods do not reach the hub it is for nothing."""
        self.filter = Site(host="").make(masterservice.maker)
        self.assertApplies(False, asking("list", "services"))


class ForwardKubeSvcTrafficTests(FilterTestCase):
    """The endpoints of the API servers."""

    module = forwardkubesvctraffic

    def slice(self, name="kubernetes", family="IPv4"):
        """Make an EndpointSlice."""
        return named(
            name,
            addressType=family,
            endpoints=[{"addresses": ["192.0.2.1", "192.0.2.2"]}, {"addresses": ["192.0.2.3"]}],
            ports=[{"name": "https", "port": 6443, "protocol": "TCP"}],
        )

    def test_kubernetes(self):
        """The hub is the only one, by its own port."""
        found = self.changed(self.slice())
        self.assertEqual(
            [{"addresses": ["169.254.2.1"], "conditions": {"ready": True}}], found["endpoints"]
        )
        self.assertEqual([{"name": "https", "port": 10268, "protocol": "TCP"}], found["ports"])

    def test_none_known(self):
        """The hub is there even when the API servers have no endpoint left."""
        for endpoints in (None, []):
            found = self.changed({**self.slice(), "endpoints": endpoints})
            self.assertEqual(["169.254.2.1"], found["endpoints"][0]["addresses"])

    def test_family(self):
        """A slice of addresses of the other family stays, as the hub has none there."""
        self.assertStays(self.slice(family="IPv6"))
        self.filter = Site(host="fd00::2:1").make(forwardkubesvctraffic.maker)
        self.assertStays(self.slice())
        self.assertEqual(
            ["fd00::2:1"], self.changed(self.slice(family="IPv6"))["endpoints"][0]["addresses"]
        )

    def test_others(self):
        """Other slices stay."""
        self.assertStays(self.slice("web-abcde"))

    def test_requests(self):
        """It is for EndpointSlices."""
        group = "discovery.k8s.io"
        self.assertApplies(True, asking("watch", "endpointslices", group))
        self.assertApplies(
            False, asking("watch", "endpoints"), asking("list", "endpointslices", group, name="w")
        )


class DiscardCloudServiceTests(FilterTestCase):
    """Load balancers of the cloud."""

    module = discardcloudservice

    def test_discarded(self):
        """A LoadBalancer that says so is hidden."""
        service = annotated({"svc.openyurt.io/discard": "true"}, type="LoadBalancer")
        self.assertIsNone(self.changed(service))

    def test_kept(self):
        """Other LoadBalancers stay, and so does what is none."""
        for said in ({"svc.openyurt.io/discard": "false"}, {}, None, []):
            self.assertStays(annotated(said, type="LoadBalancer"))
        self.assertStays(annotated({"svc.openyurt.io/discard": "true"}, type="ClusterIP"))

    def test_tunnel(self):
        """The Service that leads to upstream's tunnel within the cloud is always hidden."""
        self.assertIsNone(self.changed(named("x-tunnel-server-internal-svc", "kube-system")))
        self.assertStays(named("x-tunnel-server-internal-svc", "other"))

    def test_requests(self):
        """Who asks for one by its path gets it."""
        self.assertApplies(True, asking("list", "services"), asking("watch", "services"))
        self.assertApplies(False, asking("get", "services", name="web"))


CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
clientConnection:
  burst: 0
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
"""


class InClusterConfigTests(FilterTestCase):
    """The ConfigMap of kube-proxy."""

    module = inclusterconfig

    def test_commented(self):
        """The line becomes a comment where it stands."""
        found = self.changed(named("kube-proxy", "kube-system", data={"config.conf": CONFIG}))
        expected = CONFIG.replace("  kubeconfig:", "  #kubeconfig:")
        self.assertEqual({"config.conf": expected}, found["data"])
        self.assertStays(found)

    def test_other_words(self):
        """Only the key is meant, not what begins or ends like it."""
        text = "mykubeconfig: a\nkubeconfigs: b\nname: kubeconfig\n"
        self.assertStays(named("kube-proxy", "kube-system", data={"config.conf": text}))

    def test_others(self):
        """Other ConfigMaps and other keys stay."""
        self.assertStays(named("kube-proxy", "default", data={"config.conf": CONFIG}))
        self.assertStays(named("kube-proxy", "kube-system", data={"kubeconfig.conf": CONFIG}))

    def test_requests(self):
        """The watches of kubelet for other ConfigMaps are none of it."""
        kube_proxy = {"namespace": "kube-system", "name": "kube-proxy"}
        self.assertApplies(
            True,
            asking("get", "configmaps", **kube_proxy),
            asking("watch", "configmaps", **kube_proxy),
            asking("list", "configmaps"),
        )
        self.assertApplies(
            False,
            asking("watch", "configmaps", namespace="kube-system", name="coredns"),
            asking("watch", "configmaps", namespace="default"),
        )

    def test_no_host(self):
        """Where pods do not reach the hub kube-proxy keeps the way that it has."""
        self.filter = Site(host="").make(inclusterconfig.maker)
        self.assertApplies(False, asking("list", "configmaps"))


class NodePortIsolationTests(FilterTestCase):
    """Node ports."""

    module = nodeportisolation

    def setUp(self):
        """Be in the pool ``east``."""
        super().setUp()
        self.site.label("east")

    def service(self, pools, type="NodePort"):
        """Make a Service."""
        ports = [{"port": 80, "nodePort": 30080}, {"port": 81}]
        return annotated(
            {"nodeport.openyurt.io/listen": pools},
            type=type,
            clusterIP="10.96.0.9",
            healthCheckNodePort=30081,
            ports=ports,
        )

    def test_listed(self):
        """They are open in pools that are listed, one by one or all."""
        for pools in ("east", "west, east", "*", "*,-west", "east,-east"):
            self.assertStays(self.service(pools))

    def test_not_listed(self):
        """They are closed elsewhere; the Service and its address stay."""
        expected = {
            "type": "NodePort",
            "clusterIP": "10.96.0.9",
            "ports": [{"port": 80}, {"port": 81}],
        }
        for pools in ("west", "-east,*", "*,-east", "-west", "-east,east", ""):
            self.assertEqual(expected, self.changed(self.service(pools))["spec"], pools)

    def test_load_balancer(self):
        """A LoadBalancer has node ports, too."""
        found = self.changed(self.service("west", type="LoadBalancer"))
        self.assertEqual([{"port": 80}, {"port": 81}], found["spec"]["ports"])

    def test_others(self):
        """A Service without the annotation stays, and one without node ports."""
        self.assertStays(annotated({}, type="NodePort", ports=[{"nodePort": 30080}]))
        self.assertStays(self.service("west", type="ClusterIP"))

    def test_no_pool(self):
        """On a node without a pool, or as long as none is known, all are open."""
        self.site.label("")
        self.assertStays(self.service("west"))
        self.site = Site(synced=False)
        self.filter = self.site.make(nodeportisolation.maker)
        self.assertStays(self.service("west"))

    def test_told(self):
        """Another pool is told, once somebody was shown something by it, but not its nodes."""
        self.site.pools.mates()
        self.site.label("west")
        self.assertEqual(0, self.site.changes)
        self.changed(self.service("west"))
        self.site.put_pool("west", "edge-1", "edge-2")
        self.assertEqual(0, self.site.changes)
        self.site.label("east")
        self.assertEqual(1, self.site.changes)


class ServiceEnvUpdaterTests(FilterTestCase):
    """Variables of containers."""

    module = serviceenvupdater

    def test_changed(self):
        """What containers set themselves is the hub's, in init containers, too."""
        env = [
            {"name": "KUBERNETES_SERVICE_HOST", "value": "api.example.com"},
            {"name": "A", "value": "b"},
            {"name": "KUBERNETES_SERVICE_PORT", "valueFrom": {"configMapKeyRef": {"key": "p"}}},
        ]
        containers = [{"name": "c", "env": env}, {"name": "d"}]
        found = self.changed(
            named("web", spec={"containers": containers, "initContainers": containers})
        )
        expected = [
            {
                "name": "c",
                "env": [
                    {"name": "KUBERNETES_SERVICE_HOST", "value": "169.254.2.1"},
                    {"name": "A", "value": "b"},
                    {"name": "KUBERNETES_SERVICE_PORT", "value": "10268"},
                ],
            },
            {"name": "d"},
        ]
        self.assertEqual({"containers": expected, "initContainers": expected}, found["spec"])

    def test_others(self):
        """Nothing is added, so that no container is started again."""
        self.assertStays(named("web", spec={"containers": [{"env": []}, {"env": None}, {}]}))

    def test_requests(self):
        """It is for pods, also as answers to patches, of a status, too."""
        self.assertApplies(
            True,
            asking("list", "pods"),
            asking("patch", "pods", subresource="status"),
            asking("get", "pods", name="web"),
        )
        self.assertApplies(
            False, asking("get", "pods", subresource="log"), asking("create", "pods")
        )


class ServiceTopologyTests(FilterTestCase):
    """Endpoints of Services that say where traffic stays."""

    module = servicetopology

    def setUp(self):
        """Be in a pool with another node."""
        super().setUp()
        self.site.label("east")
        self.site.put_pool("east", "edge-1", "edge-2")

    def say(self, keys, name="web"):
        """Have the Service say where traffic stays."""
        self.site.put_service(name, **({"openyurt.io/topologyKeys": keys} if keys else {}))

    def slice(self, *nodes, service="web"):
        """Make an EndpointSlice with an endpoint on each of the nodes."""
        metadata = {
            "namespace": "default",
            "name": "web-abcde",
            "labels": {"kubernetes.io/service-name": service},
        }
        endpoints = [{"addresses": [f"a-{each}"], "nodeName": each} for each in nodes]
        return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints}

    def nodes(self, *nodes):
        """Return of which of the nodes endpoints are shown."""
        return [each["nodeName"] for each in self.changed(self.slice(*nodes))["endpoints"]]

    def test_node(self):
        """They are those of the node."""
        self.say("kubernetes.io/hostname")
        self.assertEqual(["edge-1"], self.nodes("edge-1", "edge-2", "edge-3"))

    def test_pool(self):
        """They are those of the pool, by both names."""
        for keys in ("openyurt.io/nodepool", "kubernetes.io/zone"):
            self.say(keys)
            self.assertEqual(["edge-2", "edge-1"], self.nodes("edge-2", "edge-3", "edge-1"))

    def test_no_pool(self):
        """On a node without a pool it is the node."""
        self.site.label("")
        self.site.put_pool("east", "edge-2")
        self.say("openyurt.io/nodepool")
        self.assertEqual(["edge-1"], self.nodes("edge-1", "edge-2"))

    def test_unknown_pool(self):
        """As long as it is not known what belongs to the pool, all are shown."""
        self.site.label("west")
        self.say("openyurt.io/nodepool")
        self.assertStays(self.slice("edge-1", "edge-2", "edge-3"))

    def test_said_nothing(self):
        """Services that say nothing that is known, and that are not known, show all."""
        for keys in ("", "*", "kubernetes.io/region", "kubernetes.io/hostname,*"):
            self.say(keys)
            self.assertStays(self.slice("edge-1", "edge-3"))
        self.assertStays(self.slice("edge-3", service="unknown"))

    def test_empty(self):
        """A slice of which nothing is left is shown without endpoints."""
        self.say("kubernetes.io/hostname")
        self.assertEqual({**self.slice(), "endpoints": []}, self.changed(self.slice("edge-3")))

    def test_no_node(self):
        """An endpoint that is on no node is not shown, and harms nothing."""
        self.say("openyurt.io/nodepool")
        obj = self.slice("edge-1")
        obj["endpoints"] += [{"addresses": ["a"]}, {"nodeName": None}, {"nodeName": 1}, None, 7]
        self.assertEqual(self.slice("edge-1"), self.changed(obj))

    def test_old_slices(self):
        """Before Kubernetes 1.21 the node was in the topology."""
        self.say("kubernetes.io/hostname")
        obj = self.slice()
        obj["endpoints"] = [
            {"topology": {"kubernetes.io/hostname": each}} for each in ("edge-1", "edge-3")
        ]
        self.assertEqual(1, len(self.changed(obj)["endpoints"]))

    def test_endpoints(self):
        """Endpoints are the same by addresses; a subset of which none is left goes."""
        self.say("kubernetes.io/hostname")
        here, there = {"ip": "10.0.0.1", "nodeName": "edge-1"}, {"nodeName": "edge-3"}
        ports = [{"port": 80}]
        subsets = [
            {"addresses": [here, there], "ports": ports},
            {"addresses": [there], "notReadyAddresses": [here, {}], "ports": ports},
            {"notReadyAddresses": [there], "ports": ports},
            {"addresses": [{"ip": "203.0.113.1"}], "ports": ports},
        ]
        found = self.changed(named("web", subsets=subsets))
        self.assertEqual(
            [
                {"addresses": [here], "ports": ports},
                {"addresses": [], "notReadyAddresses": [here], "ports": ports},
            ],
            found["subsets"],
        )

    def test_told(self):
        """It is told when a Service says something else, or the pool has other nodes."""
        self.say("")
        self.assertEqual(0, self.site.changes)
        self.say("openyurt.io/nodepool")
        self.say("openyurt.io/nodepool")
        told = self.site.changes
        self.site.put_pool("east", "edge-1", "edge-2", "edge-4")
        self.site.put_pool("west", "edge-9")
        self.assertEqual(told + 1, self.site.changes)
        self.say("")
        self.assertEqual(told + 2, self.site.changes)

    def test_pool_is_nothing(self):
        """Where no Service asks for the pool, nothing that happens in it is told."""
        self.say("kubernetes.io/hostname")
        self.site.pools.mates()
        told = self.site.changes
        self.site.put_pool("east", "edge-1", "edge-4")
        self.assertEqual(told, self.site.changes)

    def test_pool_unasked(self):
        """Pools are followed only once a Service asks for them."""
        site = Site()
        site.make(servicetopology.maker)
        site.put_service("web", **{"openyurt.io/topologyKeys": "kubernetes.io/hostname"})
        self.assertEqual(1, len(site.informers.by_spec))
        site.put_service("web", **{"openyurt.io/topologyKeys": "openyurt.io/nodepool"})
        self.assertEqual(3, len(site.informers.by_spec))

    def test_deleted(self):
        """A Service that goes is not told: its endpoints go, too."""
        self.say("kubernetes.io/hostname")
        told = self.site.changes
        self.site.informers.delete(servicetopology.SERVICES, "web", "default")
        self.assertEqual(told, self.site.changes)

    def test_requests(self):
        """It is for endpoints of both kinds."""
        self.assertApplies(
            True,
            asking("list", "endpoints"),
            asking("watch", "endpointslices", "discovery.k8s.io"),
        )
        self.assertApplies(False, asking("list", "services"), asking("list", "endpointslices"))


class ReachTests(SynchronousTestCase):
    """The filters that lead pods to the hub, while pods do not reach it."""

    objects = {
        forwardkubesvctraffic: named(
            "kubernetes", addressType="IPv4", endpoints=[{"addresses": ["192.0.2.1"]}]
        ),
        inclusterconfig: named("kube-proxy", "kube-system", data={"config.conf": CONFIG}),
        masterservice: named("kubernetes", spec={"clusterIP": "10.96.0.1"}),
        serviceenvupdater: named(
            "web",
            spec={"containers": [{"env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "api"}]}]},
        ),
    }

    def test_led_while_it_is_reached(self):
        """What pods have stays until they reach the hub; each change is told, once."""
        for module, obj in self.objects.items():
            site = Site()
            site.reach.tell(False)
            made = site.make(module.maker)
            for reached, changes in ((False, 0), (True, 1), (True, 1), (False, 2)):
                site.reach.tell(reached)
                shown = made.change(copy.deepcopy(obj))
                self.assertEqual((reached, changes), (shown != obj, site.changes), module.__name__)


# Values for any member: half of what a filter looks at is then of another type.
KEYS = """
metadata spec data name namespace labels annotations type ports port nodePort clusterIP clusterIPs
endpoints nodeName topology subsets addresses notReadyAddresses addressType containers
initContainers env value valueFrom config.conf kubernetes.io/service-name kubernetes.io/hostname
nodeport.openyurt.io/listen svc.openyurt.io/discard
"""
WORDS = """
kubernetes default kube-system kube-proxy web IPv4 NodePort LoadBalancer https west true edge-1
KUBERNETES_SERVICE_HOST
"""
MEMBERS = st.sampled_from(KEYS.split())
OBJECTS = st.dictionaries(
    MEMBERS,
    st.recursive(
        st.sampled_from(WORDS.split()) | VALUES,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(MEMBERS, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)
NAMED = st.sampled_from(
    [
        named("kubernetes"),
        named("kube-proxy", "kube-system"),
        {"metadata": {"namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}},
        annotated({"nodeport.openyurt.io/listen": "west"}),
        {},
    ]
)


class AllFiltersTests(SynchronousTestCase):
    """What all of them have to be."""

    def setUp(self):
        """Make them where they have something to do."""
        self.site = Site()
        self.site.label("east")
        self.site.put_pool("east", "edge-1")
        self.site.put_service("web", **{"openyurt.io/topologyKeys": "openyurt.io/nodepool"})
        self.filters = [self.site.make(module.maker) for module in MODULES]

    def test_plugins(self):
        """Each is a plugin, by the name of its module, and there is a place for each."""
        found = {maker.name: maker for maker in getPlugins(IFilterMaker)}
        names = [module.__name__.rpartition(".")[2] for module in MODULES]
        self.assertEqual(sorted(names), sorted(found))
        self.assertEqual(sorted(names), sorted(ORDER))
        for maker, made in zip(found.values(), self.filters, strict=True):
            verifyObject(IFilterMaker, maker)
            verifyObject(IFilter, made)

    def test_service_proxies(self):
        """Our own service proxy is shown what kube-proxy is."""
        for module in MODULES:
            found = {"kube-proxy", "yurtproxy"} & module.maker.components
            self.assertIn(len(found), (0, 2), module.maker.name)

    @given(NAMED, OBJECTS)
    def test_malformed(self, name, obj):
        """None raises, whatever it is given, and what it gives is an object or nothing."""
        for each in self.filters:
            found = each.change(copy.deepcopy({**name, **obj}))
            self.assertIsInstance(found, dict | None)

    @given(st.sampled_from(range(len(MODULES))), OBJECTS)
    def test_own_changes_only(self, number, obj):
        """What has another name than it is about stays as it is, whatever it has."""
        obj = {**obj, "metadata": {"namespace": "elsewhere", "name": "other"}}
        if isinstance(obj.get("spec"), dict):
            # Variables are changed in all pods.
            obj["spec"].pop("containers", None)
            obj["spec"].pop("initContainers", None)
        self.assertEqual(obj, self.filters[number].change(copy.deepcopy(obj)))
