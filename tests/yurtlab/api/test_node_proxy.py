"""Requests that nodes answer: logs, exec, attach, port-forward and the node's proxy."""

from __future__ import annotations

import json

from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure

from tests.http.messages import read_request
from tests.yurtlab.api.support import PODS_PATH, ApiTestCase, Client, node, pod
from yurtlab.api.resources import NODES

WEB = f"{PODS_PATH}/web"
UPGRADE = ["Connection: Upgrade", "Upgrade: SPDY/3.1"]
TWO = [{"name": "main", "image": "x"}, {"name": "side", "image": "x"}]


class NodeProxyTestCase(ApiTestCase):
    """A pod on the node edge-1, whose kubelet is at port 10350."""

    def setUp(self):
        """Create the pod."""
        super().setUp()
        self.store.remove(NODES, None, "edge-1")
        self.store.create(NODES, None, node(port=10350))
        self.create()

    def request_node(self, method, path, *, fields=(), body=None):
        """Send a request."""
        client = Client(self)
        client.send(method, path, body, fields=fields)
        return client

    @property
    def node_request(self):
        """Return the request on the newest connection to a node."""
        return read_request([self.origins[-1].sent]).head

    def answer(self, client, data):
        """Send data as the node."""
        self.origins[-1].receive(data)
        client.settle()

    def target(self, method, path, fields=()):
        """Send a request, and return the request that the node gets."""
        self.request_node(method, path, fields=fields)
        return self.node_request.target.decode()

    def refused(self, method, path, fields=()):
        """Send a request that reaches no node, and return the message of the error."""
        client = self.request_node(method, path, fields=fields)
        status, _, body = client.response(method)
        self.assertEqual([], self.dialed)
        self.assertEqual(400, status, body)
        return json.loads(body)["message"]


