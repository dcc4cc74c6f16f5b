"""The check of the quickstart and its output."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import signal
import socket
import sys
import tarfile
import threading
import warnings
from types import SimpleNamespace

from kubernetes import client, config
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.quickstart import assertions, called_service, check
from yurttunnel.quickstart.called_service import CALLS

WHERE = ("http://127.0.0.1:1", "127.0.0.1:2", "ports")
"""Hub and service proxy, which are not queried, and how Services are called."""


class MainTests(SynchronousTestCase):
    """Steps that succeed and steps that fail."""

    def setUp(self):
        """Replace the cluster's configuration and stdout."""
        self.patch(check.config, "load_kube_config", lambda path, **options: None)
        self.output = io.StringIO()
        self.patch(sys, "stdout", self.output)

    def test_as_a_program(self):
        """Run as a program, the check uses its arguments, leaves keys only beside the kubeconfig,
        and exits quietly on SIGPIPE and, by the quickstart, on SIGINT."""
        signals, loads = [], []
        self.patch(signal, "signal", lambda *handled: signals.append(handled))
        self.patch(sys, "argv", ["check", "state/kubeconfig", *WHERE])
        self.patch(config, "load_kube_config", lambda *path, **where: loads.append((path, where)))
        self.patch(client, "CoreV1Api", lambda connections: 1 / 0)
        with warnings.catch_warnings():
            # The test has imported the module before.
            warnings.simplefilter("ignore", RuntimeWarning)
            self.assertRaises(ZeroDivisionError, runpy.run_module, check.__name__, None, "__main__")
        self.assertEqual([(("state/kubeconfig",), {"temp_file_path": "state"})], loads)
        self.assertEqual(
            [(signal.SIGPIPE, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)], signals
        )

    def run_steps(self, *steps):
        """Run the steps; return the exit status."""
        self.patch(check.Check, "steps", lambda self: list(steps))
        return check.main("kubeconfig", *WHERE)

    def test_all_work(self):
        """Each step that succeeds is reported in one line, and the status is 0."""
        status = self.run_steps(("one", lambda: "seen"), ("two", lambda: "as well"))
        self.assertEqual(status, 0)
        first, second = self.output.getvalue().splitlines()
        self.assertRegex(first, r"^ok +one +\d+\.\d{3} s  seen$")
        self.assertRegex(second, r"^ok +two +\d+\.\d{3} s  as well$")

    def test_one_fails(self):
        """A failed step is reported in one line, the next steps run, and the status is 1."""

        def fails():
            raise assertions.CheckFailed("it is\nnot so")

        self.assertEqual(self.run_steps(("one", fails), ("two", lambda: "seen")), 1)
        first, second = self.output.getvalue().splitlines()
        self.assertRegex(first, r"^FAIL +one +\d+\.\d{3} s  it is not so$")
        self.assertRegex(second, r"^ok +two ")


