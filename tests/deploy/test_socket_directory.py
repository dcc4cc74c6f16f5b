"""The directory of kube-apiserver's Unix socket: every server can use it, and no stranger can."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.deploy.rendering import DEPLOY, pod_of, render, server_of
from tests.deploy.workloads import KustomizationTestCase

OVERLAY = DEPLOY / "overlays" / "egress-selector"
IPTABLES = DEPLOY / "components" / "iptables"
PLACE = "/run/yurttunnel"

SECONDS = 60
"""How long a command may take."""


def as_in(pod, container):
    """Return the command that runs another one as the container would: its user and capabilities.

    What a container says goes before what its pod says (``SecurityContext`` of k8s.io/api core/v1).
    """
    security = {**pod["securityContext"], **container["securityContext"]}
    groups = [security["fsGroup"], *security.get("supplementalGroups", [])]
    kept = [f"+{each.lower()}" for each in security["capabilities"].get("add", [])]
    return [
        "setpriv",
        f"--reuid={security['runAsUser']}",
        f"--regid={security['runAsGroup']}",
        f"--groups={','.join(map(str, groups))}",
        f"--bounding-set={','.join(['-all', *kept])}",
        "--inh-caps=-all",
        "--no-new-privs",
    ]


class SocketDirectoryTests(KustomizationTestCase):
    """The rendered command makes the directory, with the rights that it has in the cluster."""

    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        skip = "only root can become other users, by setpriv"

    def setUp(self):
        """Render both kinds of servers, and have a place that everybody gets to."""
        self.servers = [
            pod_of(server_of(render(directory)))
            for directory in (OVERLAY, self.kustomization(OVERLAY, components=[IPTABLES]))
        ]
        above = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, above)
        above.chmod(0o711)
        self.place = above / "yurttunnel"

    def run_as(self, pod, container, *command):
        """Run a command as the container would; gives its status."""
        done = subprocess.run(
            [*as_in(pod, container), *command],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            timeout=SECONDS,
        )
        return done.returncode

    def make(self, pod):
        """Do what the container does that comes before the server."""
        (maker,) = pod["initContainers"]
        self.assertEqual(PLACE, maker["command"][-1])
        status = self.run_as(pod, maker, *maker["command"][:-1], str(self.place))
        self.assertEqual(0, status)

    def replace_socket(self, pod):
        """Do what a server does that finds a socket: look whether it is in use, and replace it."""
        (server,) = pod["containers"]
        script = (
            'if [ -e "$1" ]; then [ -w "$1" ] || exit 3; rm -- "$1" || exit 4; fi; '
            'umask 117; : > "$1"'
        )
        return self.run_as(pod, server, "sh", "-c", script, "sh", str(self.place / "connect.sock"))

    def test_each_server_can_make_its_socket(self):
        """That of the overlay, and the one with firewall rules, a root without rights."""
        for pod in self.servers:
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            shutil.rmtree(self.place)

    def test_each_server_can_replace_the_socket_of_the_other(self):
        """What a killed server has left keeps none of the other kind from starting."""
        for pod in (*self.servers, *self.servers):
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))

    def test_a_directory_that_is_there_gets_the_right_owner(self):
        """One of an earlier version, which only user 65532 could enter, is of use to both."""
        for pod in self.servers:
            self.place.mkdir(mode=0o700)
            os.chown(self.place, 65532, 65532)
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            shutil.rmtree(self.place)

    def test_the_socket_is_of_the_group_of_the_directory(self):
        """Whichever group the server has itself, callers in that one get in."""
        for pod in self.servers:
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            group = pod["securityContext"]["fsGroup"]
            self.assertEqual(group, (self.place / "connect.sock").stat().st_gid)

    def test_no_stranger_gets_in(self):
        """Another user does not even see whether there is a socket."""
        pod, _ = self.servers
        self.make(pod)
        security = {"runAsUser": 65533, "runAsGroup": 65533, "fsGroup": 65533, "capabilities": {}}
        stranger = {"securityContext": security}
        self.assertNotEqual(0, self.run_as(pod, stranger, "ls", str(self.place)))
