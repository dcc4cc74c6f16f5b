"""The job that removes firewall rules where nothing but kubectl is at hand."""

from __future__ import annotations

import yaml
from kubernetes.client import models

from tests.deploy.rendering import (
    DEPLOY,
    REPOSITORY,
    pod_of,
    render,
    rendered_text,
    server_of,
    usable_kubectls,
)
from tests.deploy.workloads import RenderedTestCase
from yurttunnel.server.options import Options as ServerOptions

DIRECTORY = DEPLOY / "cleanup-iptables"
PLACEHOLDER = "NODE"


class CleanupTests(RenderedTestCase):
    """It does on one machine what the server with firewall rules may do there, and no more."""

    def setUp(self):
        """Render it, and the server."""
        (self.job,) = render(DIRECTORY)
        (self.container,) = pod_of(self.job)["containers"]
        self.server = pod_of(server_of(render(DEPLOY / "overlays" / "iptables")))

    def test_every_kubectl_renders_the_same(self):
        """It is one Job, in the form of its kind."""
        self.assertEqual(1, len({rendered_text(DIRECTORY, each) for each in usable_kubectls()}))
        models.V1Job.model_validate(self.job)

    def test_the_program_takes_its_arguments(self):
        """They say to remove the rules, and nothing else is started."""
        command, *flags = self.container["args"]
        self.assertEqual("yurttunnel-server", command)
        options = ServerOptions()
        options.parseOptions(flags)
        self.assertTrue(options.settings.cleanup_iptables)

    def test_it_has_the_rights_of_the_server(self):
        """Image, security, the network of the machine and the lock are those of the server."""
        (server,) = self.server["containers"]
        for field in ("image", "securityContext"):
            self.assertEqual(server[field], self.container[field])
        self.assertIs(True, pod_of(self.job)["hostNetwork"])
        (mount,) = self.container["volumeMounts"]
        self.assertIn(mount, server["volumeMounts"])
        (volume,) = pod_of(self.job)["volumes"]
        self.assertIn(volume, self.server["volumes"])

    def test_it_asks_nothing_of_the_cluster(self):
        """It has no token."""
        self.assertIs(False, pod_of(self.job)["automountServiceAccountToken"])

    def test_it_ends(self):
        """It is not tried again by itself, and has a deadline."""
        self.assertEqual(0, self.job["spec"]["backoffLimit"])
        self.assertEqual("Never", pod_of(self.job)["restartPolicy"])
        self.assertGreater(self.job["spec"]["activeDeadlineSeconds"], 0)

    def test_the_machine_is_said_by_one_word(self):
        """What the text tells to replace is in one place, and that is the node."""
        text = rendered_text(DIRECTORY, usable_kubectls()[-1])
        (named,) = yaml.safe_load_all(text.replace(PLACEHOLDER, "cp-1"))
        self.assertEqual("cp-1", pod_of(named)["nodeName"])
        self.assertEqual(1, text.count(PLACEHOLDER))
        steering = (REPOSITORY / "docs" / "steering.md").read_text()
        self.assertIn(f"s/{PLACEHOLDER}/cp-1/", steering)
        self.assertIn(f"job/{self.job['metadata']['name']}", steering)
