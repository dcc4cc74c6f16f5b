"""Kubelets that misbehave, and kubelets that are not trusted."""

from __future__ import annotations

import os

from twisted.internet.defer import Deferred

from benchmarks.ports import free_ports
from tests.e2e.certificates import authority_of, foreign_authority
from tests.e2e.clients import Echo, RequestClient
from tests.e2e.http_clients import ChunkedUpload, HttpClient
from tests.e2e.interception import Frontend, InterceptionTestCase, write_identity
from tests.e2e.kubelets import (
    HELLO,
    Request,
    chunk,
    hello,
    response,
    response_head,
    routes,
    serving_identity,
)
from tests.e2e.programs import MEBIBYTE
from tests.e2e.test_interception import together
from tests.http.kube_clients import upgrade_failure
from yurttunnel.http.relay import BODY_START_TIMEOUT

HUGE = 64 * MEBIBYTE
"""The size of a body that is larger than all buffers."""

CHUNKED = [(b"Transfer-Encoding", b"chunked")]


class FaultyKubeletTests(InterceptionTestCase):
    """Each fault of a kubelet gives its status, in time, and affects no other request."""

    async def test_a_kubelet_that_answers_before_the_body_ends(self) -> None:
        """The response reaches the client during its upload, whether the rest is read or
        dropped.
        """

        async def refuse_and_read(request: Request) -> None:
            request.answer(413, b"too much\n", [(b"Connection", b"close")])
            await request.ended()

        async def refuse_and_close(request: Request) -> None:
            request.answer(413, b"too much\n", [(b"Connection", b"close")])
            request.finish_and_close()

        async def refuse_and_stall(request: Request) -> None:
            request.answer(413, b"too much\n", [(b"Connection", b"close")])
            request.connection.transport.pauseProducing()

        tunnel, frontends = await self.start_with_frontends(
            routes(
                refuse_and_read=refuse_and_read,
                refuse_and_close=refuse_and_close,
                refuse_and_stall=refuse_and_stall,
                hello=hello,
            ),
        )
        before = self.descriptors_of(tunnel)

        async def refused(door: Frontend, target: str) -> None:
            named = f"{door.name}: {target}"
            client = await door.client()
            client.send_head(target, "POST", CHUNKED)
            upload = ChunkedUpload(client.transport, HUGE)
            answer = await self.within(5, client.expect(b"POST").whole(), named)
            self.assertEqual((answer.status, answer.body), (413, b"too much\n"), named)
            self.assertLess(upload.payload.sent, HUGE, f"{named}: not the whole body was taken")
            client.drop()

        await together(
            *(
                refused(door, target)
                for door in frontends
                for target in ("/refuse-and-read", "/refuse-and-close", "/refuse-and-stall")
            )
        )
        await self.still_answers(frontends)
        for door in frontends:
            for connection in door.kubelet.open:
                connection.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_a_kubelet_that_breaks_off_or_talks_nonsense(self) -> None:
        """Before the response's head the caller gets 502 with a reason, later a truncated body."""
        before_head = {
            "closes": b"", "closes_within_head": b"HTTP/1.1 200 OK\r\nContent-",
            "nonsense": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            "two_lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "length_and_chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "bare_lf": b"HTTP/1.1 200 OK\nContent-Length: 1\n\na",
            "folded": b"HTTP/1.1 200 OK\r\nX-A: 1\r\n b\r\nContent-Length: 0\r\n\r\n",
            "unasked_switch": response_head(101, [(b"Upgrade", b"x"), (b"Connection", b"upgrade")]),
        }  # fmt: skip
        within_body = {
            "short_length": response_head(200, [(b"Content-Length", b"100")]) + b"x" * 99,
            "no_last_chunk": response_head(200, CHUNKED) + chunk(b"x" * 99),
            "within_chunk": response_head(200, CHUNKED) + b"64\r\n" + b"x" * 99,
            "bad_chunk": response_head(200, CHUNKED) + chunk(b"x" * 99),
        }
        then = {"bad_chunk": b"0x1\r\na\r\n0\r\n\r\n"}

        # Who is to get the beginning of a body before it breaks off.
        clients: list[RequestClient] = []

        def it_has_come() -> bool:
            return all(client.answer.count(b"x") >= 99 for client in clients)

        def is_logged(text: bytes, later: bytes):
            async def broken(request: Request) -> None:
                await request.ended()
                request.send(text)
                await self.eventually(it_has_come, "the beginning of the body reaches the client")
                request.send(later)
                request.finish_and_close()

            return broken

        scripts = {
            name: is_logged(text, then.get(name, b""))
            for name, text in (before_head | within_body).items()
        }
        tunnel, frontends = await self.start_with_frontends(routes(hello=hello, **scripts))
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            for name in before_head:
                for method in ("GET", "POST"):
                    named = f"{door.name}: {method} {name}"
                    answering = client.ask(
                        f"/{name}", method, body=b"" if method == "POST" else None
                    )
                    answer = await self.within(5, answering.whole(), named)
                    self.assertEqual(answer.status, 502, f"{named}: {answer.text}")
                    self.assertIn("edge-1", answer.text, named)
                    self.assertEqual(len(answer.text.strip().splitlines()), 1, named)
            # A request that is not safe is never sent again, even without a response.
            self.assertEqual(
                len([r for r in door.kubelet.seen(b"/closes") if r.method == b"POST"]), 1
            )
            client.drop()
            for name in within_body:
                for version in (b"1.1", b"1.0"):
                    named = f"{door.name}: HTTP/{version.decode()} {name}"
                    peer = await door.raw(
                        b"GET /%b HTTP/%b\r\nHost: %b\r\n\r\n"
                        % (name.encode(), version, door.host.encode())
                    )
                    clients[:] = [peer]
                    await self.within(5, peer.when_lost(), named)
                    clients.clear()
                    self.assertIn(b"200", peer.answer[:20], named)
                    self.assertGreaterEqual(peer.answer.count(b"x"), 99, named)
                    self.assertFalse(peer.answer.endswith(b"0\r\n\r\n"), named)
                    self.assertFalse(peer.ended_cleanly, f"{named}: looks like a complete answer")
        await self.still_answers(frontends)
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def test_a_connection_that_is_idle_no_more_is_not_trusted(self) -> None:
        """A kubelet that closes or sends unsolicited data costs no later request its response."""

        async def trailing(request: Request) -> None:
            await request.ended()
            request.send(response(200, b"mine") + response(200, b"smuggled"))

        async def close_when_reused(request: Request) -> None:
            await request.ended()
            if len(request.connection.targets) > 1:
                request.connection.close()
            else:
                request.answer()

        tunnel, frontends = await self.start_with_frontends(
            routes(trailing=trailing, close_when_reused=close_when_reused, hello=hello)
        )
        before = self.descriptors_of(tunnel)
        for door in frontends:
            client = await door.client()
            for _ in range(5):
                answer = await client.ask("/trailing").whole()
                self.assertEqual(answer.body, b"mine", door.name)
                answer = await client.ask("/hello").whole()
                self.assertEqual(answer.body, HELLO, door.name)
            door.kubelet.close_idle()
            # A kubelet closes just as it receives a request: GET is retried, POST is not.
            self.assertEqual((await client.ask("/close-when-reused").whole()).status, 200)
            self.assertEqual((await client.ask("/close-when-reused").whole()).status, 200)
            self.assertEqual(len(door.kubelet.seen(b"/close-when-reused")), 3)
            for body in (b"once", b""):
                posted = await client.ask("/close-when-reused", "POST", body=body).whole()
                self.assertEqual(posted.status, 502, f"{door.name}: {body!r}: {posted.text}")
                sent = [r for r in door.kubelet.requests if (r.method, r.body) == (b"POST", body)]
                self.assertEqual(len(sent), 1, f"{door.name}: {body!r}")
                self.assertEqual((await client.ask("/close-when-reused").whole()).status, 200)
            client.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def still_answers(self, frontends: list[Frontend]) -> None:
        """Require that both ports serve other requests as before."""
        for door in frontends:
            self.assertEqual((await door.get("/hello")).body, HELLO, door.name)