class LogTests(NodeProxyTestCase):
    """Logs."""

    def test_relayed(self):
        """The request is sent to the node by its name, and the response is relayed."""
        client = self.request_node("GET", f"{WEB}/log", fields=["X-Any: 1"])
        self.assertEqual([("edge-1", 10350)], self.dialed)
        self.assertEqual(b"/containerLogs/default/web/main", self.node_request.target)
        self.assertEqual([b"edge-1:10350"], self.node_request.values(b"host"))
        self.assertEqual([b"1"], self.node_request.values(b"x-any"))
        self.assertEqual([], self.node_request.values(b"authorization"))
        self.answer(client, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        self.assertEqual((200, b"hello"), client.response()[::2])

    def test_parameters(self):
        """The options of a log request are passed to the node, except false and missing ones."""
        query = (
            "container=main&follow=true&previous=false&timestamps=1&sinceSeconds=10&tailLines=0"
            "&limitBytes=5&sinceTime=2025-06-15T15%3A06%3A40Z&pretty=x&stream="
        )
        self.assertEqual(
            "/containerLogs/default/web/main?follow=true&timestamps=true&sinceSeconds=10"
            "&tailLines=0&limitBytes=5&sinceTime=2025-06-15T15%3A06%3A40Z",
            self.target("GET", f"{WEB}/log?{query}"),
        )

    def test_bad_parameters(self):
        """Invalid numbers are rejected."""
        for query in ("tailLines=-1", "sinceSeconds=0", "limitBytes=0"):
            status, answer = self.call("GET", f"{WEB}/log?{query}")
            self.assertEqual((422, "Invalid"), (status, answer["reason"]))
            self.assertIn("must be greater than", answer["message"])
        self.refused("GET", f"{WEB}/log?tailLines=x")
        lowest = "sinceSeconds=1&tailLines=0&limitBytes=1"
        expected = f"/containerLogs/default/web/main?{lowest}"
        self.assertEqual(expected, self.target("GET", f"{WEB}/log?{lowest}"))

    def test_errors_of_the_node(self):
        """Plain-text errors of a node become a Status."""
        for status, expected, reason, message in (
            (400, 400, "BadRequest", "not yet"),
            (404, 404, "NotFound", "the server could not find the requested resource: not yet"),
            (500, 500, "InternalError", "Internal error occurred: not yet"),
            (503, 503, "", "not yet"),
        ):
            client = self.request_node("GET", f"{WEB}/log")
            self.answer(client, b"HTTP/1.1 %d X\r\nContent-Length: 8\r\n\r\nnot yet\n" % status)
            found, _, body = client.response()
            self.assert_error((found, json.loads(body)), expected, reason, message)

    def test_status_of_the_tunnel(self):
        """The message of a Status from the tunnel is passed on."""
        told = json.dumps({"kind": "Status", "message": "no agent is connected"}).encode()
        client = self.request_node("GET", f"{WEB}/log")
        head = b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n" % len(told)
        self.answer(client, head + told)
        _, _, body = client.response()
        self.assertEqual("no agent is connected", json.loads(body)["message"])

    def test_long_error(self):
        """Only the beginning of a long error is kept."""
        client = self.request_node("GET", f"{WEB}/log")
        head = b"HTTP/1.1 400 X\r\nContent-Length: 200000\r\n\r\n"
        self.answer(client, head + b"x" * 100_000)
        self.answer(client, b"y" * 100_000)
        _, _, body = client.response()
        self.assertEqual("x" * 50_000, json.loads(body)["message"])

    def test_no_node_yet(self):
        """The log of a pod without a node is empty, without an error."""
        self.create(pod("waiting", nodeSelector={"disk": "ssd"}))
        client = self.request_node("GET", f"{PODS_PATH}/waiting/log")
        self.assertEqual((204, b""), client.response()[::2])

    def test_missing_pod(self):
        """The log of an unknown pod is NotFound."""
        answer = self.call("GET", f"{PODS_PATH}/no/log")
        self.assert_error(answer, 404, "NotFound", 'pods "no" not found')


class ContainerTests(NodeProxyTestCase):
    """The choice of the container."""

    def setUp(self):
        """Create a pod with several containers."""
        super().setUp()
        init = [{"name": "first", "image": "x"}]
        self.create(pod("two", containers=TWO, initContainers=init))
        self.path = f"{PODS_PATH}/two"

    def test_named(self):
        """Any named container can be chosen, including init containers."""
        for name in ("side", "first"):
            target = self.target("GET", f"{self.path}/log?container={name}")
            self.assertEqual(f"/containerLogs/default/two/{name}", target)

    def test_not_named(self):
        """With several containers the client must name one."""
        for suffix in ("log", "attach?stdout=1", "exec?command=ls&stdout=1"):
            message = self.refused("GET", f"{self.path}/{suffix}", UPGRADE)
            self.assertEqual(
                "a container name must be specified for pod two, choose one of: [first main side]",
                message,
            )

    def test_unknown(self):
        """An unknown container is an error."""
        message = self.refused("GET", f"{self.path}/log?container=no")
        self.assertEqual("container no is not valid for pod two", message)


class StreamTests(NodeProxyTestCase):
    """Exec, attach and port-forward."""

    def test_targets(self):
        """Streams and commands are passed to the node in the kubelet's parameters."""
        for path, expected in (
            (
                "exec?command=echo&command=a%20b&stdin=true&stdout=1&stderr=true&tty=false",
                "/exec/default/web/main?input=1&output=1&error=1&command=echo&command=a+b",
            ),
            (
                "attach?stdout=true&tty=true&container=main",
                "/attach/default/web/main?output=1&tty=1",
            ),
            ("portforward", "/portForward/default/web"),
            ("portforward?ports=80,81", "/portForward/default/web?port=80%2C81"),
        ):
            for method in ("GET", "POST"):
                self.assertEqual(expected, self.target(method, f"{WEB}/{path}", UPGRADE))
                self.assertEqual([b"SPDY/3.1"], self.node_request.values(b"upgrade"))
                self.assertEqual(("edge-1", 10350), self.dialed[-1])

    def test_upgraded(self):
        """After the upgrade, bytes are relayed unchanged in both directions."""
        client = self.request_node("POST", f"{WEB}/portforward", fields=UPGRADE)
        self.answer(
            client,
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
            b"Upgrade: SPDY/3.1\r\n\r\nearly",
        )
        head, _, rest = client.received.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "))
        self.assertEqual(b"early", rest)
        client.connection.receive(b"\x80\x03")
        client.settle()
        self.assertTrue(self.origins[-1].sent.endswith(b"\x80\x03"))

    def test_refused_upgrade(self):
        """A refused upgrade is relayed unchanged."""
        client = self.request_node("POST", f"{WEB}/portforward", fields=UPGRADE)
        self.answer(client, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
        self.assertEqual((403, b"no"), client.response("POST")[::2])

    def test_no_upgrade(self):
        """A request without an upgrade is rejected with an explanation."""
        self.assertEqual("Upgrade request required", self.refused("POST", f"{WEB}/portforward"))

    def test_nothing_to_do(self):
        """A command and at least one stream are required."""
        status, answer = self.call("POST", f"{WEB}/exec?stdout=1")
        self.assertEqual((422, "command"), (status, answer["details"]["causes"][0]["field"]))
        for path in ("exec?command=ls", "attach"):
            message = self.refused("POST", f"{WEB}/{path}", UPGRADE)
            self.assertEqual("you must specify at least 1 of stdin, stdout, stderr", message)

    def test_no_node_yet(self):
        """Streams to a pod without a node are rejected."""
        self.create(pod("waiting", nodeSelector={"disk": "ssd"}))
        for path in ("exec?command=ls&stdout=1", "attach?stdout=1", "portforward"):
            message = self.refused("POST", f"{PODS_PATH}/waiting/{path}", UPGRADE)
            self.assertEqual("pod waiting does not have a host assigned", message)

    def test_deleted_node(self):
        """If the node of a pod does not exist any more, the error names the node."""
        self.store.remove(NODES, None, "edge-1")
        answer = self.call("GET", f"{WEB}/log")
        self.assert_error(answer, 404, "NotFound", 'nodes "edge-1" not found')


class NodeTests(NodeProxyTestCase):
    """The node's proxy."""

    def test_targets(self):
        """Paths and queries are passed on unchanged, to the named port."""
        for path, expected, port in (
            ("edge-1/proxy/metrics", "/metrics", 10350),
            ("edge-1/proxy/a%20b/?c=d%20e&f", "/a%20b/?c=d%20e&f", 10350),
            ("edge-1/proxy", "/", 10350),
            ("edge-1:10350/proxy/", "/", 10350),
            ("https:edge-1:9100/proxy/metrics", "/metrics", 9100),
            ("https:edge-1:/proxy/metrics", "/metrics", 10350),
        ):
            self.assertEqual(expected, self.target("GET", f"/api/v1/nodes/{path}"), path)
            self.assertEqual(("edge-1", port), self.dialed[-1])
            self.assertEqual([b"edge-1:%d" % port], self.node_request.values(b"host"))

    def test_bodies(self):
        """All methods are relayed with their bodies."""
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            self.request_node(method, "/api/v1/nodes/edge-1/proxy/x", body=b"data")
            self.assertTrue(self.origins[-1].sent.startswith(method.encode() + b" /x "))
            self.assertTrue(self.origins[-1].sent.endswith(b"data"))

    def test_plain_http(self):
        """Plain HTTP to nodes is rejected with an explanation."""
        for name in ("edge-1:9100", "http:edge-1:9100", "http:edge-1:10350"):
            message = self.refused("GET", f"/api/v1/nodes/{name}/proxy/")
            self.assertIn("only HTTPS is proxied to nodes: write https:edge-1:", message)

    def test_nonsense(self):
        """Invalid node names are rejected."""
        for name in ("ftp:edge-1:1", "edge-1:x", "edge-1:70000", "edge-1:0", "a:b:c:d"):
            message = self.refused("GET", f"/api/v1/nodes/{name}/proxy/")
            self.assertEqual(f'invalid node request "{name}"', message)

    def test_missing(self):
        """An unknown node is NotFound."""
        answer = self.call("GET", "/api/v1/nodes/edge-9/proxy/metrics")
        self.assert_error(answer, 404, "NotFound", 'nodes "edge-9" not found')

    def test_usual_port(self):
        """The default port of a kubelet is 10250."""
        self.store.create(NODES, None, {"metadata": {"name": "edge-2"}})
        self.target("GET", "/api/v1/nodes/edge-2/proxy/")
        self.assertEqual(("edge-2", 10250), self.dialed[-1])


class UnreachableTests(NodeProxyTestCase):
    """Unreachable nodes."""

    def connect_node(self, acquired):
        """Fail."""
        acquired.errback(Failure(ConnectionRefusedError()))

    def test_unreachable_node(self):
        """The error names the unreachable node and the reason."""
        fields = ["Accept: application/json"]
        client = self.request_node("GET", f"{WEB}/log", fields=fields)
        status, _, body = client.response()
        answer = json.loads(body)
        self.assertEqual((500, "InternalError"), (status, answer["reason"]))
        self.assertIn(
            "error dialing backend: edge-1:10350: Connection was refused", answer["message"]
        )
