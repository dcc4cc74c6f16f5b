"""Examples for each filter."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.hub.filters.site import Site
from tests.hub.filters.test_bodies import VALUES
from twisted.plugins.yurttunnel_hub_filters import (
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
from yurttunnel.kube.resources import SERVICES

MAKERS = (
    discardcloudservice,
    forwardkubesvctraffic,
    inclusterconfig,
    masterservice,
    nodeportisolation,
    serviceenvupdater,
    servicetopology,
)


def request_for(verb, resource, group="", **more):
    """Create a request."""
    return ApiRequest(verb, "/whatever", ResourceType(group, "v1", resource), **more)


def named(name, namespace="default", **members):
    """Create an object."""
    return {"metadata": {"namespace": namespace, "name": name}, **members}


def annotated(annotations, **spec):
    """Create a Service."""
    metadata = {"namespace": "default", "name": "web", "annotations": annotations}
    return {"metadata": metadata, "spec": spec}


class FilterTestCase(SynchronousTestCase):
    """Tests of one filter; ``maker`` makes it."""

    maker = None

    def setUp(self):
        """Create the filter."""
        self.site = Site()
        self.filter = self.site.make(self.maker)

    def changed(self, obj):
        """Return the changed copy of an object."""
        return self.filter.change(copy.deepcopy(obj))

    def assertStays(self, obj):
        """Assert that an object is not changed."""
        self.assertEqual(obj, self.changed(obj))

    def assertApplies(self, expected, *requests):
        """Assert to which requests the filter applies."""
        for request in requests:
            self.assertEqual(expected, self.filter.applies(request), request)


class MasterServiceTests(FilterTestCase):
    """The Service of the API servers."""

    maker = masterservice

    def test_kubernetes(self):
        """It gets the hub's address and port; everything else is unchanged."""
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
        """An older API without ``clusterIPs`` gets none."""
        self.assertEqual(
            {"clusterIP": "169.254.2.1"}, self.changed(named("kubernetes", spec={}))["spec"]
        )

    def test_others(self):
        """Other Services are unchanged, even with the same namespace or name."""
        for name, namespace in (("kubernetes", "other"), ("web", "default")):
            self.assertStays(named(name, namespace, spec={"clusterIP": "10.96.0.2"}))

    def test_requests(self):
        """It applies to requests that may return that Service."""
        self.assertApplies(
            True,
            request_for("list", "services"),
            request_for("watch", "services", namespace="default"),
            request_for("get", "services", namespace="default", name="kubernetes"),
        )
        self.assertApplies(
            False,
            request_for("list", "services", namespace="kube-system"),
            request_for("list", "services", name="web"),
            request_for("list", "services", "serving.knative.dev"),
            request_for("update", "services"),
            request_for("get", "services", subresource="status"),
            ApiRequest("get", "/api/v1"),
        )

    def test_no_host(self):
        """Without an address for pods it never applies."""
        self.filter = Site(host="").make(masterservice)
        self.assertApplies(False, request_for("list", "services"))


class ForwardKubeSvcTrafficTests(FilterTestCase):
    """The endpoints of the API servers."""

    maker = forwardkubesvctraffic

    def slice(self, name="kubernetes", family="IPv4"):
        """The hub is the only endpoint, with its own port."""
        return named(
            name,
            addressType=family,
            endpoints=[{"addresses": ["192.0.2.1", "192.0.2.2"]}, {"addresses": ["192.0.2.3"]}],
            ports=[{"name": "https", "port": 6443, "protocol": "TCP"}],
        )

    def test_kubernetes(self):
        """The hub is an endpoint even if the API servers have none."""
        found = self.changed(self.slice())
        self.assertEqual(
            [{"addresses": ["169.254.2.1"], "conditions": {"ready": True}}], found["endpoints"]
        )
        self.assertEqual([{"name": "https", "port": 10268, "protocol": "TCP"}], found["ports"])

    def test_none_known(self):
        """A slice of the other address family is unchanged."""
        for endpoints in (None, []):
            found = self.changed({**self.slice(), "endpoints": endpoints})
            self.assertEqual(["169.254.2.1"], found["endpoints"][0]["addresses"])

    def test_family(self):
        """Other slices are unchanged."""
        self.assertStays(self.slice(family="IPv6"))
        self.filter = Site(host="fd00::2:1").make(forwardkubesvctraffic)
        self.assertStays(self.slice())
        self.assertEqual(
            ["fd00::2:1"], self.changed(self.slice(family="IPv6"))["endpoints"][0]["addresses"]
        )

    def test_others(self):
        """It applies to EndpointSlices."""
        self.assertStays(self.slice("web-abcde"))

    def test_requests(self):
        """It is for EndpointSlices."""
        group = "discovery.k8s.io"
        self.assertApplies(True, request_for("watch", "endpointslices", group))
        self.assertApplies(
            False,
            request_for("watch", "endpoints"),
            request_for("list", "endpointslices", group, name="w"),
        )


