"""Firewall rules and pass-through: their overlay and components."""

from __future__ import annotations

from itertools import permutations

from kubernetes.client import models

from tests.deploy.rendering import (
    BASE,
    DEPLOY,
    named,
    of_kind,
    pod_of,
    render,
    rendered_text,
    server_of,
    usable_kubectls,
)
from tests.deploy.workloads import (
    KustomizationTestCase,
    grants,
    key,
    settings_of,
    with_workloads,
)
from yurttunnel.ops.reconciler import CANCEL_SECONDS
from yurttunnel.steering.manager import FINISH_SECONDS, REMOVAL_TIMEOUT

OVERLAY = DEPLOY / "overlays" / "iptables"
SIDE_BY_SIDE = DEPLOY / "overlays" / "side-by-side"
COMPONENTS = DEPLOY / "components"
IPTABLES = COMPONENTS / "iptables"
PASS_THROUGH = COMPONENTS / "pass-through"

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


class SteeringTests(KustomizationTestCase):
    """Which installations steer traffic."""

    def test_only_the_overlays_steer_that_are_for_it(self):
        """Only the overlay for rules makes rules, and only the one for records keeps records."""
        for directory in with_workloads():
            steering = settings_of(server_of(render(directory))).mode.steering
            self.assertEqual(directory == OVERLAY, steering.iptables, directory)
            self.assertEqual(directory.name == "dns", steering.dns, directory)

    def test_pass_through_is_disabled_by_default(self):
        """No overlay enables pass-through by itself."""
        for directory in with_workloads():
            steering = settings_of(server_of(render(directory))).mode.steering
            self.assertIsNone(steering.passthrough_port)


class IptablesTests(KustomizationTestCase):
    """The server with firewall rules."""

    def setUp(self):
        """Render the overlay."""
        self.objects = render(OVERLAY)
        self.server = server_of(self.objects)

    def test_a_server_is_on_every_control_plane_node(self):
        """A DaemonSet runs a server on each control plane node and tolerates its taint (F8)."""
        self.assertEqual("DaemonSet", self.server["kind"])
        pod = pod_of(self.server)
        self.assertEqual("", pod["nodeSelector"][CONTROL_PLANE])
        self.assertIn(CONTROL_PLANE, [each["key"] for each in pod["tolerations"]])
        self.assertNotIn("replicas", self.server["spec"])
        self.assertNotIn("strategy", self.server["spec"])

    def test_no_budget_is_for_it(self):
        """There is no disruption budget, since it does not apply to a DaemonSet's pods."""
        self.assertEqual([], of_kind(self.objects, "PodDisruptionBudget"))

    def test_it_waits_for_the_lock_of_the_host(self):
        """The lock file of iptables is the host's and is created if it is missing."""
        pod = pod_of(self.server)
        (container,) = pod["containers"]
        (mount,) = [
            each for each in container["volumeMounts"] if each["mountPath"] == "/run/xtables.lock"
        ]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        self.assertEqual({"path": "/run/xtables.lock", "type": "FileOrCreate"}, volume["hostPath"])
        self.assertNotIn("readOnly", mount)

    def test_it_has_time_to_remove_the_rules(self):
        """The grace period also covers the removal of the rules, which precedes the drain."""
        base = pod_of(server_of(render(BASE)))["terminationGracePeriodSeconds"]
        grace = pod_of(self.server)["terminationGracePeriodSeconds"]
        self.assertGreaterEqual(grace, base + FINISH_SECONDS + CANCEL_SECONDS + REMOVAL_TIMEOUT)

    def test_nobody_from_elsewhere_reaches_the_port_without_tls(self):
        """The port without TLS listens on loopback only, since the rules redirect there."""
        self.assertEqual("127.0.0.1", settings_of(self.server).insecure_address)

    def test_all_else_is_as_in_the_base(self):
        """Other objects, other flags and all permissions are those of the base."""
        base = {key(each): each for each in render(BASE)}
        for each in self.objects:
            if each is not self.server:
                self.assertEqual(base[key(each)], each)
        (ours,) = pod_of(self.server)["containers"]
        (theirs,) = pod_of(server_of(list(base.values())))["containers"]
        self.assertEqual({"--enable-iptables=true"}, {*ours["args"]} - {*theirs["args"]})
        self.assertEqual({"--enable-iptables=false"}, {*theirs["args"]} - {*ours["args"]})
        self.assertEqual(grants(BASE), grants(OVERLAY))


class ComponentTests(KustomizationTestCase):
    """Rules and pass-through in combination with other choices."""

    def rendered(self, resource, *components):
        """Return the objects of an operator's kustomization."""
        return render(self.kustomization(resource, components=list(components)))

    def test_every_kubectl_adds_them(self):
        """All kubectls render the same objects, although the workload's kind changes."""
        directory = self.kustomization(SIDE_BY_SIDE, components=[IPTABLES, PASS_THROUGH])
        self.assertEqual(
            1, len({rendered_text(directory, kubectl) for kubectl in usable_kubectls()})
        )

    def test_rules_go_with_every_installation(self):
        """The component adds rules to every installation, with a server per control plane node."""
        for resource in with_workloads():
            if resource == OVERLAY:
                continue
            server = server_of(self.rendered(resource, IPTABLES))
            before = settings_of(server_of(render(resource)))
            settings = settings_of(server)
            self.assertEqual("DaemonSet", server["kind"])
            models.V1DaemonSet.model_validate(server)
            self.assertTrue(settings.mode.steering.iptables)
            self.assertEqual(before.mode.steering.dns, settings.mode.steering.dns)
            self.assertEqual(before.connect_endpoints, settings.connect_endpoints)
            self.assertEqual(before.secure_port, settings.secure_port)

    def test_the_order_of_components_does_not_matter(self):
        """The order of the components does not change the result."""
        components = (IPTABLES, PASS_THROUGH, COMPONENTS / "protected-placement")
        first, *others = [self.rendered(BASE, *each) for each in permutations(components)]
        for other in others:
            self.assertEqual(first, other)
        self.assertIn("nodeAffinity", pod_of(server_of(first))["affinity"])

    def test_pass_through_has_a_port_of_its_own(self):
        """The pass-through port is declared, intercepts kubelets, and conflicts with no other."""
        (flag,) = [
            each
            for each in pod_of(server_of(self.rendered(BASE, PASS_THROUGH)))["containers"][0][
                "args"
            ]
            if "passthrough" in each
        ]
        port = int(flag.partition("=")[2])
        for resource in with_workloads():
            objects = self.rendered(resource, PASS_THROUGH)
            server = server_of(objects)
            settings = settings_of(server)
            self.assertEqual(port, settings.mode.steering.passthrough_port)
            self.assertEqual({10250}, settings.mode.steering.passthrough_ports)
            declared = pod_of(server)["containers"][0]["ports"]
            self.assertIn(
                {"name": "passthrough", "containerPort": port, "protocol": "TCP"}, declared
            )
            self.assertEqual(len(declared), len({each["containerPort"] for each in declared}))
            agent = settings_of(named(objects, "DaemonSet", "yurt-tunnel-agent"))
            self.assertNotIn(
                port,
                (settings.agent_port, settings.meta_port, settings.insecure_port, agent.meta_port),
            )

    def test_the_overlay_is_the_base_with_the_component(self):
        """The overlay is the base with the component."""
        self.assertEqual(render(OVERLAY), self.rendered(BASE, IPTABLES))
