"""The overlay for DNS records: the controller's permissions, and the name server."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import yaml
from twisted.internet.task import Clock

from tests.cluster.fakes import EDGE, config_map, node
from tests.deploy.rbac import Request, audit, grants_of
from tests.deploy.rendering import BASE, DEPLOY, named, of_kind, pod_of, render, server_of
from tests.deploy.workloads import (
    KustomizationTestCase,
    RenderedTestCase,
    key,
    settings_of,
    volume_at,
)
from tests.kube.fakes import FakeKubeClient
from yurttunnel.cluster.proxy_ports import ProxyPorts
from yurttunnel.cluster.services import INTERNAL_SERVICE
from yurttunnel.kube.events import EventRecorder
from yurttunnel.kube.informer import Informers
from yurttunnel.kube.lease import LeaderElection
from yurttunnel.kube.resources import CONFIG_MAPS, EVENTS, LEASES, NODES, SERVICES
from yurttunnel.steering.dns.controller import LEASE, DnsController
from yurttunnel.steering.dns.records import CONFIG_MAP, KEY
from yurttunnel.steering.dns.service_ports import ServerPorts

OVERLAY = DEPLOY / "overlays" / "dns"
NAMESPACE = "kube-system"
SERVER = f"system:serviceaccount:{NAMESPACE}:yurt-tunnel-server"
ROLE = "Role yurt-tunnel-server-dns"
NAMESERVER = "yurt-tunnel-dns"


class RecordingClient(FakeKubeClient):
    """A client that records its requests as kube-apiserver checks them."""

    def __init__(self, clock):
        super().__init__(clock)
        self.requests = set()

    def get(self, resource, name, namespace=None):
        """Record and read an object."""
        self.keep("get", resource, namespace, name)
        return super().get(resource, name, namespace)

    def list(self, resource, namespace=None, **options):
        """Record and read a list."""
        self.keep("list", resource, namespace, _selected_name(options))
        return super().list(resource, namespace, **options)

    def watch(self, resource, on_event, namespace=None, **options):
        """Record and start a watch."""
        self.keep("watch", resource, namespace, _selected_name(options))
        return super().watch(resource, on_event, namespace, **options)

    def create(self, resource, body, namespace=None):
        """Record and create an object."""
        self.keep("create", resource, namespace, body["metadata"]["name"])
        return super().create(resource, body, namespace)

    def update(self, resource, body, subresource=None):
        """Record and replace an object."""
        metadata = body["metadata"]
        self.keep("update", resource, metadata.get("namespace"), metadata["name"])
        return super().update(resource, body, subresource)

    def keep(self, verb, resource, namespace, name):
        """Record a request."""
        place = (namespace or "") if resource.namespaced else ""
        self.requests.add(
            Request(SERVER, verb, resource.group, resource.plural, "", place, name or "")
        )


def _selected_name(options):
    key, _, value = options.get("field_selector", "").partition("=")
    return value if key == "metadata.name" else ""


def requests_of_the_controller(test):
    """Return all API requests of the controller and its leader election."""
    clock = Clock()
    clock.advance(1_800_000_000)
    client = RecordingClient(clock)
    informers = Informers(clock, client)
    events = EventRecorder(clock, client, "yurttunnel-server", "server-1")
    controller = DnsController(
        clock,
        client,
        informers,
        events,
        NAMESPACE,
        ProxyPorts(informers, NAMESPACE, 10264, lambda *_: None),
        ServerPorts(10263, 10264),
        1800.0,
    )
    election = LeaderElection(clock, client, NAMESPACE, LEASE, "server-1", controller)
    informers.startService()
    election.startService()
    # Without the Service there is an event; with it there are records and ports, and updates.
    clock.pump([0.1] * 30)
    service = named(render(BASE), "Service", INTERNAL_SERVICE)
    client.put(SERVICES, {**service, "spec": {**service["spec"], "clusterIP": "10.96.0.5"}})
    clock.pump([0.1] * 30)
    client.put(NODES, node("edge-1", labels=EDGE))
    client.put(CONFIG_MAPS, config_map(NAMESPACE, http_proxy_ports="9100"))
    clock.pump([0.1] * 30)
    test.assertIsNone(controller.problem())
    test.assertIn("edge-1", client.look(CONFIG_MAPS, CONFIG_MAP, NAMESPACE)["data"][KEY])
    test.assertEqual(1, len(client.objects(EVENTS)))
    test.assertIsNotNone(client.look(LEASES, LEASE, NAMESPACE))
    stopped = election.stopService()
    clock.pump([0.1] * 30)
    test.successResultOf(stopped)
    test.successResultOf(informers.stopService())
    return client.requests


class MorePortsTests(KustomizationTestCase):
    """A server whose port without TLS is reachable through the Service."""

    def test_probes_follow_the_pages(self):
        """With the patch in the text, pages and probes are at the node's address."""
        section = (OVERLAY / "README.md").read_text().partition("\n## More ports\n")[2]
        [text] = re.findall(r"```yaml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
        directory = self.kustomization(OVERLAY)
        file = directory / "kustomization.yaml"
        file.write_text(file.read_text() + text)
        server = server_of(render(directory))
        self.assertEqual("192.0.2.10", settings_of(server, "192.0.2.10").insecure_address)
        (container,) = pod_of(server)["containers"]
        for probe in ("livenessProbe", "readinessProbe"):
            self.assertNotIn("host", container[probe]["httpGet"])


class PermissionTests(RenderedTestCase):
    """The server's account has exactly the permissions that the controller needs."""

    def setUp(self):
        """Render the overlay and run the controller."""
        self.objects = render(OVERLAY)
        self.used = requests_of_the_controller(self)

    def test_nothing_is_missing(self):
        """Every request is permitted."""
        self.assertEqual((), audit(self.objects, self.used).missing)

    def test_the_base_is_not_enough(self):
        """The base does not permit the controller's writes."""
        missing = {(each.verb, each.path) for each in audit(render(BASE), self.used).missing}
        for request in (("create", "configmaps"), ("update", "services"), ("update", "leases")):
            self.assertIn(request, missing)

    def test_nothing_is_superfluous(self):
        """The overlay's Role has no unused permission."""
        found = audit(self.objects, self.used, users=[SERVER]).superfluous
        self.assertEqual([], [each for each in found if ROLE in each])

    def test_only_two_accounts_are_granted_anything_new(self):
        """Only the server and the name server get new permissions; the latter only reads."""
        before = set(grants_of(render(BASE)))
        new = set(grants_of(self.objects)) - before
        self.assertEqual({ROLE, f"ClusterRole system:{NAMESERVER}"}, {each.role for each in new})
        reading = {each.verb for each in new if each.role != ROLE}
        self.assertEqual({"list", "watch"}, reading)


class OverlayTests(RenderedTestCase):
    """The overlay's difference from the base."""

    def setUp(self):
        """Render the base and the overlay."""
        self.base = {key(each): each for each in render(BASE)}
        self.objects = render(OVERLAY)

    def test_the_controller_is_on(self):
        """DNS steering is enabled, and firewall rules are not."""
        steering = settings_of(server_of(self.objects)).mode.steering
        self.assertTrue(steering.dns)
        self.assertFalse(steering.iptables)

    def test_all_else_is_as_in_the_base(self):
        """One flag of the server is different, and all other objects are unchanged."""
        for each in self.objects:
            before = self.base.pop(key(each), None)
            if each == server_of(self.objects):
                (ours,), (theirs,) = pod_of(each)["containers"], pod_of(before)["containers"]
                differs = {*ours.pop("args")} ^ {*theirs.pop("args")}
                self.assertEqual(
                    {"--enable-dns-controller=false", "--enable-dns-controller=true"}, differs
                )
            if before is not None:
                self.assertEqual(before, each)
        self.assertEqual({}, self.base)

    def test_the_records_are_not_in_the_manifests(self):
        """The ConfigMap of records is not in the manifests, so applying them again keeps it."""
        names = [each["metadata"]["name"] for each in of_kind(self.objects, "ConfigMap")]
        self.assertNotIn(CONFIG_MAP, names)


class NameServerTests(RenderedTestCase):
    """The name server, which serves the records."""

    def setUp(self):
        """Render the overlay."""
        self.objects = render(OVERLAY)
        self.workload = named(self.objects, "Deployment", NAMESERVER)
        self.corefile = named(self.objects, "ConfigMap", NAMESERVER)["data"]["Corefile"]

    def test_it_reads_the_file_that_the_records_are_in(self):
        """The records' ConfigMap is mounted at the path of the Corefile, and may be missing."""
        (match,) = re.findall(r"^ +hosts (\S+) \{\n(.*?)\}", self.corefile, re.M | re.S)
        path = PurePosixPath(match[0])
        self.assertEqual(KEY, path.name)
        volume = volume_at(self.workload, path)
        self.assertEqual({"name": CONFIG_MAP, "optional": True}, volume["configMap"])
        self.assertEqual(["reload 300ms", "no_reverse", "fallthrough"], _lines(match[1]))

    def test_the_argument_is_the_path_of_the_corefile(self):
        """The argument of CoreDNS is the path of the mounted Corefile."""
        (container,) = pod_of(self.workload)["containers"]
        flag, path = container["args"]
        self.assertEqual("-conf", flag)
        volume = volume_at(self.workload, PurePosixPath(path))["configMap"]
        self.assertEqual(NAMESERVER, volume["name"])
        self.assertEqual([{"key": "Corefile", "path": PurePosixPath(path).name}], volume["items"])

    def test_records_go_before_everything_else(self):
        """The Corefile lists plugins in the order in which CoreDNS runs them: records first."""
        plugins = re.findall(r"^    (\w+)", self.corefile, re.M)
        self.assertLess(plugins.index("hosts"), plugins.index("kubernetes"))
        self.assertLess(plugins.index("kubernetes"), plugins.index("forward"))

    def test_the_service_has_its_ports(self):
        """The Service forwards DNS over UDP and TCP, and metrics."""
        (container,) = pod_of(self.workload)["containers"]
        listening = {
            each["name"]: (each["protocol"], each["containerPort"]) for each in container["ports"]
        }
        ports = named(self.objects, "Service", NAMESERVER)["spec"]["ports"]
        self.assertEqual(
            listening, {each["name"]: (each["protocol"], each["targetPort"]) for each in ports}
        )
        self.assertEqual(
            {("UDP", 53), ("TCP", 53), ("TCP", 9153)},
            {(each["protocol"], each["port"]) for each in ports},
        )

    def test_it_forwards_to_the_name_servers_of_its_node(self):
        """Other queries go to the node's name servers, not to the cluster's or to itself."""
        self.assertEqual("Default", pod_of(self.workload)["dnsPolicy"])

    def test_it_outlives_the_loss_of_a_node(self):
        """There are two replicas on cloud nodes, of which one may be unavailable."""
        self.assertEqual(2, self.workload["spec"]["replicas"])
        budget = named(self.objects, "PodDisruptionBudget", NAMESERVER)
        self.assertEqual(1, budget["spec"]["maxUnavailable"])
        self.assertEqual(
            "false", pod_of(self.workload)["nodeSelector"]["openyurt.io/is-edge-worker"]
        )

    def test_it_runs_as_nobody_special(self):
        """The container's only capability is to listen on port 53."""
        (container,) = pod_of(self.workload)["containers"]
        security = container["securityContext"]
        self.assertEqual({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, security["capabilities"])
        self.assertIs(True, security["readOnlyRootFilesystem"])
        self.assertIs(True, pod_of(self.workload)["securityContext"]["runAsNonRoot"])

    def test_its_account_is_the_one_that_is_granted_something(self):
        """The account may read Services, namespaces and EndpointSlices."""
        account = pod_of(self.workload)["serviceAccountName"]
        subject = f"system:serviceaccount:{NAMESPACE}:{account}"
        granted = {each.path for each in grants_of(self.objects) if each.subject == subject}
        self.assertLessEqual({"services", "namespaces", "endpointslices"}, granted)


class ReadmeTests(RenderedTestCase):
    """The configuration of kube-apiserver in the text."""

    def test_the_lines_for_kube_apiserver(self):
        """kube-apiserver uses the name server, and prefers host names to addresses."""
        text = (OVERLAY / "README.md").read_text()
        blocks = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", text, re.S)]
        (spec,) = [each["spec"] for each in blocks if "spec" in each]
        self.assertEqual("None", spec["dnsPolicy"])
        self.assertIn(f"{NAMESPACE}.svc.cluster.local", spec["dnsConfig"]["searches"])
        (flag,) = spec["containers"][0]["command"]
        self.assertEqual("Hostname", flag.partition("=")[2].split(",")[0])


def _lines(text):
    return [line.strip() for line in text.strip().splitlines()]
