"""The hub's manifests: they start the hub, and agree on ports and paths."""

from __future__ import annotations

import re
import shlex

import yaml
from kubernetes.client import models
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial import unittest

from tests.deploy.rendering import BASE, DEPLOY, REPOSITORY, named, render
from tests.deploy.test_systemd import settings_of
from yurttunnel.hub.configuration import CONFIG_MAP
from yurttunnel.hub.options import Options
from yurttunnel.pki.certificate_template import NODES_ORGANIZATION

STATIC_POD = DEPLOY / "static-pods" / "yurthub.yaml"
UNIT = DEPLOY / "systemd" / "yurthub.service"
OVERLAY = DEPLOY / "overlays" / "hub"
README = OVERLAY / "README.md"

RIGHTS = "deploy/overlays/hub/rbac.yaml"
ROLLOUT = "`kubectl -n kube-system rollout status daemonset/yurt-tunnel-agent --timeout=10m`"


class HubManifestTests(unittest.SynchronousTestCase):
    """The content of the files."""

    def setUp(self):
        """Read the pod."""
        self.pod = yaml.safe_load(STATIC_POD.read_text())
        (self.container,) = self.pod["spec"]["containers"]

    def options(self, *arguments):
        """Return the program's settings for its flags."""
        return Options({"NODE_NAME": "edge-1"}).settings_of(*arguments)

    def test_the_pod_has_the_form_of_its_kind(self):
        """The static pod is valid for the official model."""
        models.V1Pod.model_validate(self.pod)

    def test_the_pod_starts_the_hub(self):
        """The program accepts the pod's flags, and its directories are mounted."""
        command, *arguments = self.container["args"]
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        arguments_used = [each.replace("$(NODE_NAME)", "edge-1") for each in arguments]
        settings = self.options(*arguments_used)
        mounts = {each["mountPath"] for each in self.container["volumeMounts"]}
        self.assertLessEqual({str(settings.root_dir), str(settings.cache_dir)}, mounts)
        port = settings.listeners.meta_port
        for probe, path in (("livenessProbe", "/v1/healthz"), ("readinessProbe", "/v1/readyz")):
            request = self.container[probe]["httpGet"]
            self.assertEqual((port, path), (request["port"], request["path"]))

    def test_the_pod_has_few_privileges(self):
        """The pod has the host network and one capability, and no token."""
        self.assertTrue(self.pod["spec"]["hostNetwork"])
        capabilities = self.container["securityContext"]["capabilities"]
        self.assertEqual({"drop": ["ALL"], "add": ["NET_ADMIN"]}, capabilities)
        self.assertFalse(self.pod["spec"]["automountServiceAccountToken"])

    def test_the_unit_starts_the_hub(self):
        """The program accepts the unit's flags, and its directories match the unit."""
        settings = dict(settings_of(UNIT))
        program, command, *arguments = shlex.split(settings["ExecStart"])
        self.assertTrue(program.endswith("/twist"))
        self.assertEqual("yurthub", command)
        arguments_used = [each.replace("${SERVERS}", "https://a:6443") for each in arguments]
        parsed = self.options(*(each for each in arguments_used if not each.startswith("$")))
        self.assertEqual(f"/var/lib/{settings['StateDirectory']}", str(parsed.root_dir))
        self.assertIn(parsed.root_dir, parsed.cache_dir.parents)
        self.assertEqual("CAP_NET_ADMIN", settings["CapabilityBoundingSet"])
        self.assertIn("AF_NETLINK", settings["RestrictAddressFamilies"].split())

    def test_the_unit_delays_the_kubelet_up_to_a_timeout(self):
        """The kubelet waits until the hub listens, at most for the start timeout."""
        settings = dict(settings_of(UNIT))
        self.assertEqual(("notify", "main"), (settings["Type"], settings["NotifyAccess"]))
        self.assertLessEqual(int(settings["TimeoutStartSec"]), 90)
        self.assertIn("Before=kubelet.service", UNIT.read_text())

    def test_the_overlay_sends_agents_to_the_hub(self):
        """Agents use the address and port on which hubs serve pods over TLS."""
        agent = named(render(OVERLAY), "DaemonSet", "yurt-tunnel-agent")
        (container,) = agent["spec"]["template"]["spec"]["containers"]
        listeners = self.options("--server-addr=a:6443").listeners
        where = f"{listeners.interface.address}:{listeners.secure_port}"
        self.assertIn(f"--apiserver-addr={where}", container["args"])

    def test_the_image_is_there_without_the_cloud(self):
        """Static pods use the node's image without asking a registry."""
        for file in STATIC_POD.parent.iterdir():
            for container in yaml.safe_load(file.read_text())["spec"]["containers"]:
                self.assertEqual("IfNotPresent", container["imagePullPolicy"], file)

    def test_permissions_of_hubs(self):
        """Nodes may read what hubs and kube-proxy watch, and no more."""
        objects = render(OVERLAY)
        role = named(objects, "ClusterRole", "yurt-hub")
        config, *others = role["rules"]
        self.assertEqual([CONFIG_MAP], config["resourceNames"])
        self.assertEqual(
            [["nodepools", "nodebuckets"], ["endpoints"], ["endpointslices"], ["servicecidrs"]],
            [rule["resources"] for rule in others],
        )
        for rule in role["rules"]:
            self.assertLessEqual(set(rule["verbs"]), {"get", "list", "watch"})
        (subject,) = named(objects, "ClusterRoleBinding", "yurt-hub")["subjects"]
        self.assertEqual(("Group", NODES_ORGANIZATION), (subject["kind"], subject["name"]))