class DiscardCloudServiceTests(FilterTestCase):
    """Load balancers of the cloud."""

    maker = discardcloudservice

    def test_discarded(self):
        """A LoadBalancer with the annotation is hidden."""
        service = annotated({"svc.openyurt.io/discard": "true"}, type="LoadBalancer")
        self.assertIsNone(self.changed(service))

    def test_cached(self):
        """Other LoadBalancers and other Services stay."""
        for members_json in ({"svc.openyurt.io/discard": "false"}, {}, None, []):
            self.assertStays(annotated(members_json, type="LoadBalancer"))
        self.assertStays(annotated({"svc.openyurt.io/discard": "true"}, type="ClusterIP"))

    def test_tunnel(self):
        """The Service of upstream's tunnel server for the cloud is always hidden."""
        self.assertIsNone(self.changed(named("x-tunnel-server-internal-svc", "kube-system")))
        self.assertStays(named("x-tunnel-server-internal-svc", "other"))

    def test_requests(self):
        """It does not apply to a get of a single Service."""
        self.assertApplies(True, request_for("list", "services"), request_for("watch", "services"))
        self.assertApplies(False, request_for("get", "services", name="web"))


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

    maker = inclusterconfig

    def test_commented(self):
        """The line is commented out in place."""
        found = self.changed(named("kube-proxy", "kube-system", data={"config.conf": CONFIG}))
        expected = CONFIG.replace("  kubeconfig:", "  #kubeconfig:")
        self.assertEqual({"config.conf": expected}, found["data"])
        self.assertStays(found)

    def test_other_words(self):
        """Keys with the same prefix or suffix are unchanged."""
        text = "mykubeconfig: a\nkubeconfigs: b\nname: kubeconfig\n"
        self.assertStays(named("kube-proxy", "kube-system", data={"config.conf": text}))

    def test_others(self):
        """Other ConfigMaps and other keys are unchanged."""
        self.assertStays(named("kube-proxy", "default", data={"config.conf": CONFIG}))
        self.assertStays(named("kube-proxy", "kube-system", data={"kubeconfig.conf": CONFIG}))

    def test_requests(self):
        """It does not apply to the kubelet's watches of other ConfigMaps."""
        kube_proxy = {"namespace": "kube-system", "name": "kube-proxy"}
        self.assertApplies(
            True,
            request_for("get", "configmaps", **kube_proxy),
            request_for("watch", "configmaps", **kube_proxy),
            request_for("list", "configmaps"),
        )
        self.assertApplies(
            False,
            request_for("watch", "configmaps", namespace="kube-system", name="coredns"),
            request_for("watch", "configmaps", namespace="default"),
        )

    def test_no_host(self):
        """Without an address for pods kube-proxy's configuration is unchanged."""
        self.filter = Site(host="").make(inclusterconfig)
        self.assertApplies(False, request_for("list", "configmaps"))


class NodePortIsolationTests(FilterTestCase):
    """Node ports."""

    maker = nodeportisolation

    def setUp(self):
        """Put the node into the pool ``east``."""
        super().setUp()
        self.site.label("east")

    def service(self, pools, type="NodePort"):
        """Create a Service."""
        ports = [{"port": 80, "nodePort": 30080}, {"port": 81}]
        return annotated(
            {"nodeport.openyurt.io/listen": pools},
            type=type,
            clusterIP="10.96.0.9",
            healthCheckNodePort=30081,
            ports=ports,
        )

    def test_listed(self):
        """They are open in listed pools, by name or all."""
        for pools in ("east", "west, east", "*", "*,-west", "east,-east"):
            self.assertStays(self.service(pools))

    def test_not_listed(self):
        """They are closed in other pools; the Service and its cluster IP stay."""
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
        """Services without the annotation, or without node ports, are unchanged."""
        self.assertStays(annotated({}, type="NodePort", ports=[{"nodePort": 30080}]))
        self.assertStays(self.service("west", type="ClusterIP"))

    def test_no_pool(self):
        """On a node without a pool, or while the pool is unknown, all are open."""
        self.site.label("")
        self.assertStays(self.service("west"))
        self.site = Site(synced=False)
        self.filter = self.site.make(nodeportisolation)
        self.assertStays(self.service("west"))

    def test_reported(self):
        """A change of the pool, not of its nodes, is reported once the filter was used."""
        self.site.pools.mates()
        self.site.label("west")
        self.assertEqual(0, self.site.changes)
        self.changed(self.service("west"))
        self.site.put_pool("west", "edge-1", "edge-2")
        self.assertEqual(0, self.site.changes)
        self.site.label("east")
        self.assertEqual(1, self.site.changes)