class Edge:
    """A cluster of one node in memory, which answers the check's calls.

    Answers are true, unless ``lies`` has a function for the name of a fact. It is called with the
    true value and returns the value for the answer.
    """

    def __init__(self):
        self.lies = {}
        self.pods = set()
        self.events = ["started"]
        self.file = b""
        self.services = {}
        self.called = []
        self.requests = []

    def fact(self, name, truth):
        """Return a fact, or the lie about it."""
        lie = self.lies.get(name)
        return truth if lie is None else lie(truth)

    # The core API

    def create_namespaced_pod(self, namespace, body, **_):
        """Create the pod."""
        self.fact("create", None)
        self.pods.add(body.metadata.name)

    def read_namespaced_pod(self, name, namespace, **_):
        """Return the pod as running."""
        if name not in self.fact("pods", self.pods):
            raise client.ApiException(404, "Not Found")
        phase, node = self.fact("phase", "Running"), self.fact("node", "edge-1")
        status = SimpleNamespace(phase=phase, pod_ip="127.0.0.1")
        spec = SimpleNamespace(node_name=node)
        return SimpleNamespace(status=status, spec=spec)

    def list_pod_for_all_namespaces(self, field_selector, **_):
        """Return the node's pods."""
        names = self.fact("the node's pods", self.pods)
        return SimpleNamespace(items=[named(name) for name in names])

    def read_node(self, name, **_):
        """Return the node."""
        return named(self.fact("the node's name", name))

    def list_namespaced_event(self, namespace, **_):
        """Return the pod's events."""
        return SimpleNamespace(items=[named(name) for name in self.fact("events", self.events)])

    def delete_namespaced_pod(self, name, namespace, **_):
        """Delete the pod."""
        self.fact("delete", None)
        self.pods.discard(name)

    def read_namespaced_pod_log(self, name, namespace, **_):
        """Return the pod's log."""
        return self.fact("log", "listening on port 4711\n")

    def create_namespaced_service(self, namespace, body, **_):
        """Store the Service."""
        self.services[body["metadata"]["name"]] = []

    def delete_namespaced_service(self, name, namespace, **_):
        """Delete the Service."""
        del self.services[name]

    def create_namespaced_endpoint_slice(self, namespace, body, **_):
        """Store the endpoints of the Service."""
        self.fact("slice", None)
        (port,) = body["ports"]
        self.services[body["metadata"]["labels"]["kubernetes.io/service-name"]] = [
            f"{address}:{port['port']}" for one in body["endpoints"] for address in one["addresses"]
        ]

    def delete_namespaced_endpoint_slice(self, name, namespace, **_):
        """Delete the endpoints."""
        self.services[name] = []

    def connect_get_node_proxy_with_path(self, node, path, **_):
        """Return the node's metrics."""
        return self.fact("metrics", f"# HELP a\na 1\nnode {{{node}}} 2\n")

    def connect_get_namespaced_pod_exec(self):
        """Identify the call of exec."""

    def connect_get_namespaced_pod_attach(self):
        """Identify the call of attach."""

    def connect_get_namespaced_pod_portforward(self):
        """Identify the call of port-forward."""

    # The requests to the quickstart

    def send(self, *words):
        """Perform a request; events of the outage are visible afterwards."""
        self.requests.append(words)
        self.fact(words[0], None)
        if words == ("start-api",):
            self.events.append(f"restarted-{len(self.requests)}")

    # The service proxy's state and connections

    def service_states(self, proxy):
        """Return the Services that the proxy serves, with their endpoints."""
        return [
            {"service": f"default/{name}", "endpoints": endpoints, "proxy_port": 4712}
            for name, endpoints in self.fact("service_states", self.services).items()
        ]

    def connect(self, where, seconds=0.0):
        """Connect to a Service, at the proxy's port or at its cluster address."""
        if where[0] != "127.0.0.1":
            self.fact("rules", None)
        self.called.append(where)
        return contextlib.closing(EchoSocket(self, "called"))

    # The functions of kubernetes.stream

    def stream(self, connect, pod, namespace, command=(), **_):
        """Start exec or attach."""
        return Streams(self, list(command))

    def portforward(self, connect, pod, namespace, ports):
        """Start port-forward."""
        return SimpleNamespace(socket=lambda port: EchoSocket(self))


def named(name):
    """Return an object with a name."""
    return SimpleNamespace(metadata=SimpleNamespace(name=name))


class Streams:
    """The streams of a command, which runs when its input is complete."""

    def __init__(self, edge, command):
        self.edge = edge
        self.command = command
        self.stdin = b""
        self.returncode = None
        self.sock = SimpleNamespace(shutdown=lambda: None)

    def is_open(self):
        """Return False, since the stream is closed."""
        return False

    def write_stdin(self, data):
        """Receive input."""
        self.stdin += data

    def run_forever(self, timeout):
        """Run the command."""
        self.edge.fact("exec", None)
        self.returncode = self.edge.fact("exit code", 42 if self.command[0] == "sh" else 0)
        if check._UNPACK in self.command:
            self.returncode = self.edge.fact("unpacked", 0)
            with tarfile.open(fileobj=io.BytesIO(self.stdin)) as archive:
                self.edge.file = archive.extractfile("check.bin").read()

    def read_stdout(self):
        """Return its stdout."""
        if check._PACK not in self.command:
            return self.edge.fact("output", b"out " + self.stdin)
        packed = io.BytesIO()
        content = self.edge.fact("file", self.edge.file)
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(self.command[-1])
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        return packed.getvalue()

    def read_stderr(self):
        """Return its stderr."""
        return self.edge.fact("error output", b"err " + self.stdin)

    def readline_stdout(self, timeout):
        """Return a line of the attached process."""
        return self.edge.fact("answer", b"heard " + self.stdin.rstrip(b"\n"))


