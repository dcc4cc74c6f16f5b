"""Slow-loris: a caller that does not complete its request in time loses the connection.

The agents' port and the CONNECT front end are in tests.e2e.test_crowds, the pass-through in
tests.server.frontends.passthrough.test_listener, the meta ports in tests.ops.test_http_site.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.fakes import Recorder
from tests.server.frontends.kubelet.world import World
from yurttunnel.http.pool import PoolSettings
from yurttunnel.http.request_body import read_body
from yurttunnel.server.frontends.calls import caller_key
from yurttunnel.server.frontends.kubelet.listeners import SETTINGS

HEAD = b"POST /exec/ns/pod/c HTTP/1.1\r\nHost: edge-1:10250\r\nContent-Length: 1000\r\n"
STEP = 0.5
"""The seconds between two bytes of a slow caller."""


class SlowTests(World):
    """10263 and 10264, in memory."""

    settings = replace(SETTINGS, max_long_heads=600_000)

    def seconds_until_lost(self, caller: Recorder, drip: bytes, limit: float) -> float:
        """Send ``drip`` repeatedly. Return the seconds until the connection ends."""
        begun = self.clock.seconds()
        while not caller.ended_with and self.clock.seconds() - begun < limit:
            if drip:
                caller.transport.write(drip)
            self.pass_time(STEP, STEP)
        self.assertEqual(1, len(caller.ended_with), "it is still connected")
        return self.clock.seconds() - begun

    def callers(self) -> Iterator[Recorder]:
        """Connect a caller to each port in turn."""
        yield self.dial()
        yield self.dial_insecurely()

    def test_silence_instead_of_a_handshake(self) -> None:
        """On 10263 the handshake counts towards the deadline of the head."""
        caller = Recorder()
        self.link(caller, self.secured())
        self.assertLessEqual(
            self.seconds_until_lost(caller, b"", 60), SETTINGS.head_timeout + SETTINGS.linger
        )

    def test_dripping_client_hello(self) -> None:
        """A handshake that arrives byte by byte gets no more time."""
        caller = Recorder()
        self.link(caller, self.secured())
        caller.transport.write(bytes.fromhex("16030102000100"))
        self.assertLessEqual(
            self.seconds_until_lost(caller, b"\x00", 60), SETTINGS.head_timeout + SETTINGS.linger
        )

    def test_silence(self) -> None:
        """A caller that sends nothing is disconnected."""
        for caller in self.callers():
            self.assertLessEqual(
                self.seconds_until_lost(caller, b"", 60), SETTINGS.head_timeout + SETTINGS.linger
            )

    def test_a_dripping_head(self) -> None:
        """Bytes of a head that never ends do not extend the deadline."""
        for caller in self.callers():
            caller.transport.write(HEAD + b"X-Slow: ")
            seconds = self.seconds_until_lost(caller, b"x", 60)
            self.assertLessEqual(seconds, SETTINGS.head_timeout + SETTINGS.linger)
            self.assertTrue(caller.received.startswith(b"HTTP/1.1 408 "), caller.received)
        self.assertEqual([], self.connected)

    def test_incomplete_body(self) -> None:
        """A body that does not arrive in time ends the request and occupies no kubelet."""
        # The kubelet reads the body, which fails there as well.
        self.kubelet.answer = lambda exchange: read_body(exchange, 10_000).addErrback(str)
        for drip in (b"", b"x"):
            self.serve_kubelet(self.issuer.server("edge-1"))
            for caller in self.callers():
                caller.transport.write(HEAD + b"\r\nbegin")
                self.settle()
                limit = SETTINGS.body_timeout + SETTINGS.linger + STEP
                self.assertLessEqual(self.seconds_until_lost(caller, drip, 2 * limit), limit)
                self.assertTrue(caller.received.startswith(b"HTTP/1.1 408 "), caller.received)
                self.pass_time(SETTINGS.linger)
                self.assertEqual(0, self.pooled()["in_use"])
                # 10264 connects to kubelets without TLS.
                self.serve_kubelet(None)

    def test_incomplete_bodies_do_not_block_a_kubelet(self) -> None:
        """A hundred incomplete bodies leave connections to the kubelet for other requests."""
        self.serve_kubelet(None)
        for begin in (
            HEAD + b"\r\nbegin",
            HEAD + b"Expect: 100-continue\r\n\r\n",
            HEAD.replace(b"/c ", b"/c?follow=true ") + b"Expect: 100-continue\r\n\r\n",
            HEAD.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked") + b"\r\n5\r\nbe",
            HEAD.replace(b"1000", b"1000000") + b"\r\n" + bytes(20_000),
        ):
            for _ in range(20):
                self.dial_insecurely().transport.write(begin)
        self.pass_time(2)
        self.assertLessEqual(self.pooled()["in_use"], PoolSettings().max_uploads_per_key)
        self.kubelet.answer = lambda exchange: exchange.respond(200, [], b"ok")
        caller = self.dial_insecurely()
        self.send_request(caller)
        self.answered(caller, 200)
        posting = self.dial_insecurely()
        self.send_request(posting, method="POST", body=b"small")
        self.answered(posting, 200)

    def test_long_heads_that_do_not_end(self) -> None:
        """The long heads of one address use at most half of their limit."""
        factories = (self.interception.secure, self.interception.insecure)
        for dial, factory in zip((self.dial, self.dial_insecurely), factories, strict=True):
            callers = [dial() for _ in range(8)]
            for caller in callers:
                caller.transport.write(HEAD + b"X-Slow: " + b"x" * 60_000)
                self.settle()
            refused = [caller for caller in callers if b" 503 " in caller.received]
            limit = self.settings.max_long_heads
            self.assertGreaterEqual(len(refused), 2)
            self.assertLess(factory.long_heads.used, limit // 2 + 70_000)
            self.assertIs(caller_key, factory.caller_of)
            factory.caller_of = lambda transport: "another"
            caller = dial()
            self.send_request(caller, "/exec/ns/pod/c?command=" + "x" * 60_000)
            self.answered(caller, 200)
            # 10264 connects to kubelets without TLS.
            self.serve_kubelet(None)
        self.pass_time(SETTINGS.head_timeout)
        self.assertEqual([0, 0], [factory.long_heads.used for factory in factories])

    def test_others_are_served_meanwhile(self) -> None:
        """A hundred slow callers do not delay a caller that sends a complete request."""
        for number in range(50):
            for caller in self.callers():
                caller.transport.write(HEAD[: number % len(HEAD)])
        caller = self.dial()
        self.send_request(caller)
        self.answered(caller, 200)
