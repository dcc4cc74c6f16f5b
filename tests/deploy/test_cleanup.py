"""The Job that removes firewall rules on nodes that can be reached only through kubectl."""

from __future__ import annotations

import subprocess

import yaml
from kubernetes.client import models

from tests.deploy.rendering import (
    DEPLOY,
    REPOSITORY,
    named,
    pod_of,
    render,
    rendered_text,
    server_of,
    usable_kubectls,
)
from tests.deploy.workloads import RenderedTestCase
from tests.e2e.guides import blocks
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.server.options import Options as ServerOptions

DIRECTORY = DEPLOY / "cleanup-iptables"
PLACEHOLDER = "NODE"


class CleanupTests(RenderedTestCase):
    """On one node the Job has the rights of the server with firewall rules, and no more."""

    def setUp(self):
        """Render the Job and the server."""
        (self.job,) = render(DIRECTORY)
        (self.container,) = pod_of(self.job)["containers"]
        self.server = pod_of(server_of(render(DEPLOY / "overlays" / "iptables")))

    def test_every_kubectl_renders_the_same(self):
        """Every kubectl renders the same valid Job."""
        self.assertEqual(1, len({rendered_text(DIRECTORY, each) for each in usable_kubectls()}))
        models.V1Job.model_validate(self.job)

    def test_the_program_accepts_its_arguments(self):
        """The program accepts its arguments, which only remove the rules."""
        command, *flags = self.container["args"]
        self.assertEqual("yurttunnel-server", command)
        settings = ServerOptions().settings_of(*flags)
        self.assertTrue(settings.cleanup_iptables)

    def test_it_has_the_rights_of_the_server(self):
        """Image, security context, host network and lock file are those of the server."""
        (server,) = self.server["containers"]
        for field in ("image", "securityContext"):
            self.assertEqual(server[field], self.container[field])
        self.assertIs(True, pod_of(self.job)["hostNetwork"])
        (mount,) = self.container["volumeMounts"]
        self.assertIn(mount, server["volumeMounts"])
        (volume,) = pod_of(self.job)["volumes"]
        self.assertIn(volume, self.server["volumes"])

    def test_it_sends_no_request_to_the_cluster(self):
        """The Job has no token of the API."""
        self.assertIs(False, pod_of(self.job)["automountServiceAccountToken"])

    def test_it_ends(self):
        """The Job is not retried and has a deadline."""
        self.assertEqual(0, self.job["spec"]["backoffLimit"])
        self.assertEqual("Never", pod_of(self.job)["restartPolicy"])
        self.assertGreater(self.job["spec"]["activeDeadlineSeconds"], 0)

    def test_the_machine_is_selected_by_one_word(self):
        """The placeholder that the text says to replace occurs once, as the node's name."""
        text = rendered_text(DIRECTORY, usable_kubectls()[-1])
        (job,) = yaml.safe_load_all(text.replace(PLACEHOLDER, "cp-1"))
        self.assertEqual("cp-1", pod_of(job)["nodeName"])
        self.assertEqual(1, text.count(PLACEHOLDER))
        steering = (REPOSITORY / "docs" / "steering.md").read_text()
        self.assertIn(f"s/{PLACEHOLDER}/cp-1/", steering)
        self.assertIn(f"job/{self.job['metadata']['name']}", steering)


class ProxyCleanupTests(RenderedTestCase):
    """The commands on the service proxy's page change the Job into one for the proxy's rules."""

    def setUp(self):
        """Run the commands on the page."""
        texts = [block.text for block in blocks(DEPLOY / "proxy" / "README.md")]
        (text,) = [each for each in texts if "deploy/cleanup-iptables" in each]
        command, *_ = text.replace("kubectl kustomize", "cat").partition("| kubectl apply -f -")
        command = command.replace("deploy/cleanup-iptables", "-")
        done = subprocess.run(
            ["sh", "-c", command],
            input=rendered_text(DIRECTORY, usable_kubectls()[-1]),
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        (self.job,) = yaml.safe_load_all(done.stdout)
        (self.container,) = pod_of(self.job)["containers"]

    def test_the_program_accepts_its_arguments(self):
        """The program accepts its arguments, which remove the rules on one node."""
        models.V1Job.model_validate(self.job)
        self.assertEqual("edge-1", pod_of(self.job)["nodeName"])
        self.assertEqual("IMAGE:0.1.0", self.container["image"])
        command, *flags = self.container["args"]
        self.assertEqual("yurtproxy", command)
        settings = ProxyOptions({}).settings_of(*flags)
        self.assertTrue(settings.cleanup)

    def test_it_has_the_rights_of_the_proxy(self):
        """The Job has the rights of the proxy, except the capability to bind low ports."""
        proxy = pod_of(named(render(DEPLOY / "proxy"), "DaemonSet", "yurt-proxy"))
        (container,) = proxy["containers"]
        ours, theirs = (
            set(each["securityContext"]["capabilities"]["add"])
            for each in (self.container, container)
        )
        self.assertEqual(theirs - {"NET_BIND_SERVICE"}, ours)
        self.assertEqual(proxy["hostNetwork"], pod_of(self.job)["hostNetwork"])
        self.assertEqual(container["volumeMounts"], self.container["volumeMounts"])
        self.assertEqual(proxy["volumes"], pod_of(self.job)["volumes"])
