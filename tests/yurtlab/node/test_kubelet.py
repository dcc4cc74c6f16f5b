"""The kubelet's HTTP API, over connections in memory."""

from __future__ import annotations

import json
import re

from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.fakes import MemoryConnection
from tests.http.support import Server, request, responses
from tests.yurtlab.node.support import World, container
from tests.yurtlab.streaming.support import WebSocketCodec, websocket_head
from yurtlab.node import kubelet as kubelet_module
from yurtlab.node.containers import NO_COMMAND
from yurtlab.node.kubelet import Kubelet
from yurtlab.node.metrics import NodeMetrics
from yurttunnel.http.interfaces import IRequestHandler


class KubeletTestCase(TestCase):
    """A kubelet with pods."""

    def setUp(self):
        """Make it."""
        self.world = World(self)
        self.pods = {}
        self.metrics = NodeMetrics(self.world.reactor, "edge-1", self.pods.values)
        self.kubelet = Kubelet(
            self.world.reactor,
            self.metrics,
            lambda namespace, name: self.pods.get((namespace, name)),
            lambda: [self.world.stored(pod.name) for pod in self.pods.values()],
        )
        self.server = Server(handler=self.kubelet)
        self.addCleanup(self.server.factory.close)

    def add(self, *containers, **given):
        """Run a pod."""
        pod = self.world.pod(*containers, **given)
        self.pods["default", pod.name] = pod
        return pod

    def connect(self):
        """Connect a client."""
        return self.server.connect(MemoryConnection)

    def turn(self, connection):
        """Let the connection send."""
        while connection in connection.reactor.getWriters():
            connection.turn()

    def ask(self, target, method=b"GET"):
        """Make a request that is answered at once, and return status, fields and body."""
        connection = self.connect()
        connection.receive(request(target, b"Accept: application/json", method=method))
        self.turn(connection)
        ((status, fields, body, _),) = responses(connection.sent, method.decode())
        return status, fields, body

    def refusal(self, target, method=b"GET"):
        """Make a request that fails, and return status and message."""
        status, _, body = self.ask(target, method)
        found = json.loads(body)
        self.assertEqual((found["kind"], found["code"]), ("Status", status))
        return status, found["message"]