class ServiceEnvUpdaterTests(FilterTestCase):
    """Environment variables of containers."""

    maker = serviceenvupdater

    def test_changed(self):
        """Variables that containers set get the hub's values, in init containers, too."""
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
        """No variable is added, so no container is restarted."""
        self.assertStays(named("web", spec={"containers": [{"env": []}, {"env": None}, {}]}))

    def test_requests(self):
        """It applies to pods, including responses to patches, also of the status."""
        self.assertApplies(
            True,
            request_for("list", "pods"),
            request_for("patch", "pods", subresource="status"),
            request_for("get", "pods", name="web"),
        )
        self.assertApplies(
            False, request_for("get", "pods", subresource="log"), request_for("create", "pods")
        )


class ServiceTopologyTests(FilterTestCase):
    """Endpoints of Services with the annotation."""

    maker = servicetopology

    def setUp(self):
        """Put the node into a pool with another node."""
        super().setUp()
        self.site.label("east")
        self.site.put_pool("east", "edge-1", "edge-2")

    def say(self, keys, name="web"):
        """Set the annotation of the Service."""
        self.site.put_service(name, **({"openyurt.io/topologyKeys": keys} if keys else {}))

    def slice(self, *nodes, service="web"):
        """Create an EndpointSlice with an endpoint on each of the nodes."""
        metadata = {
            "namespace": "default",
            "name": "web-abcde",
            "labels": {"kubernetes.io/service-name": service},
        }
        endpoints = [{"addresses": [f"a-{each}"], "nodeName": each} for each in nodes]
        return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints}

    def nodes(self, *nodes):
        """Return the nodes whose endpoints stay."""
        return [each["nodeName"] for each in self.changed(self.slice(*nodes))["endpoints"]]

    def test_node(self):
        """Only endpoints on the node stay."""
        self.say("kubernetes.io/hostname")
        self.assertEqual(["edge-1"], self.nodes("edge-1", "edge-2", "edge-3"))

    def test_pool(self):
        """Only endpoints in the pool stay, with either name of the key."""
        for keys in ("openyurt.io/nodepool", "kubernetes.io/zone"):
            self.say(keys)
            self.assertEqual(["edge-2", "edge-1"], self.nodes("edge-2", "edge-3", "edge-1"))

    def test_no_pool(self):
        """On a node without a pool only its own endpoints stay."""
        self.site.label("")
        self.site.put_pool("east", "edge-2")
        self.say("openyurt.io/nodepool")
        self.assertEqual(["edge-1"], self.nodes("edge-1", "edge-2"))

    def test_unknown_pool(self):
        """While the nodes of the pool are unknown, all endpoints stay."""
        self.site.label("west")
        self.say("openyurt.io/nodepool")
        self.assertStays(self.slice("edge-1", "edge-2", "edge-3"))

    def test_nothing_logged(self):
        """All endpoints stay for Services without a known value, and for unknown Services."""
        for keys in ("", "*", "kubernetes.io/region", "kubernetes.io/hostname,*"):
            self.say(keys)
            self.assertStays(self.slice("edge-1", "edge-3"))
        self.assertStays(self.slice("edge-3", service="unknown"))

    def test_empty(self):
        """A slice without remaining endpoints stays, and is empty."""
        self.say("kubernetes.io/hostname")
        self.assertEqual({**self.slice(), "endpoints": []}, self.changed(self.slice("edge-3")))

    def test_no_node(self):
        """An endpoint without a node is removed."""
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
        """Endpoints are filtered by address; a subset without remaining addresses is removed."""
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

    def test_reported(self):
        """A change of a Service's annotation, or of the pool's nodes, is reported."""
        self.say("")
        self.assertEqual(0, self.site.changes)
        self.say("openyurt.io/nodepool")
        self.say("openyurt.io/nodepool")
        changes_before = self.site.changes
        self.site.put_pool("east", "edge-1", "edge-2", "edge-4")
        self.site.put_pool("west", "edge-9")
        self.assertEqual(changes_before + 1, self.site.changes)
        self.say("")
        self.assertEqual(changes_before + 2, self.site.changes)

    def test_pool_is_nothing(self):
        """If no Service refers to the pool, changes in it are not reported."""
        self.say("kubernetes.io/hostname")
        self.site.pools.mates()
        changes_before = self.site.changes
        self.site.put_pool("east", "edge-1", "edge-4")
        self.assertEqual(changes_before, self.site.changes)

    def test_pool_not_used(self):
        """Pools are followed only once a Service refers to them."""
        site = Site()
        site.make(servicetopology)
        site.put_service("web", **{"openyurt.io/topologyKeys": "kubernetes.io/hostname"})
        self.assertEqual(1, len(site.informers.by_spec))
        site.put_service("web", **{"openyurt.io/topologyKeys": "openyurt.io/nodepool"})
        self.assertEqual(3, len(site.informers.by_spec))

    def test_deleted(self):
        """The deletion of a Service is not reported, because its endpoints are deleted, too."""
        self.say("kubernetes.io/hostname")
        changes_before = self.site.changes
        self.site.informers.delete(SERVICES, "web", "default")
        self.assertEqual(changes_before, self.site.changes)

    def test_requests(self):
        """It applies to Endpoints and EndpointSlices."""
        self.assertApplies(
            True,
            request_for("list", "endpoints"),
            request_for("watch", "endpointslices", "discovery.k8s.io"),
        )
        self.assertApplies(
            False, request_for("list", "services"), request_for("list", "endpointslices")
        )


