"""The hub's manifests: what they start exists, and they are about the same ports and paths."""

from __future__ import annotations

import shlex

import yaml
from kubernetes.client import models
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial import unittest

from tests.deploy.rendering import DEPLOY, named, render
from tests.deploy.test_systemd import settings_of
from yurttunnel.hub.configuration import CONFIG_MAP
from yurttunnel.hub.options import Options
from yurttunnel.pki.certificate_template import NODES_ORGANIZATION

STATIC_POD = DEPLOY / "static-pods" / "yurthub.yaml"
UNIT = DEPLOY / "systemd" / "yurthub.service"
OVERLAY = DEPLOY / "overlays" / "hub"


class HubManifestTests(unittest.SynchronousTestCase):
    """What is in the files."""

    def setUp(self):
        """Read the pod."""
        self.pod = yaml.safe_load(STATIC_POD.read_text())
        (self.container,) = self.pod["spec"]["containers"]

    def options(self, *arguments):
        """Have the program parse its flags."""
        options = Options({"NODE_NAME": "edge-1"})
        options.parseOptions(arguments)
        return options.settings

    def test_the_pod_has_the_form_of_its_kind(self):
        """The official model takes it."""
        models.V1Pod.model_validate(self.pod)

    def test_the_pod_starts_the_hub(self):
        """Its flags are the program's, and its files are on the node."""
        command, *arguments = self.container["args"]
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        given = [each.replace("$(NODE_NAME)", "edge-1") for each in arguments]
        settings = self.options(*given)
        mounts = {each["mountPath"] for each in self.container["volumeMounts"]}
        self.assertLessEqual({str(settings.root_dir), str(settings.cache_dir)}, mounts)
        port = settings.listeners.meta_port
        for probe, path in (("livenessProbe", "/v1/healthz"), ("readinessProbe", "/v1/readyz")):
            asked = self.container[probe]["httpGet"]
            self.assertEqual((port, path), (asked["port"], asked["path"]))

    def test_the_pod_may_little(self):
        """It has the node's network, and one capability."""
        self.assertTrue(self.pod["spec"]["hostNetwork"])
        capabilities = self.container["securityContext"]["capabilities"]
        self.assertEqual({"drop": ["ALL"], "add": ["NET_ADMIN"]}, capabilities)
        self.assertFalse(self.pod["spec"]["automountServiceAccountToken"])

    def test_the_unit_starts_the_hub(self):
        """Its flags are the program's; it is not for ever without a word."""
        settings = dict(settings_of(UNIT))
        program, command, *arguments = shlex.split(settings["ExecStart"])
        self.assertTrue(program.endswith("/twist"))
        self.assertEqual("yurthub", command)
        given = [each.replace("${SERVERS}", "https://a:6443") for each in arguments]
        parsed = self.options(*(each for each in given if not each.startswith("$")))
        self.assertEqual(f"/var/lib/{settings['StateDirectory']}", str(parsed.root_dir))
        self.assertIn(parsed.root_dir, parsed.cache_dir.parents)
        self.assertEqual("CAP_NET_ADMIN", settings["CapabilityBoundingSet"])
        self.assertIn("AF_NETLINK", settings["RestrictAddressFamilies"].split())

    def test_the_unit_holds_the_kubelet_back_for_a_while_at_most(self):
        """Systemd is told when the hub listens, and stops one that does not get so far."""
        settings = dict(settings_of(UNIT))
        self.assertEqual(("notify", "main"), (settings["Type"], settings["NotifyAccess"]))
        self.assertLessEqual(int(settings["TimeoutStartSec"]), 90)
        self.assertIn("Before=kubelet.service", UNIT.read_text())

    def test_the_overlay_leads_agents_to_the_hub(self):
        """They ask at the address and the port where hubs serve pods by TLS."""
        agent = named(render(OVERLAY), "DaemonSet", "yurt-tunnel-agent")
        (container,) = agent["spec"]["template"]["spec"]["containers"]
        listeners = self.options("--server-addr=a:6443").listeners
        where = f"{listeners.interface.address}:{listeners.secure_port}"
        self.assertIn(f"--apiserver-addr={where}", container["args"])

    def test_what_hubs_may(self):
        """Nodes may read what hubs follow, and what kube-proxy does, and no more."""
        objects = render(OVERLAY)
        role = named(objects, "ClusterRole", "yurt-hub")
        config, *others = role["rules"]
        self.assertEqual([CONFIG_MAP], config["resourceNames"])
        self.assertEqual(
            [["nodepools", "nodebuckets"], ["endpoints"], ["endpointslices"]],
            [rule["resources"] for rule in others],
        )
        for rule in role["rules"]:
            self.assertLessEqual(set(rule["verbs"]), {"get", "list", "watch"})
        (subject,) = named(objects, "ClusterRoleBinding", "yurt-hub")["subjects"]
        self.assertEqual(("Group", NODES_ORGANIZATION), (subject["kind"], subject["name"]))
