"""The workloads: the programs accept their arguments and have only the rights they need."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import PurePosixPath

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from tests.deploy.rbac import grants_of
from tests.deploy.rendering import (
    BASE,
    containers,
    flags_of,
    named,
    of_kind,
    overlays,
    pod_of,
    render,
    server_of,
)
from tests.deploy.workloads import (
    RenderedTestCase,
    grants,
    key,
    settings_of,
    volume_at,
    with_workloads,
    workloads,
)
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.agent.process import MEMORY_BUDGET as OF_AGENTS
from yurttunnel.server.endpoints import TlsEndpoint
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.server.process import MEMORY_BUDGET as OF_SERVERS

END_MARGIN = 15.0
"""The maximum time in seconds that a program needs to end after its drain timeout."""


ROOTS = {
    ("egress-selector", "socket-directory"): ["CHOWN", "FOWNER"],
    ("iptables", "yurt-tunnel-server"): ["NET_ADMIN", "NET_RAW"],
}
"""Containers that run as root, by overlay, and their capabilities: to make a socket's directory and
change its owner, and to change the firewall."""

OTHERS = {("dns", "coredns"): ["NET_BIND_SERVICE"]}
"""Other containers with a capability: to listen on port 53."""

STEERING_BY_NAMES = {"configmaps", "services"}
"""Further resources that the server writes in the overlay for DNS records; see ``test_dns``."""


class FlagTests(RenderedTestCase):
    """The arguments in the manifests fit the programs and the other objects."""

    def test_the_commands_exist_and_accept_their_flags(self):
        """Every command is a plugin that accepts all flags, and no flag is ignored."""
        commands = {maker.tapname for maker in getPlugins(IServiceMaker)}
        for directory in with_workloads():
            for workload in workloads(directory):
                of_twist, command, flags = flags_of(workload)
                self.assertEqual([], of_twist)
                self.assertIn(command, commands)
                options = ServerOptions if command == "yurttunnel-server" else AgentOptions
                unused = {*options.ignored_flags, *options.ignored_switches}
                for flag in flags:
                    self.assertNotIn(flag.lstrip("-").partition("=")[0], unused)
                settings_of(workload)

    def test_the_programs_work_in_the_namespace_they_are_in(self):
        """The programs' namespace is that of their objects."""
        for directory in with_workloads():
            for workload in workloads(directory):
                namespace = workload["metadata"]["namespace"]
                self.assertEqual(namespace, settings_of(workload).mode.namespace)

    def test_probes_use_the_meta_port(self):
        """Probes use the address and port of the meta pages."""
        for directory in with_workloads():
            server = server_of(render(directory))
            for workload in workloads(directory):
                settings = settings_of(workload)
                is_server = workload == server
                host = settings.insecure_address if is_server else settings.meta_host
                self.assertTrue(ip_address(host).is_loopback)
                (container,) = pod_of(workload)["containers"]
                for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
                    self.assertEqual(
                        {"host": host, "port": settings.meta_port, "path": path},
                        container[probe]["httpGet"],
                    )

    def test_services_have_the_servers_ports(self):
        """Services and containers have the server's ports."""
        for directory in with_workloads():
            objects = render(directory)
            server = server_of(objects)
            settings = settings_of(server)
            ports = {
                "tcp": settings.agent_port,
                "https": settings.secure_port,
                "http": settings.insecure_port,
            }
            for _, endpoint in settings.connect_endpoints:
                if isinstance(endpoint, TlsEndpoint):
                    ports["connect"] = endpoint.port
            for service in of_kind(objects, "Service"):
                if service["spec"]["selector"] != server["spec"]["selector"]["matchLabels"]:
                    continue
                for port in service["spec"]["ports"]:
                    self.assertEqual(ports[port["name"]], port["targetPort"], key(service))
            (container,) = pod_of(server)["containers"]
            for port in container["ports"]:
                self.assertEqual(ports[port["name"]], port["containerPort"])

    def test_pods_have_time_to_drain(self):
        """The grace period of pods is longer than the programs' drain timeout."""
        for directory in with_workloads():
            for workload in workloads(directory):
                grace = pod_of(workload)["terminationGracePeriodSeconds"]
                self.assertLessEqual(settings_of(workload).drain_timeout + END_MARGIN, grace)

    def test_certificates_are_in_a_writable_volume(self):
        """Certificates are stored in a volume that an unprivileged user can write to."""
        for directory in with_workloads():
            for workload in workloads(directory):
                cert_dir = PurePosixPath(settings_of(workload).mode.cert_dir)
                volume = volume_at(workload, cert_dir)
                self.assertIn("emptyDir", volume)

    def test_memory_limits_leave_room_beside_the_streams(self):
        """The memory budget for streams is at most half of the memory limit."""
        budgets = {"Deployment": OF_SERVERS, "DaemonSet": OF_AGENTS}
        for workload in workloads(BASE):
            (container,) = pod_of(workload)["containers"]
            limit = container["resources"]["limits"]["memory"]
            number, unit = int(limit[:-2]), {"Mi": 2**20, "Gi": 2**30}[limit[-2:]]
            self.assertGreaterEqual(number * unit, 2 * budgets[workload["kind"]])


