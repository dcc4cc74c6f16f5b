"""The service proxy's manifests: what they start exists, and may what it has to."""

from __future__ import annotations

import shlex

from kubernetes.client import models
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial import unittest

from tests.deploy.rendering import DEPLOY, named, render, why_not_rendered
from tests.deploy.test_systemd import settings_of
from yurttunnel.proxy.flag_table import HEALTH_PORT, METRICS_PORT
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.proxier import REMOVAL_SECONDS

UNIT = DEPLOY / "systemd" / "yurtproxy.service"

CAPABILITIES = {"NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"}


def parse(*arguments):
    """Have the program parse its flags."""
    options = Options({"NODE_NAME": "edge-1"})
    options.parseOptions(arguments)
    return options.settings


class UnitTests(unittest.SynchronousTestCase):
    """The unit of systemd."""

    def test_it_starts_the_proxy(self):
        """With what the comment says as flags; it is waited for longer than it may drain."""
        settings = dict(settings_of(UNIT))
        program, command, variable = shlex.split(settings["ExecStart"])
        self.assertTrue(program.endswith("/twist"))
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        self.assertEqual("$PROXY_FLAGS", variable)
        (line,) = (each for each in UNIT.read_text().splitlines() if "PROXY_FLAGS=" in each)
        parsed = parse(*shlex.split(line.partition("=")[2]))
        self.assertEqual("http://127.0.0.1:10261", parsed.sources.master)
        longest = parsed.sync.drain + REMOVAL_SECONDS
        self.assertGreater(float(settings["TimeoutStopSec"]), longest)

    def test_it_may_little(self):
        """Three capabilities, and what it speaks to."""
        settings = dict(settings_of(UNIT))
        expected = {f"CAP_{each}" for each in CAPABILITIES}
        self.assertEqual(expected, set(settings["CapabilityBoundingSet"].split()))
        self.assertIn("AF_NETLINK", settings["RestrictAddressFamilies"].split())
        self.assertEqual("notify", settings["Type"])


class ManifestTests(unittest.SynchronousTestCase):
    """The DaemonSet and its rights."""

    skip = why_not_rendered()

    def daemon_set(self, directory):
        """Render a kustomization; return the objects, the pod and its container."""
        objects = render(DEPLOY / directory)
        daemon_set = named(objects, "DaemonSet", "yurt-proxy")
        models.V1DaemonSet.model_validate(daemon_set)
        pod = daemon_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return objects, pod, container

    def settings(self, container):
        """Return what the program makes of its arguments."""
        command, *arguments = container["args"]
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        return parse(*(each.replace("$(NODE_NAME)", "edge-1") for each in arguments))

    def test_the_pod_starts_the_proxy(self):
        """In the node's network, where it is probed; with time for its end."""
        _, pod, container = self.daemon_set("proxy")
        settings = self.settings(container)
        self.assertEqual("https://API:6443", settings.sources.master)
        self.assertTrue(pod["hostNetwork"])
        longest = settings.sync.drain + REMOVAL_SECONDS
        self.assertGreater(pod["terminationGracePeriodSeconds"], longest)
        self.assertEqual(HEALTH_PORT, settings.pages.health[1])
        for probe in ("livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            self.assertEqual(settings.pages.metrics, (asked["host"], asked["port"]))
            self.assertEqual(METRICS_PORT, asked["port"])

    def test_behind_a_hub(self):
        """It asks as the node, and has no token of its own."""
        _, pod, container = self.daemon_set("proxy-hub")
        self.assertEqual("http://127.0.0.1:10261", self.settings(container).sources.master)
        self.assertFalse(pod["automountServiceAccountToken"])

    def test_what_it_may(self):
        """It reads what it serves, and its node; it changes the network of the machine."""
        objects, _, container = self.daemon_set("proxy")
        rules = named(objects, "ClusterRole", "yurt-proxy")["rules"]
        self.assertEqual(
            [["services"], ["endpointslices"], ["nodes"]], [each["resources"] for each in rules]
        )
        for rule in rules:
            self.assertEqual(["list", "watch"], rule["verbs"])
        capabilities = container["securityContext"]["capabilities"]
        self.assertEqual((["ALL"], CAPABILITIES), (capabilities["drop"], set(capabilities["add"])))