class ReadTests(KubeletTestCase):
    """Read-only requests."""

    def test_is_a_handler(self):
        """It provides the interface that HTTP connections expect."""
        verifyObject(IRequestHandler, self.kubelet)

    def test_health(self):
        """The node reports that it is healthy."""
        self.assertEqual(self.ask(b"/healthz")[::2], (200, b"ok"))

    def test_configuration(self):
        """The configuration has the parts that apply to this node."""
        status, _, body = self.ask(b"/configz")
        self.assertEqual(status, 200)
        found = json.loads(body)["kubeletconfig"]
        self.assertEqual((found["kind"], found["maxPods"]), ("KubeletConfiguration", 110))

    async def test_pods(self):
        """It lists its pods with their status."""
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        status, _, body = self.ask(b"/pods")
        self.assertEqual(status, 200)
        found = json.loads(body)
        self.assertEqual((found["kind"], found["apiVersion"]), ("PodList", "v1"))
        self.assertEqual([one["status"]["phase"] for one in found["items"]], ["Running"])

    async def test_metrics(self):
        """The metrics are those of real processes."""
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        labels = rb'\{container="main",namespace="default",pod="web"\}'
        resident = rb"\ncontainer_memory_working_set_bytes" + labels + rb" \d{5,}\n"
        # A process that is just being executed has no pages yet, or so few that none are counted.
        await self.world.reactor.until(
            lambda: re.search(resident, self.ask(b"/metrics")[2]), "the container has memory"
        )
        status, fields, body = self.ask(b"/metrics")
        self.assertEqual(status, 200)
        self.assertIn(b"version=0.0.4", fields[b"content-type"])
        self.assertIn(b'kubelet_node_name{node="edge-1"} 1\n', body)
        self.assertIn(b"kubelet_running_pods 1\n", body)
        self.assertIn(b'kubelet_running_containers{container_state="running"} 1\n', body)
        self.assertRegex(body, rb"\ncontainer_processes" + labels + rb" [12]\n")
        self.assertRegex(body, rb"\nnode_cpu_usage_seconds_total \d")
        self.assertRegex(body, rb"\nprocess_open_fds \d")
        self.assertRegex(body, rb"\nprocess_cpu_seconds_total \d")

    async def test_resource_metrics(self):
        """The resource metrics have what metrics-server requests, and none of the program
        itself.
        """
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        _, _, body = self.ask(b"/metrics/resource")
        for name in (
            b"container_cpu_usage_seconds_total",
            b"container_memory_working_set_bytes",
            b"container_start_time_seconds",
            b"node_cpu_usage_seconds_total",
            b"node_memory_working_set_bytes",
            b"pod_cpu_usage_seconds_total",
            b"pod_memory_working_set_bytes",
            b"resource_scrape_error",
        ):
            self.assertIn(b"\n# TYPE " + name + b" ", body)
        self.assertNotIn(b"kubelet_node_name", body)
        sizes = rb"\n(?:container|pod)_memory_working_set_bytes\{[^}]*\} (\d{5,})\n"

        def measured():
            found = re.findall(sizes, self.ask(b"/metrics/resource")[2])
            return len(found) == 2 and found

        container_bytes, pod_bytes = await self.world.reactor.until(measured, "both have memory")
        self.assertEqual(container_bytes, pod_bytes)

    async def test_processor_time(self):
        """Processor time is what a process has used, and never decreases."""
        # Far more than the hundredth of a second below which the kernel shows none.
        script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000"
        pod = self.add(container(script))
        await self.world.until_phase("Running")

        def used():
            (one,) = self.metrics.summary()["pods"]
            return one["cpu"]["usageCoreNanoSeconds"]

        before = await self.world.reactor.until(used, "it has used some")
        self.assertGreaterEqual(used(), before)
        pod.find("")._process.signal(9)
        await self.world.reactor.until(lambda: pod.find("").restarts, "it runs again")
        self.assertLess(used(), 10**10)

    async def test_summary(self):
        """The summary has the node and its pods, as the kubelet's."""
        pod = self.add(container("sleep 1000"))
        await self.world.until_phase("Running")

        def with_memory():
            found = json.loads(self.ask(b"/stats/summary")[2])
            return found["pods"][0]["memory"]["rssBytes"] > 100_000 and found

        found = await self.world.reactor.until(with_memory, "the pod has memory")
        self.assertEqual(found["node"]["nodeName"], "edge-1")
        self.assertGreater(found["node"]["memory"]["workingSetBytes"], 1_000_000)
        (one,) = found["pods"]
        self.assertEqual(one["podRef"], {"name": "web", "namespace": "default", "uid": pod.uid})
        self.assertEqual([each["name"] for each in one["containers"]], ["main"])

    def test_unknown(self):
        """Unknown paths give 404, unsupported methods 405."""
        for target in (b"/", b"/nothing", b"/pods/x", b"/metrics/x", b"/stats", b"/healthz/x"):
            self.assertEqual(self.refusal(target)[0], 404, target)
        self.assertEqual(self.refusal(b"/metrics", b"PUT")[0], 405)
        self.assertEqual(self.metrics.requests["other"], 2)

    def test_no_path(self):
        """A target that looks like an address is an unknown path."""
        self.assertEqual(self.refusal(b"//[x")[0], 404)


