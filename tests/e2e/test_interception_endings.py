"""Requests that end early: by the client, by a timeout, or by a stop."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from functools import partial

from twisted.internet import reactor
from twisted.internet.error import ConnectError
from twisted.internet.error import ConnectionRefusedError as TwistedConnectionRefused
from twisted.internet.interfaces import IPullProducer
from zope.interface import implementer

from tests.black_hole import BlackHole
from tests.e2e.clients import Incomplete, Peer, RequestClient
from tests.e2e.http_clients import ChunkedUpload, HttpClient
from tests.e2e.interception import IN_FLIGHT, Frontend, InterceptionTestCase
from tests.e2e.kubelets import (
    HELLO,
    Request,
    chunk,
    hello,
    response_head,
    routes,
)
from tests.e2e.programs import MEBIBYTE, UNLIMITED_DRAIN
from tests.e2e.stopwatch import Stopwatch
from tests.e2e.test_interception import together

RESPONSE_TIMEOUT = 4.0
"""--response-timeout of the tests where a kubelet never answers (seconds)."""

HEAD_TIMEOUT = 10.0
"""Seconds that a caller has for its head, and for a TLS handshake before it."""

DIAL_TIMEOUT = 15.0
"""Seconds for a dial, and for a TLS handshake with a kubelet."""

HUGE = 64 * MEBIBYTE
"""The size of a body that is larger than all buffers."""

QUICK = ("--response-timeout", str(RESPONSE_TIMEOUT))

CHUNKED = [(b"Transfer-Encoding", b"chunked")]


class LostNodeTests(InterceptionTestCase):
    """A node that disconnects and reconnects."""

    async def test_requests_end_with_their_node_and_work_after_its_return(self) -> None:
        """A started response is aborted, other requests get 503; afterwards all work again."""

        async def never(request: Request) -> None:
            await request.ended()

        async def follow(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED) + chunk(b"line\n"))

        tunnel, frontends = await self.start_with_frontends(
            routes(never=never, follow=follow, hello=hello), drain=10
        )
        begun, waiting = [], []
        for door in frontends:
            # An idle connection to the kubelet, too: it ends with the session.
            self.assertEqual((await door.get("/hello")).body, HELLO)
            begun.append((await door.client()).ask("/follow?follow=true"))
            # So this request uses the idle connection: a request that waits on a reused connection
            # is retried when that ends, because the node may have returned.
            await self.within(5, begun[-1].begun(), "the answer begins")
            waiting.append((await door.client()).ask("/never"))
            await self.eventually(
                lambda d=door: d.kubelet.seen(b"/never"), "the other request has come"
            )
        tunnel.agent.kill()
        for door in frontends:
            got = await self.within(10, door.get("/hello"), "a request of a lost node is refused")
            self.assertEqual(got.status, 503, got.text)
            self.assertIn("has not reconnected yet", got.text)
        # Requests wait because the node may return; its restart ends them.
        tunnel.agent.start()
        await tunnel.agent.ready()
        for answer in begun:
            with self.assertRaises(Incomplete):
                await self.within(5, answer.whole(), "what has begun breaks off")
        for answer in waiting:
            got = await self.within(5, answer.whole(), "what has not begun is answered")
            self.assertIn(got.status, (502, 503), got.text)
            self.assertIn("edge-1", got.text)
        for door in frontends:
            self.assertEqual((await door.get("/hello")).body, HELLO)
        # Idle connections to kubelets do not delay an agent that is to stop.
        await tunnel.agent.stop(3)


class LeavingTests(InterceptionTestCase):
    """A caller's disconnection reaches the kubelet at once."""

    async def test_a_caller_that_leaves_cancels_its_request(self) -> None:
        """Before the response, during it, and during an upload: the kubelet's connection is
        closed.
        """

        async def never(request: Request) -> None:
            await request.ended()

        async def follow(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED) + chunk(b"line\n"))

        tunnel, frontends = await self.start_with_frontends(routes(never=never, follow=follow))
        before = self.descriptors_of(tunnel)
        for door in frontends:
            for target in ("/never", "/follow?follow=true"):
                named = f"{door.name}: {target}"
                client = await door.client()
                answer = client.ask(target)
                if target != "/never":
                    await self.within(5, answer.begun(), named)
                await self.eventually(lambda d=door: d.kubelet.open, f"{named}: it has come")
                (connection,) = door.kubelet.open
                await self.eventually(lambda c=connection: c.targets, f"{named}: it has come")
                self.assertEqual(await tunnel.server.metric(IN_FLIGHT), 1, named)
                if door.secure:
                    client.transport.loseConnection()
                else:
                    client.drop()
                await self.within(2, connection.when_lost(), f"{named}: the kubelet is told")
            client = await door.client()
            client.send_head("/never", "POST", CHUNKED, chunk(b"begun"))
            await self.eventually(
                lambda d=door: d.kubelet.requests[-1].size == 5, "a part of the body has come"
            )
            client.drop()
            request = door.kubelet.requests[-1]
            await self.within(2, request.connection.when_lost(), "the kubelet is told")
            self.assertFalse(request.complete, f"{door.name}: the body must not look complete")
        await self.leave_during_a_dial(frontends[0])
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def leave_during_a_dial(self, door: Frontend) -> None:
        """Request a black hole and disconnect; the dial is cancelled, as the descriptors show."""
        with closing(BlackHole()) as hole:
            client = await door.client(f"edge-1:{hole.port}")
            client.ask("/")
            await self.eventually(lambda: hole.callers > 0, "the agent dials")
            client.transport.loseConnection()
            await self.eventually(lambda: hole.callers == 0, "the dial is given up", 3)

    async def test_a_stalled_side_pauses_the_other(self) -> None:
        """If one side does not read, the other side is paused, and others are not affected."""
        endless: dict[bool, Endless] = {}

        async def deaf(request: Request) -> None:
            request.connection.transport.pauseProducing()
            await request.ended()

        async def talk(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED))
            endless[request.connection.is_secure] = Endless(request.connection)

        async def stall(door: Frontend) -> None:
            client = await door.client()
            await self.within(5, client.ask("/talk").begun(), "the body begins")
            client.transport.pauseProducing()
            source = endless[door.secure]
            last = await self.until_stalled(lambda: source.sent)
            self.assertEqual((await door.get("/hello")).body, HELLO)
            client.transport.resumeProducing()
            await self.eventually(lambda: source.sent > 2 * last, "it goes on", 5)
            client.drop()

        async def stalled(door: Frontend) -> None:
            client = await door.client()
            client.send_head("/deaf", "POST", CHUNKED)
            upload = ChunkedUpload(client.transport, 8 * HUGE)
            await self.eventually(lambda: door.kubelet.seen(b"/deaf"), "it has come")
            last = await self.until_stalled(lambda: upload.payload.sent)
            self.assertEqual((await door.get("/hello")).body, HELLO)
            door.kubelet.seen(b"/deaf")[0].connection.transport.resumeProducing()
            await self.eventually(lambda: upload.payload.sent > 2 * last, "it goes on", 5)
            client.drop()

        tunnel, frontends = await self.start_with_frontends(
            routes(talk=talk, deaf=deaf, hello=hello)
        )
        before = self.descriptors_of(tunnel)
        await together(*(which(door) for which in (stall, stalled) for door in frontends))
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def until_stalled(self, sent) -> int:
        """Wait until ``sent()``, in bytes, does not grow any more; it must not grow far."""
        last = -1
        while sent() != last:
            last = sent()
            self.assertLess(last, 2 * HUGE, "nobody is stopped")
            await self.pause(0.4)
        return last


