"""How the check tells what it has found."""

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
"""Hub and service proxy, as nobody asks for them, and where Services are called."""


class MainTests(SynchronousTestCase):
    """Steps that succeed and steps that fail."""

    def setUp(self):
        """Let the steps be those of the test, and no cluster be asked."""
        self.patch(check.config, "load_kube_config", lambda path: None)
        self.said = io.StringIO()
        self.patch(sys, "stdout", self.said)

    def test_as_a_program(self):
        """It checks what it is given, and ends without a word when nobody reads on (head(1))."""
        signals, given = [], []
        self.patch(signal, "signal", lambda *handled: signals.append(handled))
        self.patch(sys, "argv", ["check", "kubeconfig", *WHERE])
        self.patch(config, "load_kube_config", given.append)
        self.patch(client, "CoreV1Api", lambda connections: 1 / 0)
        with warnings.catch_warnings():
            # It has been imported before, by this test.
            warnings.simplefilter("ignore", RuntimeWarning)
            self.assertRaises(ZeroDivisionError, runpy.run_module, check.__name__, None, "__main__")
        self.assertEqual(["kubeconfig"], given)
        self.assertEqual([(signal.SIGPIPE, signal.SIG_DFL)], signals)

    def run_steps(self, *steps):
        """Run them, and give the exit status."""
        self.patch(check.Check, "steps", lambda self: list(steps))
        return check.main("kubeconfig", *WHERE)

    def test_all_work(self):
        """When all steps work there is a line for each, and status 0."""
        status = self.run_steps(("one", lambda: "seen"), ("two", lambda: "as well"))
        self.assertEqual(status, 0)
        first, second = self.said.getvalue().splitlines()
        self.assertRegex(first, r"^ok +one +\d+\.\d{3} s  seen$")
        self.assertRegex(second, r"^ok +two +\d+\.\d{3} s  as well$")

    def test_one_fails(self):
        """A step that fails is told in one line, the others are tried, and the status is 1."""

        def fails():
            raise assertions.CheckFailed("it is\nnot so")

        self.assertEqual(self.run_steps(("one", fails), ("two", lambda: "seen")), 1)
        first, second = self.said.getvalue().splitlines()
        self.assertRegex(first, r"^FAIL +one +\d+\.\d{3} s  it is not so$")
        self.assertRegex(second, r"^ok +two ")