class LogTests(KubeletTestCase):
    """Logs."""

    async def test_log(self):
        """The log is the output of the process."""
        self.add(container("echo one; echo two"), restartPolicy="Never")
        await self.world.until_phase("Succeeded")
        status, fields, body = self.ask(b"/containerLogs/default/web/main?tailLines=1")
        self.assertEqual((status, body), (200, b"two\n"))
        self.assertEqual(fields[b"content-type"], b"text/plain")

    async def test_follow(self):
        """A follower gets output as it is written, and the end with that of the process."""
        pod = self.add(container("read w; echo $w", stdin=True), restartPolicy="Never")
        await self.world.until_phase("Running")
        connection = self.connect()
        connection.receive(request(b"/containerLogs/default/web/main?follow=true"))
        self.turn(connection)
        self.assertIn(b"HTTP/1.1 200", connection.sent)
        pod.find("")._process.write(b"word\n")
        await self.world.until_phase("Succeeded")
        self.turn(connection)
        ((status, _, body, _),) = responses(connection.sent, "GET")
        self.assertEqual((status, body), (200, b"word\n"))

    async def test_previous(self):
        """The log of the previous run is available after a restart."""
        self.add(container("test -e seen && exec sleep 1000; touch seen; echo first"))
        target = b"/containerLogs/default/web/main?previous=true"
        await self.world.reactor.until(
            lambda: self.pods["default", "web"].find("").restarts, "it runs again"
        )
        self.assertEqual(self.ask(target)[2], b"first\n")
        self.add(container("sleep 1000"), name="other")
        status, message = self.refusal(target.replace(b"web", b"other"))
        self.assertEqual(status, 400)
        self.assertIn('previous terminated container "main" in pod "other" not found', message)

    def test_refused(self):
        """Missing logs give the kubelet's messages."""
        self.add(container())
        self.world.reactor.advance(0)
        for target, expected in {
            b"/containerLogs/default/none/main": (404, 'pod "none" does not exist'),
            b"/containerLogs/default/web/x": (404, 'container "x" not found in pod "web"'),
            b"/containerLogs/default/web/main": (
                400,
                'container "main" in pod "web" is waiting to start: CreateContainerConfigError:'
                f" {NO_COMMAND}",
            ),
            b"/containerLogs/default/web/main?tailLines=x": (
                400,
                'tailLines: strconv.ParseInt: parsing "x": invalid syntax',
            ),
        }.items():
            self.assertEqual(self.refusal(target), expected)
        self.assertEqual(self.refusal(b"/containerLogs/default/web")[0], 404)