class ReachabilityTests(SynchronousTestCase):
    """The filters that redirect pods to the hub, while pods cannot reach it."""

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

    def test_redirected_while_reachable(self):
        """Objects are unchanged until pods can reach the hub; each change is reported once."""
        for maker, obj in self.objects.items():
            site = Site()
            site.reach.update(False)
            made = site.make(maker)
            for reached, changes in ((False, 0), (True, 1), (True, 1), (False, 2)):
                site.reach.update(reached)
                shown = made.change(copy.deepcopy(obj))
                self.assertEqual((reached, changes), (shown != obj, site.changes), maker.name)


# Values for any member, so that half of the members have another type.
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
    """Requirements for all filters."""

    def setUp(self):
        """Create them in an environment in which they apply."""
        self.site = Site()
        self.site.label("east")
        self.site.put_pool("east", "edge-1")
        self.site.put_service("web", **{"openyurt.io/topologyKeys": "openyurt.io/nodepool"})
        self.filters = [self.site.make(maker) for maker in MAKERS]

    def test_plugins(self):
        """Each is a plugin with a name of its own, and has a place in the order."""
        found = {maker.name: maker for maker in getPlugins(IFilterMaker)}
        names = [maker.name for maker in MAKERS]
        self.assertEqual(sorted(names), sorted(found))
        self.assertEqual(sorted(names), sorted(ORDER))
        for maker, made in zip(found.values(), self.filters, strict=True):
            verifyObject(IFilterMaker, maker)
            verifyObject(IFilter, made)

    def test_service_proxies(self):
        """Our own service proxy gets the same objects as kube-proxy."""
        for maker in MAKERS:
            found = {"kube-proxy", "yurtproxy"} & maker.components
            self.assertIn(len(found), (0, 2), maker.name)

    @given(NAMED, OBJECTS)
    def test_malformed(self, name, obj):
        """None raises an exception for any input, and each returns an object or ``None``."""
        for each in self.filters:
            found = each.change(copy.deepcopy({**name, **obj}))
            self.assertIsInstance(found, dict | None)

    @given(st.sampled_from(range(len(MAKERS))), OBJECTS)
    def test_own_changes_only(self, number, obj):
        """An object with another name than the filter's is unchanged, whatever it contains."""
        obj = {**obj, "metadata": {"namespace": "elsewhere", "name": "other"}}
        if isinstance(obj.get("spec"), dict):
            # Environment variables are changed in all pods.
            obj["spec"].pop("containers", None)
            obj["spec"].pop("initContainers", None)
        self.assertEqual(obj, self.filters[number].change(copy.deepcopy(obj)))
