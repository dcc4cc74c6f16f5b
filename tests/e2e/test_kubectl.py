"""Typical use of kubectl through the tunnel, with every installed version."""

from __future__ import annotations

import json
import os
import random
import re
import sys

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SkipTest

from tests.e2e.kubectl import Kubectl, Quickstart, find_kubectls
from tests.e2e.kubectl_use import MEBIBYTE, KubectlTestCase
from tests.processes import children_of

WEB = """
import socketserver, threading, time

class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read().upper())

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 32

server = Server(("127.0.0.1", 0), Upper)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("port", server.server_address[1], flush=True)
number = 0
while True:
    print("tick", number, flush=True)
    number += 1
    time.sleep(0.05)
"""

ECHO = """
import sys
for line in sys.stdin:
    print("heard", line, end="", flush=True)
    print("noise", file=sys.stderr, flush=True)
"""

versions = find_kubectls()


class QuickstartTestCase(KubectlTestCase):
    """A test case with a quickstart and a kubectl of :attr:`version`."""

    version = ""

    async def start_quickstart(self, **options) -> Quickstart:
        """Start a quickstart and wait until its node is reached through the tunnel."""
        quickstart = Quickstart(reactor, self.directory, **options)
        self.addCleanup(lambda: Deferred.fromCoroutine(self._end_quickstart(quickstart)))
        quickstart.start()
        await quickstart.wait_for_instructions()
        return quickstart

    async def _end_quickstart(self, quickstart: Quickstart) -> None:
        if quickstart.running:
            children = children_of(quickstart.pid)
            status = await quickstart.stop(20)
            self.assertIn(status, (0, -15), quickstart.log[-2000:])
            # Who is not its own child any more is waited for by another one, a moment later.
            await self.eventually(
                lambda: not any(os.path.exists(f"/proc/{child}") for child in children),
                f"none of the processes {children} is left",
            )
        self.assertEqual(quickstart.forbidden_log_lines(), [])

    def kubectl(self, quickstart: Quickstart) -> Kubectl:
        """Return kubectl of this class's version, or skip the test."""
        if self.version not in versions:
            raise SkipTest("kubectl is not installed")
        return Kubectl(reactor, versions[self.version], quickstart)

    async def run_pod(self, kubectl: Kubectl, name: str, program: str) -> None:
        """Have a pod run a Python program, and wait until it does."""
        command = (sys.executable, "-u", "-c", program)
        await kubectl.output(
            "run", name, "--image=none", "--restart=Never", "--command", "--", *command
        )
        await self.pod_runs(kubectl, name)

    async def pod_runs(self, kubectl: Kubectl, name: str) -> None:
        """Wait, with kubectl, until a pod is ready."""
        await kubectl.output("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=50s")

    async def port_of(self, kubectl: Kubectl, name: str) -> int:
        """Read the port that a pod listens on from its log."""

        async def logged():
            return re.search(r"port (\d+)", await kubectl.output("logs", name))

        return int((await self.eventually(logged, "the pod has said its port"))[1])


