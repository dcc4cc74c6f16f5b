"""The directory of kube-apiserver's Unix socket: servers can use it, and other users cannot."""

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
DIRECTORY = "/run/yurttunnel"

SECONDS = 60
"""The timeout of a command."""


def as_in(pod, container):
    """Return a command prefix that runs a program with a container's user and capabilities.

    A container's settings override its pod's (``SecurityContext`` of k8s.io/api core/v1).
    """
    security = {**pod["securityContext"], **container["securityContext"]}
    groups = [security["fsGroup"], *security.get("supplementalGroups", [])]
    added = [f"+{each.lower()}" for each in security["capabilities"].get("add", [])]
    return [
        "setpriv",
        f"--reuid={security['runAsUser']}",
        f"--regid={security['runAsGroup']}",
        f"--groups={','.join(map(str, groups))}",
        f"--bounding-set={','.join(['-all', *added])}",
        "--inh-caps=-all",
        "--no-new-privs",
    ]


class SocketDirectoryTests(KustomizationTestCase):
    """The rendered command makes the directory, run with the container's rights."""

    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        skip = "only root can become other users, by setpriv"

    def setUp(self):
        """Render both kinds of servers, and make a directory that everybody can traverse."""
        self.servers = [
            pod_of(server_of(render(directory)))
            for directory in (OVERLAY, self.kustomization(OVERLAY, components=[IPTABLES]))
        ]
        above = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, above)
        above.chmod(0o711)
        self.place = above / "yurttunnel"

    def run_as(self, pod, container, *command):
        """Run a command with the container's rights; return its exit status."""
        done = subprocess.run(
            [*as_in(pod, container), *command],
            cwd="/",
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            timeout=SECONDS,
        )
        return done.returncode

    def make(self, pod):
        """Run the command of the init container."""
        (maker,) = pod["initContainers"]
        self.assertEqual(DIRECTORY, maker["command"][-1])
        status = self.run_as(pod, maker, *maker["command"][:-1], str(self.place))
        self.assertEqual(0, status)

    def replace_socket(self, pod):
        """Replace a socket like a server: check that it is writable, delete it, make another."""
        (server,) = pod["containers"]
        script = (
            'if [ -e "$1" ]; then [ -w "$1" ] || exit 3; rm -- "$1" || exit 4; fi; '
            'umask 117; : > "$1"'
        )
        return self.run_as(pod, server, "sh", "-c", script, "sh", str(self.place / "connect.sock"))

    def test_each_server_can_make_its_socket(self):
        """Both the unprivileged server and the one with firewall rules can make the socket."""
        for pod in self.servers:
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            shutil.rmtree(self.place)

    def test_each_server_can_replace_the_socket_of_the_other(self):
        """A server can replace a socket that a killed server of the other kind left."""
        for pod in (*self.servers, *self.servers):
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))

    def test_a_directory_that_is_there_gets_the_right_owner(self):
        """The directory of an earlier version, with mode 0700, becomes usable for both."""
        for pod in self.servers:
            self.place.mkdir(mode=0o700)
            os.chown(self.place, 65532, 65532)
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            shutil.rmtree(self.place)

    def test_the_socket_is_of_the_group_of_the_directory(self):
        """The socket has the directory's group, whatever the server's own group is."""
        for pod in self.servers:
            self.make(pod)
            self.assertEqual(0, self.replace_socket(pod))
            group = pod["securityContext"]["fsGroup"]
            self.assertEqual(group, (self.place / "connect.sock").stat().st_gid)

    def test_no_stranger_gets_in(self):
        """Another user cannot list the directory."""
        pod, _ = self.servers
        self.make(pod)
        security = {"runAsUser": 65533, "runAsGroup": 65533, "fsGroup": 65533, "capabilities": {}}
        stranger = {"securityContext": security}
        self.assertNotEqual(0, self.run_as(pod, stranger, "ls", str(self.place)))
