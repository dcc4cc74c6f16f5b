"""Slow-loris: who never gets to the point on the ports for callers loses the connection in time.

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
"""Seconds between two bytes of a slow caller."""


class SlowTests(World):
    """10263 and 10264, in memory."""

    settings = replace(SETTINGS, max_long_heads=600_000)

    def seconds_until_lost(self, caller: Recorder, drip: bytes, most: float) -> float:
        """Send ``drip`` again and again; give when the connection ends, at most after ``most``."""
        begun = self.clock.seconds()
        while not caller.ended_with and self.clock.seconds() - begun < most:
            if drip:
                caller.transport.write(drip)
            self.pass_time(STEP, STEP)
        self.assertEqual(1, len(caller.ended_with), "it is still connected")
        return self.clock.seconds() - begun

    def doors(self) -> Iterator[Recorder]:
        """Connect a caller to one port after the other."""
        yield self.dial()
        yield self.dial_insecurely()

    def test_silence_instead_of_a_handshake(self) -> None:
        """On 10263 the handshake counts as the beginning of the head."""
        caller = Recorder()
        self.link(caller, self.secured())
        self.assertLessEqual(
            self.seconds_until_lost(caller, b"", 60), SETTINGS.head_timeout + SETTINGS.linger
        )

    def test_half_a_client_hello(self) -> None:
        """Nor is there more time for a handshake that comes byte by byte."""
        caller = Recorder()
        self.link(caller, self.secured())
        caller.transport.write(bytes.fromhex("16030102000100"))
        self.assertLessEqual(
            self.seconds_until_lost(caller, b"\x00", 60), SETTINGS.head_timeout + SETTINGS.linger
        )

    def test_silence(self) -> None:
        """Who is connected and asks nothing."""
        for caller in self.doors():
            self.assertLessEqual(
                self.seconds_until_lost(caller, b"", 60), SETTINGS.head_timeout + SETTINGS.linger
            )

    def test_a_dripping_head(self) -> None:
        """Bytes of a head that never ends buy no time."""
        for caller in self.doors():
            caller.transport.write(HEAD + b"X-Slow: ")
            seconds = self.seconds_until_lost(caller, b"x", 60)
            self.assertLessEqual(seconds, SETTINGS.head_timeout + SETTINGS.linger)
            self.assertTrue(caller.received.startswith(b"HTTP/1.1 408 "), caller.received)
        self.assertEqual([], self.connected)

    def test_a_body_that_does_not_come(self) -> None:
        """A body that comes not at all or byte by byte ends the request and holds no kubelet."""
        # The body is read and comes to nothing, there as well.
        self.kubelet.answer = lambda exchange: read_body(exchange, 10_000).addErrback(str)
        for drip in (b"", b"x"):
            self.serve_kubelet(self.issuer.server("edge-1"))
            for caller in self.doors():
                caller.transport.write(HEAD + b"\r\nbegin")
                self.settle()
                most = SETTINGS.body_timeout + SETTINGS.linger + STEP
                self.assertLessEqual(self.seconds_until_lost(caller, drip, 2 * most), most)
                self.assertTrue(caller.received.startswith(b"HTTP/1.1 408 "), caller.received)
                self.pass_time(SETTINGS.linger)
                self.assertEqual(0, self.pooled()["in_use"])
                # 10264 speaks with kubelets without TLS.
                self.serve_kubelet(None)

    def test_bodies_that_do_not_come_shut_no_kubelet(self) -> None:
        """A hundred of them, from both ports and in all forms, leave a place for who asks."""
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
        self.ask(caller)
        self.answered(caller, 200)
        posting = self.dial_insecurely()
        self.ask(posting, method="POST", body=b"small")
        self.answered(posting, 200)

    def test_long_heads_that_do_not_end(self) -> None:
        """Of one address they take a half of what long heads may, and no other's place."""
        factories = (self.interception.secure, self.interception.insecure)
        for dial, factory in zip((self.dial, self.dial_insecurely), factories, strict=True):
            callers = [dial() for _ in range(8)]
            for caller in callers:
                caller.transport.write(HEAD + b"X-Slow: " + b"x" * 60_000)
                self.settle()
            refused = [caller for caller in callers if b" 503 " in caller.received]
            most = self.settings.max_long_heads
            self.assertGreaterEqual(len(refused), 2)
            self.assertLess(factory.long_heads.used, most // 2 + 70_000)
            self.assertIs(caller_key, factory.caller_of)
            factory.caller_of = lambda transport: "another"
            caller = dial()
            self.ask(caller, "/exec/ns/pod/c?command=" + "x" * 60_000)
            self.answered(caller, 200)
            # 10264 speaks with kubelets without TLS.
            self.serve_kubelet(None)
        self.pass_time(SETTINGS.head_timeout)
        self.assertEqual([0, 0], [factory.long_heads.used for factory in factories])

    def test_others_are_served_meanwhile(self) -> None:
        """A hundred slow callers take nothing from who asks properly."""
        for number in range(50):
            for caller in self.doors():
                caller.transport.write(HEAD[: number % len(HEAD)])
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 200)
