"""The manifests: their form and names, and references between objects."""

from __future__ import annotations

from kubernetes.client import models

from tests.deploy.rbac import grants_of
from tests.deploy.rendering import (
    BASE,
    named,
    of_kind,
    overlays,
    pod_of,
    read_base,
    render,
    rendered_text,
    server_of,
    usable_kubectls,
)
from tests.deploy.workloads import (
    RenderedTestCase,
    key,
    with_workloads,
)
from yurttunnel.cluster.proxy_ports import CONFIG_MAP
from yurttunnel.cluster.services import INTERNAL_SERVICE
from yurttunnel.cluster.services import SERVICE as AGENTS_SERVICE
from yurttunnel.hub.configuration import CONFIG_MAP as HUB_CONFIG_MAP
from yurttunnel.pki.approval import AGENT_ACCOUNT, SERVER_ACCOUNT
from yurttunnel.pki.approval_requests import SIGNERS
from yurttunnel.pki.names import KUBELET_CLIENT_NAME
from yurttunnel.server.in_cluster import APPROVER_LEASE
from yurttunnel.steering.dns.controller import LEASE as DNS_LEASE
from yurttunnel.steering.dns.records import CONFIG_MAP as RECORDS

REFERENCE = {
    ("ServiceAccount", "yurt-tunnel-server"): {},
    ("ServiceAccount", "yurt-tunnel-agent"): {},
    ("ClusterRole", "yurt-tunnel-server"): {},
    ("ClusterRole", "tunnel-proxy-client"): {},
    ("ConfigMap", "yurt-tunnel-server-cfg"): {},
    ("Service", "x-tunnel-server-svc"): {"name": "yurt-tunnel-server"},
    ("Service", "x-tunnel-server-internal-svc"): {"name": "yurt-tunnel-server"},
    ("Deployment", "yurt-tunnel-server"): {"k8s-app": "yurt-tunnel-server"},
    ("DaemonSet", "yurt-tunnel-agent"): {"k8s-app": "yurt-tunnel-agent"},
}
"""Names and labels of the objects of yurttunnel 1.2 (its reference, section 9)."""

CLUSTER_KINDS = {"Namespace", "ClusterRole", "ClusterRoleBinding"}


class RenderingTests(RenderedTestCase):
    """``kubectl kustomize`` renders everything."""

    def test_every_kubectl_renders_the_same(self):
        """All kubectls from 1.21 on render the same objects without warnings."""
        for directory in [BASE, *overlays()]:
            texts = {rendered_text(directory, kubectl) for kubectl in usable_kubectls()}
            self.assertEqual(1, len(texts), directory)

    def test_every_object_has_the_form_of_its_kind(self):
        """Each object is valid for the official models, which reject unknown fields."""
        for directory in [BASE, *overlays()]:
            for each in render(directory):
                model = getattr(models, f"V1{each['kind']}")
                model.model_validate(each)
                broken = {**each, "unknown": 1}
                self.assertRaises(ValueError, model.model_validate, broken)

    def test_the_base_can_be_read_without_kubectl(self):
        """The base has no patches: except the image tags, its files are the rendered objects."""
        rendered = {key(each): each for each in render(BASE)}
        for each in read_base():
            if "template" in each.get("spec", {}):
                (container,) = pod_of(each)["containers"]
                container["image"] += ":0.1.0"
            self.assertEqual(rendered.pop(key(each)), each)
        self.assertEqual({}, rendered)

    def test_no_object_is_there_twice(self):
        """Kind, namespace and name are unique in each kustomization."""
        for directory in [BASE, *overlays()]:
            keys = [key(each) for each in render(directory)]
            self.assertEqual(len(set(keys)), len(keys), directory)

    def test_every_object_has_a_namespace_if_its_kind_has(self):
        """Every namespaced object has a namespace, so the operator's context has no effect."""
        for directory in [BASE, *overlays()]:
            for each in render(directory):
                namespaced = each["kind"] not in CLUSTER_KINDS
                self.assertEqual(namespaced, "namespace" in each["metadata"], key(each))