class RefusedUpgradeTests(InterceptionTestCase):
    """A failed upgrade gives an error that kube-apiserver can decode."""

    async def test_the_sentence_arrives(self) -> None:
        """Each failure has a reason that kube-apiserver's and kubectl's decoder finds."""

        async def closes(request: Request) -> None:
            request.finish_and_close()

        async def talks_nonsense(request: Request) -> None:
            request.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            request.finish_and_close()

        _, frontends = await self.start_with_frontends(
            routes(closes=closes, talks_nonsense=talks_nonsense, hello=hello)
        )
        closed = free_ports.take()
        for door in frontends:
            for target, host, expected in (
                ("/exec", "edge-9:10250", "no agent is connected for edge-9"),
                ("/exec", f"edge-1:{closed}", f"the kubelet of edge-1 at edge-1:{closed}: "),
                ("/closes", door.host, "closed before a response"),
                ("/talks-nonsense", door.host, "the response is invalid"),
                ("/exec", "a b", "the Host field"),
            ):
                for protocol in ("SPDY/3.1", "websocket"):
                    named = f"{door.name}: {protocol} {target} at {host}"
                    fields = f"Host: {host}\r\nConnection: Upgrade\r\nUpgrade: {protocol}"
                    text = f"POST {target} HTTP/1.1\r\n{fields}\r\nContent-Length: 0\r\n\r\n"
                    peer = await door.raw(text.encode(), finish=not door.secure)

                    def answered(peer=peer) -> bool:
                        return b"}\n" in peer.answer

                    await self.eventually(answered, named)
                    self.assertIn(expected, upgrade_failure(peer.answer), named)
                    peer.drop()
        await self.still_answers(frontends)

    still_answers = FaultyKubeletTests.still_answers