class EchoSocket:
    """A connection to a pod's port; ``fact`` is the data that it echoes."""

    def __init__(self, edge, fact="echo"):
        self._edge = edge
        self._fact = fact
        self._data = b""

    def settimeout(self, seconds):
        """Do nothing, since nothing blocks."""

    def sendall(self, data):
        """Receive data."""
        self._data += data

    def recv(self, size):
        """Return the echoed data."""
        piece, self._data = self._data[:size], self._data[size:]
        return self._edge.fact(self._fact, piece)

    def close(self):
        """Do nothing."""


def flipped(data):
    """Return ``data`` with one bit changed."""
    return bytes([data[0] ^ 1]) + data[1:]


def instead(value):
    """Return a lie that is always ``value``."""
    return lambda truth: value


def fails(truth):
    """Fail like a tunnel that does not reach the node."""
    raise client.ApiException(503, "Service Unavailable")


LIES = [
    ("run", "create", fails),
    ("run", "phase", instead("Pending")),
    ("run", "phase", instead(None)),
    ("run", "node", instead(None)),
    ("logs", "log", fails),
    ("logs", "log", instead("")),
    ("logs", "log", instead("this is the log of another pod\n")),
    ("exec", "output", instead(b"")),
    ("exec", "output", flipped),
    ("exec", "error output", instead(b"")),
    ("exec", "error output", instead(b"out hello\n")),
    ("exec", "exit code", lambda code: 0),
    ("exec", "exit code", lambda code: None if code == 42 else code),
    ("attach", "answer", instead(b"")),
    ("attach", "answer", flipped),
    ("port-forward", "echo", instead(b"")),
    ("port-forward", "echo", flipped),
    ("cp", "file", instead(b"")),
    ("cp", "file", flipped),
    ("cp", "file", lambda content: content[:-1]),
    ("cp", "unpacked", instead(2)),
    ("metrics", "metrics", fails),
    ("metrics", "metrics", instead("")),
    ("metrics", "metrics", instead("# HELP a\n# TYPE a counter\n\n")),
    ("service", "slice", fails),
    ("service", "service_states", instead({})),
    ("service", "service_states", lambda services: {name: [] for name in services}),
    ("service", "called", instead(b"")),
    ("service", "called", flipped),
    ("autonomy", "the node's pods", fails),
    ("autonomy", "the node's pods", instead(())),
    ("autonomy", "the node's name", instead("edge-2")),
    ("autonomy", "stop-api", fails),
    ("autonomy", "reboot-node", fails),
    ("autonomy", "start-api", fails),
    ("autonomy", "events", instead(["started"])),
    ("delete", "delete", fails),
]
"""The step that detects the lie, the fact that the cluster lies about, and the lie."""