class ReferenceTests(RenderedTestCase):
    """Compatibility with yurttunnel 1.2."""

    def setUp(self):
        """Render the base."""
        self.objects = render(BASE)

    def test_names_and_labels_are_those_of_the_reference(self):
        """All objects of yurttunnel 1.2 are in kube-system with their labels."""
        for (kind, name), labels in REFERENCE.items():
            found = named(self.objects, kind, name)["metadata"]
            self.assertEqual(labels, found.get("labels", {}), name)
            if kind not in CLUSTER_KINDS:
                self.assertEqual("kube-system", found["namespace"])

    def test_the_public_service_has_one_port(self):
        """The public Service has only the port ``tcp`` 10262, at node port 31008."""
        spec = named(self.objects, "Service", "x-tunnel-server-svc")["spec"]
        self.assertEqual("NodePort", spec["type"])
        self.assertEqual(
            [{"name": "tcp", "port": 10262, "targetPort": 10262, "nodePort": 31008}], spec["ports"]
        )

    def test_the_internal_service_stands_in_for_kubelets(self):
        """The kubelets' ports are forwarded to the server's, only within the cluster."""
        spec = named(self.objects, "Service", "x-tunnel-server-internal-svc")["spec"]
        self.assertEqual("ClusterIP", spec.get("type", "ClusterIP"))
        self.assertEqual(
            [
                {"name": "https", "port": 10250, "targetPort": 10263},
                {"name": "http", "port": 10255, "targetPort": 10264},
            ],
            spec["ports"],
        )

    def test_nodes_are_chosen_by_the_label_of_openyurt(self):
        """The server runs on cloud nodes and the agent on edge nodes, in the host network."""
        server = pod_of(named(self.objects, "Deployment", "yurt-tunnel-server"))
        agent = pod_of(named(self.objects, "DaemonSet", "yurt-tunnel-agent"))
        for pod, is_edge in ((server, "false"), (agent, "true")):
            self.assertIs(True, pod["hostNetwork"])
            self.assertEqual(
                {"kubernetes.io/os": "linux", "openyurt.io/is-edge-worker": is_edge},
                pod["nodeSelector"],
            )
        self.assertEqual([{"operator": "Exists"}], agent["tolerations"])

    def test_the_user_of_kubelets_reads_and_executes(self):
        """``tunnel-proxy-client`` may use the whole API of kubelets with get and create."""
        granted = {
            (grant.verb, grant.path)
            for grant in grants_of(self.objects)
            if grant.subject == "tunnel-proxy-client"
        }
        parts = (
            "stats",
            "metrics",
            "log",
            "spec",
            "proxy",
            "configz",
            "healthz",
            "pods",
            "statusz",
        )
        for part in parts:
            self.assertIn(("get", f"nodes/{part}"), granted)
        for part in ("proxy", "checkpoint"):
            self.assertIn(("create", f"nodes/{part}"), granted)
        self.assertEqual({"get", "create"}, {verb for verb, _ in granted})


class NameTests(RenderedTestCase):
    """Object names in the manifests are those of the programs."""

    def test_names_are_those_that_the_programs_use(self):
        """Services, ConfigMap, leases and accounts are named as in the code."""
        for directory in with_workloads():
            objects = render(directory)
            for name in (AGENTS_SERVICE, INTERNAL_SERVICE):
                named(objects, "Service", name)
            named(objects, "ConfigMap", CONFIG_MAP)
            for account in (SERVER_ACCOUNT, AGENT_ACCOUNT):
                named(objects, "ServiceAccount", account)
            names = {(grant.path, grant.name) for grant in grants_of(objects) if grant.name}
            records = {("configmaps", RECORDS), ("leases", DNS_LEASE)}
            of_hubs = {("configmaps", HUB_CONFIG_MAP)}
            self.assertEqual(
                {
                    *(records if directory.name == "dns" else ()),
                    *(of_hubs if directory.name == "hub" else ()),
                    ("services", "kubernetes"),
                    ("services", AGENTS_SERVICE),
                    ("services", INTERNAL_SERVICE),
                    ("configmaps", CONFIG_MAP),
                    ("leases", APPROVER_LEASE),
                    *(("signers", signer) for signer in SIGNERS),
                },
                names,
            )

    def test_certificates_are_of_the_users_that_are_granted_something(self):
        """The user name of the server's certificate for kubelets is bound to the cluster role."""
        subjects = {grant.subject for grant in grants_of(read_base())}
        self.assertIn(KUBELET_CLIENT_NAME, subjects)


class SelectorTests(RenderedTestCase):
    """Selectors match the intended pods."""

    def test_workloads_services_and_budgets_select_pods_that_exist(self):
        """Each selector matches the labels of exactly one workload's pods."""
        for directory in [BASE, *overlays()]:
            objects = render(directory)
            labels = {
                workload["metadata"]["name"]: workload["spec"]["template"]["metadata"]["labels"]
                for workload in of_kind(objects, "Deployment", "DaemonSet")
            }
            for each in objects:
                selector = each.get("spec", {}).get("selector")
                if selector is None:
                    continue
                desired = selector.get("matchLabels", selector).items()
                matched = [name for name, has in labels.items() if desired <= has.items()]
                self.assertEqual(1, len(matched), key(each))
                if each["kind"] in ("Deployment", "DaemonSet"):
                    self.assertEqual([each["metadata"]["name"]], matched)

    def test_servers_are_on_separate_nodes(self):
        """No two servers share a node, and at most one may be unavailable."""
        for directory in with_workloads():
            objects = render(directory)
            server = server_of(objects)
            labels = server["spec"]["template"]["metadata"]["labels"]
            pod = pod_of(server)
            (term,) = pod["affinity"]["podAntiAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]
            self.assertEqual("kubernetes.io/hostname", term["topologyKey"])
            self.assertEqual(labels, term["labelSelector"]["matchLabels"])
            if server["kind"] == "DaemonSet":
                rolling = server["spec"]["updateStrategy"]["rollingUpdate"]
                self.assertEqual({"maxUnavailable": 1}, rolling)
                continue
            (spread,) = pod["topologySpreadConstraints"]
            self.assertEqual(labels, spread["labelSelector"]["matchLabels"])
            budget = named(objects, "PodDisruptionBudget", "yurt-tunnel-server")
            self.assertEqual(1, budget["spec"]["maxUnavailable"])
            self.assertGreater(server["spec"]["replicas"], 1)
            # The old pod uses the node's ports until it has ended.
            rolling = server["spec"]["strategy"]["rollingUpdate"]
            self.assertEqual({"maxSurge": 0, "maxUnavailable": 1}, rolling)