class Edge:
    """A cluster with one node, in memory: the calls that the check makes, and their true answers.

    Each answer is what it is unless ``lies`` has another one for the name of a fact: what is there,
    called with the true answer, gives the one that is told.
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
        """Return a fact, or lie about it."""
        lie = self.lies.get(name)
        return truth if lie is None else lie(truth)

    # The core API

    def create_namespaced_pod(self, namespace, body, **_):
        """Run it."""
        self.fact("create", None)
        self.pods.add(body.metadata.name)

    def read_namespaced_pod(self, name, namespace, **_):
        """Show that it runs."""
        if name not in self.fact("pods", self.pods):
            raise client.ApiException(404, "Not Found")
        phase, node = self.fact("phase", "Running"), self.fact("node", "edge-1")
        status = SimpleNamespace(phase=phase, pod_ip="127.0.0.1")
        spec = SimpleNamespace(node_name=node)
        return SimpleNamespace(status=status, spec=spec)

    def list_pod_for_all_namespaces(self, field_selector, **_):
        """List those of the node."""
        names = self.fact("the node's pods", self.pods)
        return SimpleNamespace(items=[named(name) for name in names])

    def read_node(self, name, **_):
        """Show the node."""
        return named(self.fact("the node's name", name))

    def list_namespaced_event(self, namespace, **_):
        """List what has happened to the pod."""
        return SimpleNamespace(items=[named(name) for name in self.fact("events", self.events)])

    def delete_namespaced_pod(self, name, namespace, **_):
        """End it."""
        self.fact("delete", None)
        self.pods.discard(name)

    def read_namespaced_pod_log(self, name, namespace, **_):
        """Show what it has printed."""
        return self.fact("log", "listening on port 4711\n")

    def create_namespaced_service(self, namespace, body, **_):
        """Keep it."""
        self.services[body["metadata"]["name"]] = []

    def delete_namespaced_service(self, name, namespace, **_):
        """Forget it."""
        del self.services[name]

    def create_namespaced_endpoint_slice(self, namespace, body, **_):
        """Keep the endpoints of its Service."""
        self.fact("slice", None)
        (port,) = body["ports"]
        self.services[body["metadata"]["labels"]["kubernetes.io/service-name"]] = [
            f"{address}:{port['port']}" for one in body["endpoints"] for address in one["addresses"]
        ]

    def delete_namespaced_endpoint_slice(self, name, namespace, **_):
        """Forget them."""
        self.services[name] = []

    def connect_get_node_proxy_with_path(self, node, path, **_):
        """Show the metrics of the node."""
        return self.fact("metrics", f"# HELP a\na 1\nnode {{{node}}} 2\n")

    def connect_get_namespaced_pod_exec(self):
        """Stand for the call of exec."""

    def connect_get_namespaced_pod_attach(self):
        """Stand for the call of attach."""

    def connect_get_namespaced_pod_portforward(self):
        """Stand for the call of port-forward."""

    # What the quickstart is ordered

    def send(self, *words):
        """Do it; what has happened while the API was away is told when it is back."""
        self.requests.append(words)
        self.fact(words[0], None)
        if words == ("start-api",):
            self.events.append(f"restarted-{len(self.requests)}")

    # What the service proxy shows, and carries

    def service_states(self, proxy):
        """Show what it serves, and where."""
        return [
            {"service": f"default/{name}", "endpoints": endpoints, "proxy_port": 4712}
            for name, endpoints in self.fact("service_states", self.services).items()
        ]

    def connect(self, where, seconds=0.0):
        """Connect to it, at a port or by rules."""
        if where[0] != "127.0.0.1":
            self.fact("rules", None)
        self.called.append(where)
        return contextlib.closing(EchoSocket(self, "called"))

    # What kubernetes.stream makes of them

    def stream(self, connect, pod, namespace, command=(), **_):
        """Begin exec or attach."""
        return Streams(self, list(command))

    def portforward(self, connect, pod, namespace, ports):
        """Begin port-forward."""
        return SimpleNamespace(socket=lambda port: EchoSocket(self))


def named(name):
    """An object with a name."""
    return SimpleNamespace(metadata=SimpleNamespace(name=name))


class Streams:
    """The streams of one command, which has run when its input is complete."""

    def __init__(self, edge, command):
        self.edge = edge
        self.command = command
        self.stdin = b""
        self.returncode = None
        self.sock = SimpleNamespace(shutdown=lambda: None)

    def is_open(self):
        """Return whether it is open, which it never is."""
        return False

    def write_stdin(self, data):
        """Take input."""
        self.stdin += data

    def run_forever(self, timeout):
        """Run to the end."""
        self.edge.fact("exec", None)
        self.returncode = self.edge.fact("exit code", 42 if self.command[0] == "sh" else 0)
        if check._UNPACK in self.command:
            self.returncode = self.edge.fact("unpacked", 0)
            with tarfile.open(fileobj=io.BytesIO(self.stdin)) as archive:
                self.edge.file = archive.extractfile("check.bin").read()

    def read_stdout(self):
        """Return the output."""
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
        """Return the other output."""
        return self.edge.fact("error output", b"err " + self.stdin)

    def readline_stdout(self, timeout):
        """Return a line of the attached process."""
        return self.edge.fact("answer", b"heard " + self.stdin.rstrip(b"\n"))


class EchoSocket:
    """A connection to the port of a pod; ``fact`` is what comes back."""

    def __init__(self, edge, fact="echo"):
        self._edge = edge
        self._fact = fact
        self._data = b""

    def settimeout(self, seconds):
        """Do nothing: nobody waits."""

    def sendall(self, data):
        """Take data."""
        self._data += data

    def recv(self, size):
        """Return what was sent."""
        piece, self._data = self._data[:size], self._data[size:]
        return self._edge.fact(self._fact, piece)

    def close(self):
        """Do nothing."""


def flipped(data):
    """Change one bit."""
    return bytes([data[0] ^ 1]) + data[1:]


def instead(value):
    """Tell this, whatever is true."""
    return lambda truth: value


def fails(truth):
    """Answer as a tunnel that does not reach the node."""
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
"""Which step finds out which fact it is that the cluster lies about, and how."""


class LiarTests(SynchronousTestCase):
    """The check against a cluster that lies: whoever tries a tunnel with it learns what fails."""

    def setUp(self):
        """Have the check ask a cluster in memory, and not wait."""
        self.now = 0.0
        self.edge = Edge()
        self.patch(check.config, "load_kube_config", lambda path: None)
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
        """Let time pass."""
        self.now += seconds

    def check(self, *where):
        """Run it; return the exit status, and the steps that have failed."""
        self.said = io.StringIO()
        self.patch(sys, "stdout", self.said)
        status = check.main("kubeconfig", *(where or WHERE))
        said = self.said.getvalue()
        self.assertEqual(10, len(re.findall(r"(?m)^(?:ok|FAIL) ", said)), said)
        return status, re.findall(r"(?m)^FAIL +([a-z-]+) ", said)

    def test_truth(self):
        """Nothing fails where all is true."""
        self.assertEqual((0, []), self.check())

    def test_each_lie(self):
        """Its step fails, no other one does, and so does the whole."""
        for step, fact, lie in LIES:
            self.edge.lies = {fact: lie}
            found = self.check()
            failed = [step]
            if step == "run":
                # There is no pod that outlives the API, or even none that could be called.
                failed = ["run", *(["service"] if fact == "create" else []), "autonomy"]
            self.assertEqual((1, failed), found, (fact, self.said.getvalue()))

    def test_what_came(self):
        """The line of a step that fails tells what was expected, and what came."""
        self.edge.lies = {"unpacked": instead(2)}
        self.check()
        self.assertEqual(1, self.said.getvalue().count(": 0 was expected, 2 came\n"))

    def test_each_step_is_lied_to(self):
        """No step is left out."""
        steps = [name for name, _ in check.Check(None, None, None, None).steps()]
        self.assertEqual(set(steps), {step for step, _, _ in LIES})

    def test_service(self):
        """It is called at the proxy's port, again and again, and nothing of it stays."""
        self.check()
        self.assertEqual([("127.0.0.1", 4712)] * CALLS, self.edge.called)
        self.assertEqual({}, self.edge.services)
        self.edge.lies = {"called": instead(b"")}
        self.check()
        self.assertEqual({}, self.edge.services)

    def test_service_at_its_address(self):
        """Where there are rules it is called there, once they lead to the proxy."""
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
        self.assertIn(" 6 calls of 10.96.0.10:80, past an endpoint", self.said.getvalue())
        self.edge.lies = {"called": flipped}
        self.assertEqual((1, ["service"]), self.check(*addresses))
        waits = 1_000_000
        self.edge.lies = {"rules": is_refused}
        self.assertEqual((1, ["service"]), self.check(*addresses))
        self.assertIn("rules lead 10.96.0.10:80 to the proxy", self.said.getvalue())

    def test_outage(self):
        """The API is away while the node starts anew, and comes back whatever has failed."""
        self.check()
        (pod,) = {words[2] for words in self.edge.requests if words[0] == "reboot-node"}
        reboot = ("reboot-node", "default", pod)
        self.assertEqual([("stop-api",), reboot, ("start-api",)], self.edge.requests)
        self.edge.requests.clear()
        self.edge.lies = {"the node's pods": fails}
        self.check()
        self.assertEqual([("stop-api",), ("start-api",)], self.edge.requests)

    def test_a_pod_that_stays(self):
        """Deleting is not over when the API has said yes."""
        self.edge.pods = Stubborn()
        self.assertEqual((1, ["delete"]), self.check())
        self.assertIn("it was still not so that the pod is gone", self.said.getvalue())

    def test_a_tunnel_that_is_gone(self):
        """What goes through it fails; the API itself answers."""

        self.edge.lies = dict.fromkeys(("log", "exec", "answer", "echo", "metrics"), fails)
        status, failed = self.check()
        self.assertEqual(1, status)
        self.assertEqual(["logs", "exec", "attach", "port-forward", "cp", "metrics"], failed)


class PageTests(SynchronousTestCase):
    """What the service proxy shows, by a real connection."""

    def serve(self, status, body):
        """Answer one request as the proxy might; return where."""
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
        """It is what the page has."""
        self.assertEqual([{"a": 1}], called_service.service_states(self.serve(200, b'[{"a": 1}]')))

    def test_another_answer(self):
        """It is told."""
        where = self.serve(503, b"not now")
        error = self.assertRaises(assertions.CheckFailed, called_service.service_states, where)
        self.assertIn("/services answers with 503", str(error))


class Stubborn(set):
    """Pods that cannot be ended."""

    def discard(self, name):
        """Do nothing."""