class FaultyClusterTests(SynchronousTestCase):
    """The check detects every lie of a cluster, so it shows what fails in a faulty tunnel."""

    def setUp(self):
        """Run the check against a cluster in memory, without waiting."""
        self.now = 0.0
        self.edge = Edge()
        self.patch(check.config, "load_kube_config", lambda path, **options: None)
        self.patch(check.client, "CoreV1Api", lambda connections: self.edge)
        self.patch(check.client, "DiscoveryV1Api", lambda connections: self.edge)
        self.patch(called_service, "service_states", self.edge.service_states)
        self.patch(called_service, "connect", self.edge.connect)
        self.patch(check, "stream", self.edge.stream)
        self.patch(check, "portforward", self.edge.portforward)
        self.patch(check.check_requests, "send", self.edge.send)
        self.patch(check, "CP_BYTES", 65536)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        self.patch(check, "time", clock)
        self.patch(assertions, "time", clock)

    def sleep(self, seconds):
        """Advance the time."""
        self.now += seconds

    def check(self, *where):
        """Run the check; return the exit status and the failed steps."""
        self.output = io.StringIO()
        self.patch(sys, "stdout", self.output)
        status = check.main("kubeconfig", *(where or WHERE))
        output = self.output.getvalue()
        self.assertEqual(10, len(re.findall(r"(?m)^(?:ok|FAIL) ", output)), output)
        return status, re.findall(r"(?m)^FAIL +([a-z-]+) ", output)

    def test_truth(self):
        """Every step succeeds if all answers are true."""
        self.assertEqual((0, []), self.check())

    def test_each_lie(self):
        """A lie fails its own step and no other, and the exit status is 1."""
        for step, fact, lie in LIES:
            self.edge.lies = {fact: lie}
            found = self.check()
            failed = [step]
            if step == "run":
                # Without the pod, the steps that need it fail as well.
                failed = ["run", *(["service"] if fact == "create" else []), "autonomy"]
            self.assertEqual((1, failed), found, (fact, self.output.getvalue()))

    def test_actual_value(self):
        """The line of a failed step has the expected value and the actual one."""
        self.edge.lies = {"unpacked": instead(2)}
        self.check()
        self.assertEqual(1, self.output.getvalue().count(": 0 was expected, 2 came\n"))

    def test_each_step_is_lied_to(self):
        """There is a lie for each step."""
        steps = [name for name, _ in check.Check(None, None, None, None).steps()]
        self.assertEqual(set(steps), {step for step, _, _ in LIES})

    def test_service(self):
        """The Service is called several times at the proxy's port, and deleted in the end."""
        self.check()
        self.assertEqual([("127.0.0.1", 4712)] * CALLS, self.edge.called)
        self.assertEqual({}, self.edge.services)
        self.edge.lies = {"called": instead(b"")}
        self.check()
        self.assertEqual({}, self.edge.services)

    def test_service_at_its_address(self):
        """With firewall rules the Service is called at its address, once the rules are in place."""
        addresses = (*WHERE[:2], "addresses")
        waits = 3

        def is_refused(_):
            nonlocal waits
            waits -= 1
            if waits >= 0:
                raise ConnectionRefusedError

        self.edge.lies = {"rules": is_refused}
        self.assertEqual((0, []), self.check(*addresses))
        self.assertEqual([("10.96.0.10", 80)] * (1 + CALLS), self.edge.called)
        self.assertIn(" 6 calls of 10.96.0.10:80, past an endpoint", self.output.getvalue())
        self.edge.lies = {"called": flipped}
        self.assertEqual((1, ["service"]), self.check(*addresses))
        waits = 1_000_000
        self.edge.lies = {"rules": is_refused}
        self.assertEqual((1, ["service"]), self.check(*addresses))
        self.assertIn("rules redirect 10.96.0.10:80 to the proxy", self.output.getvalue())

    def test_outage(self):
        """The API is stopped while the node reboots, and started again whatever has failed."""
        self.check()
        (pod,) = {words[2] for words in self.edge.requests if words[0] == "reboot-node"}
        reboot = ("reboot-node", "default", pod)
        self.assertEqual([("stop-api",), reboot, ("start-api",)], self.edge.requests)
        self.edge.requests.clear()
        self.edge.lies = {"the node's pods": fails}
        self.check()
        self.assertEqual([("stop-api",), ("start-api",)], self.edge.requests)

    def test_a_pod_that_stays(self):
        """Deleting a pod succeeds only when the pod is gone."""
        self.edge.pods = UndeletablePods()
        self.assertEqual((1, ["delete"]), self.check())
        self.assertIn(", waiting until the pod is gone", self.output.getvalue())

    def test_missing_tunnel(self):
        """Without a tunnel the steps that need it fail, and those that need the API succeed."""

        self.edge.lies = dict.fromkeys(("log", "exec", "answer", "echo", "metrics"), fails)
        status, failed = self.check()
        self.assertEqual(1, status)
        self.assertEqual(["logs", "exec", "attach", "port-forward", "cp", "metrics"], failed)


class PageTests(SynchronousTestCase):
    """The service proxy's page, over a real connection."""

    def serve(self, status, body):
        """Serve one response like the proxy; return the address."""
        listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listening.close)

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
                )

        answering = threading.Thread(target=answer)
        answering.start()
        self.addCleanup(answering.join)
        return f"127.0.0.1:{listening.getsockname()[1]}"

    def test_what_it_carries(self):
        """The page's content is returned."""
        self.assertEqual([{"a": 1}], called_service.service_states(self.serve(200, b'[{"a": 1}]')))

    def test_another_answer(self):
        """An error status is reported."""
        where = self.serve(503, b"not now")
        error = self.assertRaises(assertions.CheckFailed, called_service.service_states, where)
        self.assertIn("/services answers with 503", str(error))


class UndeletablePods(set):
    """Pods that cannot be deleted."""

    def discard(self, name):
        """Do nothing."""