class StreamTests(KubeletTestCase):
    """Streaming requests."""

    def open(self, target):
        """Open a WebSocket, and return the connection and its codec."""
        connection, codec = self.connect(), WebSocketCodec()
        head = [*websocket_head("v5.channel.k8s.io", path=target), "Host: node", "", ""]
        connection.receive("\r\n".join(head).encode())
        self.turn(connection)
        answer, _, rest = connection.sent.partition(b"\r\n\r\n")
        connection.segments[:] = [rest]
        # Clients get some time before their command begins.
        self.world.reactor.advance(1)
        return answer, connection, codec

    async def results(self, connection, codec):
        """Receive until the status, and return all streams by number."""
        streams = {}

        def status_received():
            self.turn(connection)
            for one in codec.messages(connection.sent):
                if isinstance(one, bytes):
                    streams[one[0]] = streams.get(one[0], b"") + one[1:]
            connection.segments.clear()
            return 3 in streams

        await self.world.reactor.until(status_received, "the status comes")
        return streams

    async def test_exec(self):
        """A command runs in the container's environment, with its streams and exit code."""
        self.add(container("sleep 1000", env=[{"name": "WORD", "value": "hello"}]))
        await self.world.until_phase("Running")
        target = (
            "/exec/default/web/main?command=sh&command=-c"
            "&command=read+w%3B+echo+%24WORD+%24w+%24HOSTNAME%3B+pwd%3B+echo+err+%3E%262%3B+exit+42"
            "&input=1&output=1&error=1"
        )
        answer, connection, codec = self.open(target)
        self.assertIn(b"101", answer)
        connection.receive(codec.message(b"\0there\n"))
        streams = await self.results(connection, codec)
        first, second = streams[1].decode().splitlines()
        self.assertEqual(first, "hello there web")
        self.assertIn(self.pods["default", "web"].uid, second)
        self.assertEqual(streams[2], b"err\n")
        self.assertEqual(json.loads(streams[3])["details"]["causes"][0]["message"], "42")
        self.assertEqual(self.metrics.commands_started, 1)

    async def test_exec_by_uid(self):
        """A pod can be named with its uid, which must be right."""
        pod = self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        query = "?command=true&output=1"
        answer, connection, codec = self.open(f"/exec/default/web/{pod.uid}/main{query}")
        self.assertIn(b"101", answer)
        await self.results(connection, codec)
        answer, _, _ = self.open(f"/exec/default/web/other/main{query}")
        self.assertIn(b"404", answer)

    async def test_any_arguments(self):
        """Arguments are passed unchanged, also empty ones and bytes that are not UTF-8."""
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        arguments = "command=printf&command=%25s.%25s.%25s&command=&command=a%FFb&command=%C3%BC"
        _, connection, codec = self.open(f"/exec/default/web/main?{arguments}&output=1")
        streams = await self.results(connection, codec)
        self.assertEqual(streams[1], b".a\xffb.\xc3\xbc")

    async def test_terminal(self):
        """A command with a terminal has one, and TERM is set."""
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        script = "test+-t+0+%26%26+echo+%24TERM"
        target = f"/exec/default/web/main?command=sh&command=-c&command={script}"
        _, connection, codec = self.open(f"{target}&input=1&output=1&tty=1")
        streams = await self.results(connection, codec)
        self.assertEqual(streams[1], b"xterm\r\n")

    async def test_client_goes(self):
        """When the client disconnects, another command is accepted."""
        self.patch(kubelet_module, "MAX_COMMANDS", 1)
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        target = "/exec/default/web/main?command=sleep&command=1000&output=1"
        _, connection, _ = self.open(target)
        self.assertIn(b"429", self.open(target)[0])
        connection.break_off(ConnectionError())
        await self.world.reactor.until(lambda: not self.kubelet._commands, "it is over")
        self.assertIn(b"101", self.open(target)[0])
        for one in list(self.server.factory.connections):
            one.abort()

    async def test_container_ends(self):
        """A command ends with its container, and its client gets the status."""
        pod = self.add(container("sleep 1000"), restartPolicy="Never")
        await self.world.until_phase("Running")
        _, connection, codec = self.open(
            "/exec/default/web/main?command=sleep&command=1000&output=1"
        )
        pod.delete(1)
        streams = await self.results(connection, codec)
        self.assertEqual(json.loads(streams[3])["details"]["causes"][0]["message"], "137")

    async def test_attach(self):
        """A client is attached to the container's main process."""
        self.add(container("read w; echo heard $w", stdin=True), restartPolicy="Never")
        await self.world.until_phase("Running")
        answer, connection, codec = self.open("/attach/default/web/main?input=1&output=1&error=1")
        self.assertIn(b"101", answer)
        connection.receive(codec.message(b"\0knock\n"))
        streams = await self.results(connection, codec)
        self.assertEqual(streams[1], b"heard knock\n")
        self.assertEqual(json.loads(streams[3])["status"], "Success")

    async def test_port_forward(self):
        """A port-forward is accepted for a pod with a running container."""
        self.add(container("sleep 1000"))
        await self.world.until_phase("Running")
        head = websocket_head("v4.channel.k8s.io", path="/portForward/default/web?port=8080")
        connection = self.connect()
        connection.receive("\r\n".join([*head, "Host: node", "", ""]).encode())
        self.turn(connection)
        self.assertIn(b"HTTP/1.1 101", connection.sent)
        self.assertEqual(self.world.reactor.connections, [("127.0.0.1", 8080)])

    async def test_refused(self):
        """An invalid streaming request is rejected before the upgrade, with the reason."""
        self.add(container("exit 3"), restartPolicy="Never")
        await self.world.until_phase("Failed")
        for target, expected in {
            b"/exec/default/none/main?command=true&output=1": (404, 'pod "none" does not exist'),
            b"/exec/default/web/main?command=true&output=1": (
                400,
                'container "main" does not run: it has ended with exit code 3',
            ),
            b"/exec/default/web/main?output=1": (400, "exec: a command is required"),
            b"/exec/default/web/main?command=true": (
                400,
                "you must specify at least 1 of stdin, stdout, stderr",
            ),
            b"/attach/default/web/main?output=1": (
                400,
                'container "main" does not run: it has ended with exit code 3',
            ),
            b"/portForward/default/web": (400, 'no container of pod "web" is running'),
        }.items():
            self.assertEqual(self.refusal(target, b"POST"), expected, target)

    async def test_waiting(self):
        """An exec into a waiting container is rejected with the reason why it waits."""
        self.add(container("exit 1"))
        await self.world.until_state("waiting")
        status, message = self.refusal(b"/exec/default/web/main?command=true&output=1", b"POST")
        self.assertEqual(status, 400)
        self.assertIn("it waits: CrashLoopBackOff: back-off 10s", message)
        self.assertEqual(self.refusal(b"/portForward/default", b"POST")[0], 404)
        self.assertEqual(self.refusal(b"/exec/default/web", b"POST")[0], 404)

    async def test_no_upgrade(self):
        """A request without an upgrade is rejected, and no process stays."""
        self.add(container("sleep 1000", stdin=True))
        await self.world.until_phase("Running")
        for target in (
            b"/exec/default/web/main?command=true&output=1",
            b"/attach/default/web/main?output=1",
            b"/portForward/default/web",
        ):
            self.assertEqual(self.refusal(target, b"POST")[0], 400)
        self.assertEqual(self.kubelet._commands, 0)