@implementer(IPullProducer)
class Endless:
    """Writes chunks to a kubelet's connection whenever it can; ``sent`` is in bytes."""

    def __init__(self, connection: Peer) -> None:
        self.sent = 0
        self._transport = connection.transport
        self._text = chunk(bytes(256 * 1024))
        self._transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        """Write one."""
        self.sent += len(self._text)
        self._transport.write(self._text)

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost."""


class DeadlineTests(InterceptionTestCase):
    """All waits have timeouts; all are tested concurrently."""

    async def test_slow_callers_and_silent_targets(self) -> None:
        """Slow heads and handshakes are closed after 10 s; black holes give 504 after 15 s.

        A kubelet that does not respond gives 504 after --response-timeout, and its connection is
        closed; follows and watches may wait longer.
        """

        async def never(request: Request) -> None:
            await request.ended()

        async def late(request: Request) -> None:
            await request.ended()
            reactor.callLater(RESPONSE_TIMEOUT + 1, request.answer)

        script = routes(never=never, late=late, hello=hello)
        tunnel, frontends = await self.start_with_frontends(script, server_extra=QUICK)
        secure, plain = frontends
        before = self.descriptors_of(tunnel)
        silent = self.listen(RequestClient)
        silent.secure = True
        with socket.socket() as refused, closing(BlackHole()) as hole:
            refused.bind(("127.0.0.1", 0))
            refusing, holding = refused.getsockname()[1], hole.port
            waiting = [
                self.answered(door, port, status, seconds)
                for door in frontends
                for port, status, seconds in (
                    (refusing, 502, 2),
                    (holding, 504, DIAL_TIMEOUT + 2),
                )
            ]
            waiting.append(self.answered(secure, silent.port, 504, DIAL_TIMEOUT + 2))
            half_hello = RequestClient(bytes.fromhex("16030102000100"))
            head = b"GET / HTTP/1.1\r\nHost: edge-1:1\r\nX-Slow: "
            waiting += [
                self.cut_off("silence on 10263", await self.dial(secure.port, RequestClient())),
                self.cut_off("half a ClientHello", await self.dial(secure.port, half_hello)),
                self.cut_off("silence on 10264", await plain.raw(b"")),
                self.cut_off("silence over TLS", await secure.raw(b"")),
                self.cut_off("a dripping head on 10263", await secure.raw(head), b"x"),
                self.cut_off("a dripping head on 10264", await plain.raw(head), b"x"),
            ]
            for door in frontends:
                waiting += [self.times_out(door, method) for method in ("GET", "POST")]
                waiting += [self.waits(door, f"/late?{how}") for how in ("follow=true", "watch=1")]
            finished = together(*waiting)
            # Meanwhile others are served as ever.
            for door in frontends:
                watch = Stopwatch(reactor)
                self.assertEqual((await door.get("/hello")).body, HELLO)
                self.assertLess(watch.seconds(), 2)
            await self.within(DIAL_TIMEOUT + 6, finished, "everything is answered or closed")
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def answered(self, door: Frontend, port: int, status: int, seconds: float) -> None:
        """Require a status within that many seconds for a destination that is not a kubelet."""
        named = f"{door.name} to port {port}"
        answer = await self.within(seconds, door.get("/", f"edge-1:{port}"), named)
        self.assertEqual(answer.status, status, f"{named}: {answer.text}")
        self.assertIn(str(port), answer.text, named)

    async def times_out(self, door: Frontend, method: str) -> None:
        """Require a 504 in time, and that the kubelet's connection is closed."""
        named = f"{door.name}: {method}"
        client = await door.client()
        began, watch = reactor.seconds(), Stopwatch(reactor)
        target = f"/never?{method}"
        body = b"text" if method == "POST" else None
        answer = await self.within(
            RESPONSE_TIMEOUT + 3, client.ask(target, method, body=body).whole(), named
        )
        self.assertEqual(answer.status, 504, f"{named}: {answer.text}")
        self.assertIn("edge-1", answer.text, named)
        self.assertGreaterEqual(reactor.seconds() - began, RESPONSE_TIMEOUT - 0.1, named)
        self.assertLess(watch.seconds(), RESPONSE_TIMEOUT + 1.5, named)
        (request,) = door.kubelet.seen(target.encode())
        await self.within(2, request.connection.when_lost(), f"{named}: the kubelet is told")
        client.drop()

    async def waits(self, door: Frontend, target: str) -> None:
        """Require a response that arrives after --response-timeout."""
        answer = await self.within(RESPONSE_TIMEOUT + 6, door.get(target), f"{door.name}: {target}")
        self.assertEqual(answer.body, HELLO, f"{door.name}: {target}")

    async def cut_off(self, what: str, peer: RequestClient, drip: bytes = b"") -> None:
        """Require that a connection is closed, with a 408 if part of a head was received."""
        watch = Stopwatch(reactor)
        while not peer.read_ended and peer.lost_reason is None:
            self.assertLess(watch.seconds(), HEAD_TIMEOUT + 3, what)
            if drip:
                peer.transport.write(drip)
            await self.pause(0.5)
        if drip:
            self.assertIn(b" 408 ", peer.answer[:20], what)
        peer.drop()