class KubectlTests:
    """Mixed into a test case for each version."""

    async def test_pods_and_logs(self):
        """Nodes and pods are listed, run, shown, followed and deleted; metrics are read."""
        quickstart = await self.start_quickstart()
        kubectl = self.kubectl(quickstart)
        nodes = await kubectl.output("get", "nodes")
        self.assertRegex(nodes, r"NAME +STATUS +ROLES +AGE +VERSION\s+edge-1 +Ready ")
        await self.run_pod(kubectl, "web", WEB)
        pods = await kubectl.output("get", "pods", "-o", "wide")
        self.assertRegex(pods, r"web +1/1 +Running +0 +\S+ +127\.0\.0\.1 +edge-1 ")
        described = await kubectl.output("describe", "pod", "web")
        self.assertIn("Started", described)
        await self.port_of(kubectl, "web")
        last = await kubectl.output("logs", "web", "--tail=2")
        self.assertRegex(last, r"\Atick \d+\ntick \d+\n\Z")
        follow = self.start_kubectl(kubectl, "logs", "-f", "web")
        await follow.wait_for_output(r"tick 0\n(tick \d+\n){30}")
        follow.signal("INT")
        self.assertNotEqual((await follow.finished(5)).status, 0)
        numbers = [int(n) for n in re.findall(rb"tick (\d+)\n", bytes(follow.out))]
        self.assertEqual(numbers, list(range(len(numbers))))
        metrics = await kubectl.output("get", "--raw", "/api/v1/nodes/edge-1/proxy/metrics")
        self.assertRegex(metrics, r"(?m)^process_cpu_seconds_total ")
        await kubectl.output("delete", "pod", "web", "--grace-period=1", seconds=20)
        after_deletion = await kubectl.run("get", "pod", "web")
        self.assertEqual(after_deletion.status, 1)
        self.assertIn(b'pods "web" not found', after_deletion.error)
        await self.assert_no_requests(quickstart)

    async def assert_no_requests(self, quickstart: Quickstart) -> None:
        """Require that no request passes through the tunnel any more."""

        async def none():
            return await quickstart.metric("yurttunnel_server_total_in_proxy_requests") == 0

        await self.eventually(none, "no request is under way")

    async def test_exec_and_attach(self):
        """Input, both outputs, exit codes and terminals are those of the processes."""
        quickstart = await self.start_quickstart()
        kubectl = self.kubectl(quickstart)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "echo", "labels": {"app": "echo"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "none",
                        "command": [sys.executable, "-u", "-c", ECHO],
                        "stdin": True,
                    }
                ],
            },
        }
        created = await kubectl.output("apply", "-f", "-", stdin=json.dumps(pod).encode())
        self.assertIn("pod/echo created", created)
        await self.pod_runs(kubectl, "echo")
        script = "cat; echo wrong >&2; exit 42"
        stdin_text = random.randbytes(100_000).hex().encode()
        finished = await kubectl.run(
            "exec", "-i", "echo", "--", "sh", "-c", script, stdin=stdin_text
        )
        self.assertEqual(finished.out, stdin_text)
        self.assertTrue(finished.error.startswith(b"wrong\n"), finished)
        self.assertIn(b"exit code 42", finished.error)
        self.assertEqual(finished.status, 42)
        missing = await kubectl.run("exec", "echo", "--", "no-such-program")
        self.assertNotEqual(missing.status, 0)
        self.assertIn(b"no-such-program", missing.error)
        shell = await self.open_terminal(kubectl, "echo")
        # By then the child has executed its program. A signal before that would be lost, and the
        # child would continue: dash's handler only sets a flag, which ends with exec.
        shell.transport.write(b"sh -c 'echo begun; exec sleep 100'\n")
        # Not the terminal's echo of the command, where a semicolon follows.
        await shell.wait_for_output(r"begun\r")
        shell.transport.write(b"\x03")
        await shell.wait_for_output(r"\^C\s+[#$] ")
        shell.transport.write(b"echo still $((40 + 2))\n")
        await shell.wait_for_output("still 42")
        shell.transport.write(b"exit 7\n")
        self.assertEqual((await shell.finished(10)).status, 7)
        await self.attach(kubectl, "echo")
        self.assertIn("heard is anybody there", await kubectl.output("logs", "echo"))
        await kubectl.output("delete", "pod", "echo", "--grace-period=1", seconds=20)
        await self.assert_no_requests(quickstart)

    async def test_unsupported_requests(self):
        """Requests that the demonstration does not support are rejected, and leave nothing
        behind.
        """
        quickstart = await self.start_quickstart()
        kubectl = self.kubectl(quickstart)
        await self.run_pod(kubectl, "web", WEB)
        demonstration = "this is the demonstration API of yurttunnel"
        job = b'{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec":'
        job += b'{"template": {"spec": {"restartPolicy": "Never", "containers":'
        job += b'[{"name": "main", "image": "none"}]}}}}'
        for arguments, stdin in (
            (("create", "deployment", "web", "--image=none"), None),
            (("create", "job", "web", "--image=none"), None),
            (("create", "cronjob", "web", "--image=none", "--schedule=* * * * *"), None),
            (("apply", "-f", "-"), job),
            (("debug", "web", "--image=none", "--target=web"), None),
            (("create", "token", "default"), None),
            (("get", "--raw", "/api/v1/namespaces/default/pods/web/proxy/"), None),
        ):
            finished = await kubectl.run(*arguments, stdin=stdin)
            self.assertNotEqual(finished.status, 0, finished)
            self.assertIn(demonstration, finished.error.decode(), arguments)
        self.assertEqual("pod/web", (await kubectl.output("get", "all", "-o", "name")).strip())
        configuration = await kubectl.output("get", "--raw", "/api/v1/nodes/edge-1/proxy/configz")
        self.assertIn("kubeletconfig", json.loads(configuration))

    async def test_port_forward_and_copy(self):
        """Concurrent connections get complete answers after their FIN; files arrive complete."""
        quickstart = await self.start_quickstart()
        kubectl = self.kubectl(quickstart)
        await self.run_pod(kubectl, "web", WEB)
        port = await self.port_of(kubectl, "web")
        await self.forward_port(kubectl, "web", port, 6, MEBIBYTE)
        await self.copy(kubectl, "web")


for _version in versions or ("",):
    _name = f"Kubectl{_version.replace('.', '_')}Tests"
    globals()[_name] = type(
        _name,
        (KubectlTests, QuickstartTestCase),
        {"version": _version, "__doc__": f"kubectl {_version}.", "__module__": __name__},
    )
del _name, _version