class PrivilegeTests(RenderedTestCase):
    """Containers and accounts have only the rights they need."""

    def test_containers_can_do_nothing_special(self):
        """Containers are unprivileged, with a read-only image and without capabilities.

        Exceptions are those in ``ROOTS`` and ``OTHERS``, with the capabilities listed there.
        """
        for directory in with_workloads():
            for container in containers(render(directory)):
                security = container["securityContext"]
                self.assertIs(False, security["allowPrivilegeEscalation"])
                self.assertIs(True, security["readOnlyRootFilesystem"])
                place = (directory.name, container["name"])
                self.assertEqual(["ALL"], security["capabilities"]["drop"])
                self.assertEqual((ROOTS | OTHERS).get(place), security["capabilities"].get("add"))
                self.assertEqual(place in ROOTS, security.get("runAsUser") == 0)
                self.assertIn("requests", container["resources"])
                self.assertIn("memory", container["resources"]["limits"])
            for workload in workloads(directory):
                security = pod_of(workload)["securityContext"]
                self.assertIs(True, security["runAsNonRoot"])
                self.assertGreater(security["runAsUser"], 0)

    def test_tokens_are_mounted_where_they_are_used_only(self):
        """Only pods that ask for it get the token of their service account."""
        for directory in with_workloads():
            objects = render(directory)
            for account in of_kind(objects, "ServiceAccount"):
                self.assertIs(False, account["automountServiceAccountToken"])
            for workload in of_kind(objects, "Deployment", "DaemonSet"):
                pod = pod_of(workload)
                self.assertIs(True, pod["automountServiceAccountToken"])
                account = named(objects, "ServiceAccount", pod["serviceAccountName"])
                self.assertEqual(
                    workload["metadata"]["namespace"], account["metadata"]["namespace"]
                )

    def test_no_role_has_a_wildcard(self):
        """Roles have no wildcards and grant no URL paths."""
        for directory in [BASE, *overlays()]:
            for role in of_kind(render(directory), "Role", "ClusterRole"):
                for rule in role["rules"]:
                    self.assertNotIn("nonResourceURLs", rule)
                    for part in ("verbs", "resources", "apiGroups", "resourceNames"):
                        for word in rule.get(part, []):
                            self.assertNotIn("*", word, key(role))

    def test_no_role_changes_what_is_not_the_tunnels(self):
        """Roles permit writing only certificate requests, events, leases, reviews and kubelets.

        The policy in ``deploy/components`` restricts which requests may be approved.
        """
        writable = {
            "certificatesigningrequests",
            "certificatesigningrequests/approval",
            "events",
            "leases",
            "subjectaccessreviews",
            "tokenreviews",
            "nodes/proxy",
            "nodes/checkpoint",
        }
        for directory in with_workloads():
            for grant in grants_of(render(directory)):
                if grant.verb not in ("get", "list", "watch", "approve"):
                    by_names = STEERING_BY_NAMES if directory.name == "dns" else set()
                    self.assertIn(grant.path, writable | by_names)
                self.assertNotIn(grant.verb, ("delete", "deletecollection", "bind", "escalate"))

    def test_no_overlay_grants_more_than_the_base(self):
        """Only the overlays for DNS records and hubs grant more than the base."""
        for directory in with_workloads():
            if directory.name in ("dns", "hub"):
                self.assertLess(grants(BASE), grants(directory))
            else:
                self.assertEqual(grants(BASE), grants(directory), directory)
