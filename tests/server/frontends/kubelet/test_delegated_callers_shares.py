"""The shares of kube-apiserver's clients in a node's connections."""

from __future__ import annotations

from tests.server.frontends.kubelet.delegated_callers import EDGE_1, UPGRADE, DelegatedCallersWorld
from tests.tunnel.memory import User
from yurttunnel.http.request_body import read_body


class ShareTests(DelegatedCallersWorld):
    """No client of kube-apiserver blocks a node for its other clients, or for other callers."""

    run_target = "/run/default/here/web?cmd=sleep+3600"
    mallory, joan = "192.0.2.66", "192.0.2.50"

    def setUp(self):
        """Redirect kube-apiserver's connections here, and start a kubelet."""
        super().setUp()
        self.redirect(EDGE_1[0])
        self.kubelet.answer = self.answer

    def answer(self, exchange):
        """Respond to neither endless nor incomplete requests."""
        target = exchange.head.target
        if exchange.has_body:
            read_body(exchange, 1 << 20).addCallbacks(
                lambda body: exchange.respond(200, [], b"%d bytes\n" % len(body)), lambda _: None
            )
        elif target.startswith(b"/exec"):
            exchange.switch(101, b"", [(b"Connection", b"Upgrade"), (b"Upgrade", b"x")], User())
        elif not target.startswith(b"/run"):
            exchange.respond(200, [], b"metric 1\n")

    def client_fields(self, address, *forwarded):
        """Return the fields by which kube-apiserver identifies its client."""
        return {"X_Forwarded_For": ", ".join([*forwarded, address])}

    def flood(self, *spelled, count=20, **fields):
        """Send requests without a response for one client, which may pretend to be others."""
        for number in range(count):
            forwarded = [each.format(number) for each in spelled]
            client = self.client_fields(self.mallory, *forwarded)
            self.send_request(self.apiserver(), self.run_target, "POST", **client, **fields)

    def test_answers_that_never_begin(self):
        """A client that waits for them, whatever it pretends, has half; others are served."""
        self.flood()
        self.flood("198.51.100.{}")
        self.assertEqual(16, self.pooled()["in_use"])
        others = self.client_fields(self.joan)
        for _ in range(3):
            caller = self.apiserver()
            self.send_request(caller, **others)
            self.answered(caller, 200, "metric 1\n")
            execing = self.apiserver()
            self.send_request(execing, "/exec/default/here/web?command=sh", "POST", **UPGRADE)
            self.answered(execing, 101)
            self.pass_time(60, 5)
            self.flood(count=16)
        self.api.rules.add(("jane", "get", "metrics", "edge-1"))
        own = self.jane()
        self.send_request(own)
        self.answered(own, 200, "metric 1\n")

    def test_upgrades_have_priority(self):
        """An exec starts while others, including unknown clients, wait for responses."""
        for number in range(5):
            self.mallory = f"192.0.2.{100 + number}"
            self.flood()
        for _ in range(20):
            self.send_request(self.apiserver(), self.run_target, "POST")
        self.assertEqual(32, self.pooled()["in_use"])
        for fields in (UPGRADE, {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}):
            caller = self.apiserver()
            self.send_request(caller, "/exec/default/here/web?command=sh", "POST", **fields)
            self.answered(caller, 101)

    def test_dripping_bodies(self):
        """600 bytes a second, or one in 10 s, block nobody else's upload."""
        begun = []
        for seconds, size in ((10, 6000), (10, 1)):
            for _ in range(20):
                caller = self.apiserver()
                fields = self.client_fields(self.mallory)
                self.send_request(caller, "/x", "POST", b"a", Content_Length="100000000", **fields)
                begun.append((caller, size))
            self.pass_time(2)
            for _ in range(12):
                for caller, size in begun:
                    if not caller.ended_with:
                        caller.transport.write(b"a" * size)
                self.pass_time(seconds, 5)
                uploading = self.apiserver()
                fields = self.client_fields(self.joan)
                body = b"a" * 50_000
                self.send_request(uploading, "/x", "POST", body, Content_Length="50000", **fields)
                self.answered(uploading, 200, "50000 bytes\n")

    def test_only_kube_apiserver_is_believed(self):
        """A caller that acts for itself, or is redirected to the port without authentication, is
        counted as itself.
        """
        for verb in ("proxy", "metrics"):
            self.api.rules.add(("jane", "create", verb, "edge-1"))
        for number in range(20):
            client = self.client_fields(f"198.51.100.{number}")
            self.send_request(self.jane(), self.run_target, "POST", **client)
        self.assertEqual(16, self.pooled()["in_use"])
        self.serve_kubelet(None)
        self.redirect(EDGE_1[0], 10255)
        for number in range(20):
            client = self.client_fields(f"198.51.100.{number}")
            self.send_request(self.dial_insecurely(), self.run_target, "POST", **client)
        self.assertEqual(32, self.pooled()["in_use"])
