"""Protocol negotiation in the request head, with the kubelet's errors."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from tests.yurtlab.streaming.support import (
    KEY,
    Forwarder,
    Session,
    command_node,
    forward_node,
    spdy_head,
    websocket_head,
)


class RefusalCase(SynchronousTestCase):
    """A request whose upgrade is rejected."""

    def refused(self, node, head, status, text):
        """Expect a rejection with a ``metav1.Status``, and return the response's fields."""
        answer = node.request(head)
        self.assertIn(f" {status} ", answer[0])
        body = json.loads(node.connection.sent)
        self.assertEqual(
            ("Status", "v1", "Failure", status),
            (body["kind"], body["apiVersion"], body["status"], body["code"]),
        )
        self.assertIn(text, body["message"])
        self.assertIn("Content-Type: application/json", answer)
        return answer


class CommandTests(RefusalCase):
    """Exec and attach."""

    def command_refused(self, head, status, text):
        """Expect a rejection, of which the session is notified."""
        session = Session()
        answer = self.refused(command_node(session), head, status, text)
        self.assertEqual(["lost"], session.events)
        return answer

    def test_no_upgrade(self):
        """A request without an upgrade, or with an unknown one, is rejected."""
        text = "unable to upgrade: missing upgrade headers in request"
        self.command_refused(["GET /exec HTTP/1.1"], 400, text)
        self.command_refused(["GET /exec HTTP/1.1", "Upgrade: SPDY/3.1"], 400, text)
        unknown = ["GET /exec HTTP/1.1", "Connection: Upgrade", "Upgrade: SPDY/4"]
        self.command_refused(unknown, 400, text)

    def test_upgrade_in_a_list(self):
        """The upgrade may be in a list, in any case."""
        session = Session()
        head = websocket_head("v5.channel.k8s.io")
        head[1:3] = ["Connection: keep-alive, upgrade", "Upgrade: foo, WebSocket"]
        self.assertIn(" 101 ", command_node(session).request(head)[0])

    def test_no_version(self):
        """SPDY requires the version of the streaming protocol."""
        self.command_refused(spdy_head(), 400, "X-Stream-Protocol-Version is required")

    def test_no_common_version(self):
        """The rejection of unknown versions lists the supported ones."""
        head = spdy_head("v9.channel.k8s.io", "v8.channel.k8s.io")
        text = "client supports v9.channel.k8s.io, v8.channel.k8s.io, server accepts v4"
        answer = self.command_refused(head, 403, text)
        field = "X-Accepted-Stream-Protocol-Versions: "
        accepted = [line.removeprefix(field) for line in answer if line.startswith(field)]
        names = ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"]
        self.assertEqual(names, accepted)

    def test_client_chooses(self):
        """The client's first supported version is chosen, also from a list."""
        for versions in (("v9.k8s.io", "v3.channel.k8s.io", "v4.channel.k8s.io"),):
            for head in (spdy_head(*versions), spdy_head(", ".join(versions))):
                answer = command_node(Session()).request(head)
                self.assertIn("X-Stream-Protocol-Version: v3.channel.k8s.io", answer)

    def test_body(self):
        """A request with a pending body is rejected, and no timer is left."""
        session = Session()
        node = command_node(session)
        head = spdy_head("v4.channel.k8s.io")
        head[head.index("Content-Length: 0")] = "Content-Length: 5"
        self.refused(node, head, 400, "unable to upgrade")
        self.assertEqual(["lost"], session.events)
        self.assertEqual([], node.clock.getDelayedCalls())

    def test_ended_exchange(self):
        """If the client has disconnected before, the session is notified, and no timer is left."""
        session = Session()
        node = command_node(session)
        serve = node._serve
        node._serve = lambda clock, exchange: (exchange.abort(), serve(clock, exchange))
        node.connection.receive(
            "\r\n".join([*spdy_head("v4.channel.k8s.io"), "Host: a", "", ""]).encode()
        )
        self.assertEqual(["lost"], session.events)
        self.assertEqual([], node.clock.getDelayedCalls())


class WebSocketTests(RefusalCase):
    """The handshake of RFC 6455 section 4.2."""

    def changed(self, line, replacement):
        """Return a head with one line replaced or removed."""
        head = websocket_head("v5.channel.k8s.io")
        index = next(index for index, text in enumerate(head) if text.startswith(line))
        head[index : index + 1] = replacement
        return head

    def expect(self, head, status, text):
        """Expect a rejection."""
        return self.refused(command_node(Session()), head, status, text)

    def test_method(self):
        """The method must be GET."""
        head = self.changed("GET", ["POST /exec HTTP/1.1", "Content-Length: 0"])
        self.expect(head, 400, "requires GET")

    def test_version(self):
        """The version must be 13; the rejection of others names it."""
        for replacement in ([], ["Sec-WebSocket-Version: 8"]):
            head = self.changed("Sec-WebSocket-Version", replacement)
            self.assertIn("Sec-WebSocket-Version: 13", self.expect(head, 400, "version 13"))

    def test_key(self):
        """There must be one key, of 16 bytes in base64."""
        for keys in ([], ["short"], ["AAAA"], ["!" * 24], [KEY, KEY]):
            lines = [f"Sec-WebSocket-Key: {key}" for key in keys]
            self.expect(self.changed("Sec-WebSocket-Key", lines), 400, "Sec-WebSocket-Key")

    def test_protocol(self):
        """A client without a supported protocol is rejected; kubectl then tries SPDY."""
        text = "requested protocol(s) are not supported: v9.channel.k8s.io; supports v5"
        self.expect(websocket_head("v9.channel.k8s.io"), 403, text)


class ForwardTests(RefusalCase):
    """Port-forward."""

    def forward_refused(self, head, status, text):
        """Expect a rejection without a call of the forwarder."""
        forwarder = Forwarder()
        answer = self.refused(forward_node(forwarder), head, status, text)
        self.assertEqual([], forwarder.requests)
        return answer

    def test_no_upgrade(self):
        """A request without an upgrade is rejected."""
        text = "unable to upgrade: missing upgrade headers in request"
        self.forward_refused(["POST / HTTP/1.1", "Content-Length: 0"], 400, text)

    def test_versions(self):
        """Over SPDY there is one supported protocol."""
        self.forward_refused(spdy_head("v4.channel.k8s.io"), 403, "portforward.k8s.io")
        self.forward_refused(spdy_head(), 400, "required")
        answer = forward_node(Forwarder()).request(spdy_head("portforward.k8s.io"))
        self.assertIn("X-Stream-Protocol-Version: portforward.k8s.io", answer)

    def test_ports(self):
        """A WebSocket without SPDY requires at least one valid port."""
        for query, text in (
            ("", "is required"),
            ("?port=", "is required"),
            ("?port=80,", "unable to parse"),
            ("?port=http", "unable to parse"),
            ("?port=-1", "unable to parse"),
            ("?port=%C2%B2", "unable to parse"),
            ("?port=0", "must be 1 to 65535"),
            ("?port=65536", "must be 1 to 65535"),
            ("?port=" + ",".join(["1"] * 128), "at most 127"),
        ):
            head = websocket_head("v4.channel.k8s.io", f"/portforward{query}")
            self.forward_refused(head, 400, text)

    def test_protocol(self):
        """A client without a supported protocol is rejected."""
        self.forward_refused(websocket_head("v5.channel.k8s.io", "/?port=1"), 403, "supports SPDY")
