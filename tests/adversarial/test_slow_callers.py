"""Slow-loris: who never gets to the point on the ports for callers loses the connection in time.

The agents' port and the CONNECT front end are in tests.e2e.test_hostile, the pass-through in
tests.server.passthrough.test_listener, the meta ports in tests.ops.test_http_site.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.fakes import Recorder
from tests.server.interception.world import World
from yurttunnel.http.request_body import read_body
from yurttunnel.server.interception.listeners import SETTINGS

HEAD = b"POST /exec/ns/pod/c HTTP/1.1\r\nHost: edge-1:10250\r\nContent-Length: 1000\r\n"
STEP = 0.5
"""Seconds between two bytes of a slow caller."""


class SlowTests(World):
    """10263 and 10264, in memory."""

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
        """A body of which nothing comes ends the request; the kubelet is not held by it."""
        # The body is read and comes to nothing, there as well.
        self.kubelet.answer = lambda exchange: read_body(exchange, 10_000).addErrback(str)
        for caller in self.doors():
            caller.transport.write(HEAD + b"\r\nbegin")
            self.settle()
            # Whether any byte has come is looked at once in that time, so it may be twice that.
            most = 2 * SETTINGS.body_timeout + SETTINGS.linger
            self.assertLessEqual(self.seconds_until_lost(caller, b"", 2 * most), most)
            self.pass_time(SETTINGS.linger)
            self.assertEqual(0, self.pooled()["in_use"])

    def test_others_are_served_meanwhile(self) -> None:
        """A hundred slow callers take nothing from who asks properly."""
        for number in range(50):
            for caller in self.doors():
                caller.transport.write(HEAD[: number % len(HEAD)])
        caller = self.dial()
        self.ask(caller)
        self.answered(caller, 200)