class DrainTests(InterceptionTestCase):
    """A stopping server."""

    async def test_requests_end_within_the_drain_timeout(self) -> None:
        """A download finishes, an idle connection is closed, new ones are refused, then it
        exits.
        """
        requests: list[Request] = []

        async def slow(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED) + chunk(b"first"))
            requests.append(request)

        script = routes(slow=slow, hello=hello)
        tunnel, frontends = await self.start_with_frontends(script, drain=UNLIMITED_DRAIN)
        clients: list[HttpClient] = []
        answers = []
        for door in frontends:
            idle = await door.client()
            await idle.ask("/hello").whole()
            clients.append(idle)
            answers.append((await door.client()).ask("/slow"))
            await answers[-1].begun()
        tunnel.server.signal(signal.SIGTERM)
        for idle in clients:
            await self.within(3, idle.when_ended(), "the idle connection is closed")
        for door in frontends:
            # The port is closed a turn of the reactor after the connections.
            await self.eventually(partial(self.refuses, door.port), "new ones are refused", 3)
        await self.pause(0.5)
        self.assertTrue(tunnel.server.running)
        for request in requests:
            request.send(chunk(b"last") + chunk(b""))
        for answer in answers:
            got = await self.within(5, answer.whole(), "the download is complete")
            self.assertEqual(got.body, b"firstlast")
        # Nothing is left to wait for.
        self.assertIn(await tunnel.server.ended(3), (0, -signal.SIGTERM))

    async def refuses(self, port: int) -> bool:
        """Whether ``port`` refuses connections."""
        try:
            await self.dial(port, RequestClient())
        except TwistedConnectionRefused:
            return True
        except ConnectError:
            # It was made, and then reset with the port: the port has just been closed.
            return False
        return False

    async def test_endless_requests_are_aborted(self) -> None:
        """An endless follow delays the exit by --drain-timeout only."""

        async def follow(request: Request) -> None:
            await request.ended()
            request.send(response_head(200, CHUNKED) + chunk(b"line\n"))

        tunnel, frontends = await self.start_with_frontends(routes(follow=follow), drain=1)
        answers = [(await door.client()).ask("/follow?follow=true") for door in frontends]
        for answer in answers:
            await answer.begun()
        began = reactor.seconds()
        tunnel.server.signal(signal.SIGTERM)
        for answer in answers:
            with self.assertRaises(Incomplete):
                await self.within(8, answer.whole(), "it is cut off")
        await tunnel.server.ended(8)
        self.assertGreater(reactor.seconds() - began, 0.8)
