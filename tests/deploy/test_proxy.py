"""The service proxy's manifests: they start the proxy with the rights that it needs."""

from __future__ import annotations

import json
import re
import shlex

from kubernetes.client import models
from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial import unittest

from tests.deploy.rendering import DEPLOY, REPOSITORY, named, render, why_not_rendered
from tests.deploy.test_systemd import settings_of
from tests.e2e.guides import blocks
from yurttunnel.proxy.flag_table import HEALTH_PORT, METRICS_PORT
from yurttunnel.proxy.options import Options
from yurttunnel.proxy.proxier import REMOVAL_SECONDS

UNIT = DEPLOY / "systemd" / "yurtproxy.service"
README = DEPLOY / "proxy" / "README.md"

CAPABILITIES = {"NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"}


def parse(*arguments):
    """Return the program's settings for its flags."""
    return Options({"NODE_NAME": "edge-1"}).settings_of(*arguments)


class UnitTests(unittest.SynchronousTestCase):
    """The systemd unit."""

    def test_it_starts_the_proxy(self):
        """The program accepts the flags in the comment, and the stop timeout covers its drain."""
        settings = dict(settings_of(UNIT))
        program, command, variable = shlex.split(settings["ExecStart"])
        self.assertTrue(program.endswith("/twist"))
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        self.assertEqual("$PROXY_FLAGS", variable)
        (line,) = (each for each in UNIT.read_text().splitlines() if "PROXY_FLAGS=" in each)
        parsed = parse(*shlex.split(line.partition("=")[2]))
        self.assertEqual("http://127.0.0.1:10261", parsed.sources.master)
        max_seconds = parsed.sync.drain + REMOVAL_SECONDS
        self.assertGreater(float(settings["TimeoutStopSec"]), max_seconds)

    def test_few_privileges(self):
        """The unit has three capabilities and may use netlink."""
        settings = dict(settings_of(UNIT))
        expected = {f"CAP_{each}" for each in CAPABILITIES}
        self.assertEqual(expected, set(settings["CapabilityBoundingSet"].split()))
        self.assertIn("AF_NETLINK", settings["RestrictAddressFamilies"].split())
        self.assertEqual("notify", settings["Type"])


class ManifestTests(unittest.SynchronousTestCase):
    """The DaemonSet and its permissions."""

    skip = why_not_rendered()

    def daemon_set(self, directory):
        """Return the objects of a kustomization, the pod and its container."""
        objects = render(DEPLOY / directory)
        daemon_set = named(objects, "DaemonSet", "yurt-proxy")
        models.V1DaemonSet.model_validate(daemon_set)
        pod = daemon_set["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return objects, pod, container

    def settings(self, container):
        """Return the program's settings for the container's arguments."""
        command, *arguments = container["args"]
        self.assertIn(command, {maker.tapname for maker in getPlugins(IServiceMaker)})
        return parse(*(each.replace("$(NODE_NAME)", "edge-1") for each in arguments))

    def test_the_pod_starts_the_proxy(self):
        """The pod has the host network, matching probes, and a grace period for the drain."""
        _, pod, container = self.daemon_set("proxy")
        settings = self.settings(container)
        self.assertEqual("https://API:6443", settings.sources.master)
        self.assertTrue(pod["hostNetwork"])
        max_seconds = settings.sync.drain + REMOVAL_SECONDS
        self.assertGreater(pod["terminationGracePeriodSeconds"], max_seconds)
        self.assertEqual(HEALTH_PORT, settings.pages.health[1])
        for probe in ("livenessProbe", "readinessProbe"):
            request = container[probe]["httpGet"]
            self.assertEqual(settings.pages.metrics, (request["host"], request["port"]))
            self.assertEqual(METRICS_PORT, request["port"])

    def test_with_a_hub(self):
        """Behind a hub the proxy uses the node's identity and has no token of its own."""
        _, pod, container = self.daemon_set("proxy-hub")
        self.assertEqual("http://127.0.0.1:10261", self.settings(container).sources.master)
        self.assertFalse(pod["automountServiceAccountToken"])

    def test_removal(self):
        """To remove the proxy, all pods first restart with the flag that removes their rules."""
        (text,) = [each.text for each in blocks(README) if "--remove-rules-at-exit" in each.text]
        commands = [shlex.split(each) for each in text.replace("\\\n", "").splitlines()]
        self.assertEqual(["patch", "rollout", "delete"], [each[3] for each in commands])
        change, pace = json.loads(commands[0][-1])
        self.assertEqual("/spec/template/spec/containers/0/args/-", change["path"])
        # An offline node does not delay the others.
        self.assertEqual(
            ("/spec/updateStrategy/rollingUpdate/maxUnavailable", "100%"),
            (pace["path"], pace["value"]),
        )
        for directory in ("proxy", "proxy-hub"):
            objects, _, container = self.daemon_set(directory)
            update = named(objects, "DaemonSet", "yurt-proxy")["spec"]["updateStrategy"]
            self.assertIn("maxUnavailable", update["rollingUpdate"])
            container["args"].append(change["value"])
            self.assertTrue(self.settings(container).sync.removes_rules)

    def test_removal_of_rules_is_documented(self):
        """Where a page mentions --cleanup, it links to the way to run it in a cluster."""
        for page in (REPOSITORY / "docs" / name for name in ("messages.md", "proxy.md")):
            for line in page.read_text().splitlines():
                if re.search(r"proxy (again or with )?--cleanup\b", line):
                    self.assertIn("(../deploy/proxy/README.md#to-go-back)", line)

    def test_permissions(self):
        """The account may list and watch Services, EndpointSlices and Nodes, and no more."""
        objects, _, container = self.daemon_set("proxy")
        rules = named(objects, "ClusterRole", "yurt-proxy")["rules"]
        self.assertEqual(
            [["services"], ["endpointslices"], ["nodes"]], [each["resources"] for each in rules]
        )
        for rule in rules:
            self.assertEqual(["list", "watch"], rule["verbs"])
        capabilities = container["securityContext"]["capabilities"]
        self.assertEqual((["ALL"], CAPABILITIES), (capabilities["drop"], set(capabilities["add"])))