class OrderTests(unittest.SynchronousTestCase):
    """The steps of migration and rollback never send a client to a missing hub."""

    def setUp(self):
        """Read the steps in both directions."""
        self.migration, self.rollback = README.read_text().split("## To go back")

    def assert_order(self, text, *steps):
        """Check that each of ``steps`` occurs once in the text, in this order."""
        found = [[match.start() for match in re.finditer(re.escape(each), text)] for each in steps]
        self.assertEqual([1] * len(steps), [len(each) for each in found], found)
        self.assertEqual(sorted(found), found)

    def test_agents_migrate_last(self):
        """Agents move after permissions, hubs and kubelets, and after all checks of the hub."""
        checks = ("interface for pods", "certificate for pods", "listeners for pods")
        self.assert_order(
            self.migration,
            f"`kubectl apply -f {RIGHTS}`",
            "`kubeadm token create --print-join-command`",
            "/v1/readyz`",
            *checks,
            "`rotateCertificates: false`",
            "no `--bootstrap-kubeconfig`",
            "20-yurthub.conf`",
            "`kubectl apply -k deploy/overlays/hub`",
            ROLLOUT,
        )
        process = (REPOSITORY / "yurttunnel" / "hub" / "process.py").read_text()
        for check in checks:
            self.assertIn(f'readiness.add("{check}"', process)

    def test_the_kubelet_uses_the_kubeconfig_of_the_hub(self):
        """The variable in the drop-in replaces kubeadm's and has no bootstrap kubeconfig."""
        [settings] = re.findall(r"```ini\n(.*?)```", self.migration, re.DOTALL)
        _, variable = settings.strip().splitlines()
        name, value = re.fullmatch(r' *Environment="(\w+)=(.*)"', variable).groups()
        self.assertEqual("KUBELET_KUBECONFIG_ARGS", name)
        self.assertEqual(["--kubeconfig=/etc/kubernetes/kubelet.conf"], value.split())

    def test_hubs_are_rolled_back_last(self):
        """Kubelets move back first, since a kubelet behind a hub sends new pods to the hub."""
        self.assert_order(
            self.rollback,
            "`rotateCertificates: true`",
            "without `20-yurthub.conf`",
            "`kubeadm token create`",
            "`kubectl apply -k deploy/base`",
            ROLLOUT,
            "remove the manifest",
            f"`kubectl delete -f {RIGHTS}`",
        )

    def test_the_base_is_the_overlay_without_the_hub(self):
        """The base restores the agents' flags; everything else in the overlay is permissions."""
        base, overlay = render(BASE), render(OVERLAY)
        rights = list(yaml.safe_load_all((REPOSITORY / RIGHTS).read_text()))
        changed = [named(overlay, "DaemonSet", "yurt-tunnel-agent")]
        self.assertCountEqual([*changed, *rights], [each for each in overlay if each not in base])