class UnfinishedBodiesTests(InterceptionTestCase):
    """Clients that never finish their requests."""

    async def test_others_are_served(self) -> None:
        """A hundred of them at each port affect no other request, and each is aborted."""
        _, frontends = await self.start_with_frontends(hello)
        host = {door: f"Host: {door.host}".encode() for door in frontends}
        for door in frontends:
            for framing in (
                b"Content-Length: 1000\r\n\r\nbegin",
                b"Transfer-Encoding: chunked\r\n\r\n5\r\nbe",
                b"Content-Length: 1000000\r\n\r\n" + bytes(20_000),
                b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
            ):
                for _ in range(25):
                    await door.raw(b"POST /hello HTTP/1.1\r\n%b\r\n%b" % (host[door], framing))
        # Requests with little of their body count as uploads only after this time.
        await self.pause(2 * BODY_START_TIMEOUT)
        for door in frontends:
            got = await self.within(5, door.get("/hello"), f"{door.name} answers")
            self.assertEqual(got.body, HELLO, door.name)
            client = await door.client()
            posted = client.ask("/hello", "POST", body=b"small").whole()
            self.assertEqual((await self.within(5, posted, door.name)).body, HELLO, door.name)
            client.drop()
            self.assertLess(len(door.kubelet.open), 40, door.name)


class HangingAnswersTests(InterceptionTestCase):
    """Clients that wait for responses which never start."""

    async def test_others_are_served(self) -> None:
        """A hundred requests, and as many upgrades, of one address affect no other address."""

        async def hang(request: Request) -> None:
            await request.ended()
            await Deferred()

        async def execute(request: Request) -> None:
            request.switch(Echo(), [(b"Connection", b"Upgrade"), (b"Upgrade", b"SPDY/3.1")])

        script = routes(run=hang, attach=hang, hello=hello, exec=execute)
        tunnel, (_, door) = await self.start_with_frontends(script)
        port = tunnel.server.insecure_port
        for _ in range(100):
            for fields in (b"", b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"):
                target = b"attach" if fields else b"run"
                text = b"POST /%b HTTP/1.1\r\nHost: %b\r\nContent-Length: 0\r\n%b\r\n"
                await self.dial(port, RequestClient(text % (target, door.host.encode(), fields)))
        await self.eventually(lambda: len(door.kubelet.open) == 32, "half of each is in use")
        for _ in range(3):
            client = await self.dial(port, HttpClient(door.host), "127.0.0.2")
            got = await self.within(5, client.ask("/hello").whole(), "a request")
            self.assertEqual(got.body, HELLO)
            client = await self.dial(port, HttpClient(door.host), "127.0.0.2")
            upgraded = client.upgrade("/exec", RequestClient())
            self.assertEqual((await self.within(5, upgraded.whole(), "an exec")).status, 101)
        self.assertLess(len(door.kubelet.open), 40)


class VerificationTests(InterceptionTestCase):
    """Verification of kubelets' certificates."""

    verified = "yurttunnel_server_kubelet_verifications_total"

    async def test_ca_demands_a_certificate_of_the_authority(self) -> None:
        """Self-signed, of another authority, for another node: 502 with a reason; otherwise 200."""
        tunnel, (secure, _) = await self.start_with_frontends(
            hello, server_extra=("--kubelet-verify", "ca")
        )
        self.assertEqual((await secure.get("/hello")).body, HELLO)
        for identity in (
            serving_identity(None, ["edge-1"], ["127.0.0.1"]),
            serving_identity(foreign_authority(), ["edge-1"], ["127.0.0.1"]),
            serving_identity(authority_of(tunnel.server.state), ["edge-2"], ["192.0.2.1"]),
        ):
            kubelet = self.secure_kubelet(tunnel, hello, identity=identity)
            answer = await Frontend(self, tunnel, kubelet).get("/hello")
            self.assertEqual(answer.status, 502, answer.text)
            self.assertIn("edge-1", answer.text)
            self.assertIn("certificate", answer.text)
            self.assertIn("--kubelet", answer.text)
            self.assertNotIn("SSL routines", answer.text)
            self.assertEqual(kubelet.requests, [])
        self.assertEqual(await tunnel.server.metric(self.verified, result="verified"), 1)
        self.assertEqual(await tunnel.server.metric(self.verified, result="unverified"), 0)

    async def test_kubelet_ca_names_other_authorities(self) -> None:
        """Kubelets of the authorities in that file are trusted, those of the server's are not."""
        foreign = foreign_authority()
        bundle, _ = write_identity(foreign, os.path.join(self.directory, "kubelets"))
        flags = ("--kubelet-verify", "ca", "--kubelet-ca", bundle)
        tunnel, (secure, _) = await self.start_with_frontends(hello, server_extra=flags)
        identity = serving_identity(foreign, ["edge-1"])
        kubelet = self.secure_kubelet(tunnel, hello, identity=identity)
        answer = await Frontend(self, tunnel, kubelet).get("/hello")
        self.assertEqual(answer.body, HELLO)
        answer = await secure.get("/hello")
        self.assertEqual(answer.status, 502, answer.text)
        self.assertEqual(await tunnel.server.metric(self.verified, result="verified"), 1)

    async def test_skip_accepts_any_certificate(self) -> None:
        """Any certificate is accepted, without a warning; the metric counts it."""
        tunnel = await self.start_tunnel(server_extra=("--kubelet-verify", "skip"))
        for identity in (
            serving_identity(None, ["edge-1"]),
            serving_identity(authority_of(tunnel.server.state), ["edge-2"]),
        ):
            kubelet = self.secure_kubelet(tunnel, hello, identity=identity)
            answer = await Frontend(self, tunnel, kubelet).get("/hello")
            self.assertEqual(answer.body, HELLO, answer.text)
        self.assertEqual(await tunnel.server.metric(self.verified, result="skipped"), 2)
        self.assertNotIn("is not verified", tunnel.server.log)

    async def test_auto_accepts_a_self_signed_one_with_a_warning(self) -> None:
        """It is accepted with a metric and a log line; a wrong one of the authority is rejected."""
        tunnel, (secure, _) = await self.start_with_frontends(hello)
        self.assertEqual((await secure.get("/hello")).body, HELLO)
        self.assertNotIn("is not verified", tunnel.server.log)
        own = self.secure_kubelet(tunnel, hello, identity=serving_identity(None, ["edge-1"]))
        self.assertEqual((await Frontend(self, tunnel, own).get("/hello")).body, HELLO)
        self.assertIn("the kubelet of edge-1", tunnel.server.log)
        self.assertIn("is not verified", tunnel.server.log)
        for result in ("verified", "unverified"):
            self.assertEqual(await tunnel.server.metric(self.verified, result=result), 1, result)
        identity = serving_identity(authority_of(tunnel.server.state), ["edge-2"])
        wrong = self.secure_kubelet(tunnel, hello, identity=identity)
        answer = await Frontend(self, tunnel, wrong).get("/hello")
        self.assertEqual(answer.status, 502, answer.text)
        self.assertIn("edge-2", answer.text)
        # A port without TLS, and TLS for a caller without TLS.
        plain = Frontend(
            self, tunnel, self.plain_kubelet_of_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        )
        plain.secure, plain.port = True, tunnel.server.secure_port
        answer = await plain.get("/hello")
        self.assertEqual(answer.status, 502, answer.text)
        self.assertIn("TLS", answer.text)
        crossed = Frontend(self, tunnel, own)
        crossed.secure, crossed.port = False, tunnel.server.insecure_port
        self.assertEqual((await crossed.get("/hello")).status, 502)

    def plain_kubelet_of_bytes(self, text: bytes):
        """Start a target that sends the same bytes on every connection."""
        target = self.listen(lambda: RequestClient(text))
        target.secure = False
        return target


class ExpectationTests(InterceptionTestCase):
    """``Expect: 100-continue`` is passed to the kubelet."""

    async def test_the_kubelet_decides(self) -> None:
        """The body is sent after the kubelet's 100, and not after a rejection."""

        async def accept(request: Request) -> None:
            request.send(response_head(100))
            await request.ended()
            request.answer(200, request.body)

        async def refuse(request: Request) -> None:
            request.answer(401, b"who are you?\n")

        tunnel, frontends = await self.start_with_frontends(
            routes(accept=accept, refuse=refuse, hello=hello)
        )
        before = self.descriptors_of(tunnel)
        expecting = [(b"Expect", b"100-continue")]
        for door in frontends:
            for framing, body in (
                ((b"Content-Length", b"9"), b"some text"),
                ((b"Transfer-Encoding", b"chunked"), chunk(b"some text") + chunk(b"")),
            ):
                client = await door.client()
                client.send_head("/accept", "PUT", [*expecting, framing])
                answer = client.expect(b"PUT")
                self.assertEqual(await self.within(5, answer.interim(), "100 comes"), 100)
                self.assertEqual(door.kubelet.requests[-1].size, 0, "nothing was sent before")
                client.transport.write(body)
                got = await self.within(5, answer.whole(), "the answer comes")
                self.assertEqual(got.body, b"some text", door.name)
                client.send_head("/refuse", "PUT", [*expecting, framing])
                got = await self.within(5, client.expect(b"PUT").whole(), "the refusal comes")
                self.assertEqual((got.status, got.body), (401, b"who are you?\n"), door.name)
                self.assertEqual([status for status, _ in got.interim], [], "nobody said go on")
                client.drop()
            self.assertEqual((await door.get("/hello")).body, HELLO)
        for door in frontends:
            for connection in door.kubelet.open:
                connection.drop()
        await self.assert_no_leftovers(tunnel, frontends, before)
