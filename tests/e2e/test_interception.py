"""The ports for requests to kubelets: authentication, the choice of the node, and forwarding."""

from __future__ import annotations

import json
import os

from twisted.internet.defer import Deferred, gatherResults

from tests.e2e.certificates import authority_of, foreign_authority, identity_of, reissue
from tests.e2e.interception import Frontend, InterceptionTestCase, caller_of, write_identity
from tests.e2e.kubelets import (
    HELLO,
    Request,
    chunk,
    describe,
    hello,
    response_head,
    routes,
    serving_identity,
)

LONG_PATH = "/describe?command=" + "x" * 12_000


def together(*coroutines) -> Deferred[list]:
    """Run coroutines concurrently; fail with the first failure."""
    return gatherResults(map(Deferred.fromCoroutine, coroutines), consumeErrors=True)


TRAILERS = (
    b"X-Tunnel-Proxy-Dest: edge-2:10250\r\nAuthorization: Bearer of-another\r\nETag: 7\r\n"
    b"X-Remote-User: admin\r\nX-Sum: 7\r\n\r\n"
)
"""Behind a body, with its end."""


class CallerTests(InterceptionTestCase):
    """Authentication, with curl, as users would try it."""

    async def curl(self, *arguments: str) -> tuple[bytes, str, int]:
        """Run curl; return the response, its details, and the exit status."""
        arguments = ("--silent", "--show-error", "--max-time", "10", *arguments)
        out, errors, status = await self.run_command("curl", *arguments)
        return out, errors.decode(), status

    def through(self, door: Frontend, host: str = "edge-1") -> tuple[str, ...]:
        """Return curl's arguments that redirect the kubelet's port to the server's, as iptables
        would."""
        there = f"{host}:{door.kubelet.port}"
        scheme = "https" if door.secure else "http"
        return ("--connect-to", f"{there}:127.0.0.1:{door.port}", f"{scheme}://{there}/hello")

    async def test_callers_with_a_certificate_get_in_and_others_do_not(self) -> None:
        """A caller's certificate is accepted on 10263; a node's or a stranger's is not."""
        tunnel, (secure, plain) = await self.start_with_frontends(hello)
        state = tunnel.server.state
        trust = ("--cacert", os.path.join(state, "ca.crt"))

        def as_caller(stem: str) -> tuple[str, ...]:
            return ("--cert", f"{stem}.crt", "--key", f"{stem}.key")

        caller = as_caller(os.path.join(state, "client"))
        # The serving certificate is verified by name (SNI) and by address.
        for host in ("edge-1", "127.0.0.1"):
            out, errors, status = await self.curl(*trust, *caller, *self.through(secure, host))
            self.assertEqual((out, status), (HELLO, 0), errors)
            out, errors, status = await self.curl(*self.through(plain, host))
            self.assertEqual((out, status), (HELLO, 0), errors)
        # A caller that dials the server's own port selects its destination by a field.
        out, errors, status = await self.curl(
            *trust, *caller, "--resolve", f"edge-1:{secure.port}:127.0.0.1",
            "--header", f"X-Tunnel-Proxy-Dest: 127.0.0.1:{secure.kubelet.port}",
            f"https://edge-1:{secure.port}/hello",
        )  # fmt: skip
        self.assertEqual((out, status), (HELLO, 0), errors)
        self.assertEqual(secure.kubelet.callers, {"tunnel-proxy-client"})

        seen = len(secure.kubelet.requests)
        original = caller_of(tunnel).certificate
        authority = authority_of(state)
        stem = os.path.join(self.directory, "refused")
        for identity, why in (
            (None, "certificate"),
            (identity_of(tunnel.agent.state), "that of a node, 'edge-1'"),
            (reissue(original, foreign_authority()), "not from an authority"),
            (reissue(original, authority, expired=True), "expired"),
        ):
            shown: tuple[str, ...] = ()
            if identity is not None:
                write_identity(identity, stem)
                shown = as_caller(stem)
            out, errors, status = await self.curl(*trust, *shown, *self.through(secure))
            self.assertEqual(out, b"", why)
            self.assertIn(status, (35, 56), f"{why}: {errors}")
        # It is logged for the operator, with a rate limit for each address.
        self.assertIn("is refused", tunnel.server.log)
        self.assertNotIn("SSL routines", tunnel.server.log)
        self.assertEqual(len(secure.kubelet.requests), seen)

    async def test_callers_choose_http_1_1(self) -> None:
        """A caller that offers h2 as well gets http/1.1; one that offers only h2 is rejected."""
        tunnel, (secure, _) = await self.start_with_frontends(hello)
        state = tunnel.server.state
        files = {"-cert": "client.crt", "-key": "client.key", "-CAfile": "ca.crt"}
        arguments = [
            argument for flag, name in files.items() for argument in (flag, f"{state}/{name}")
        ]
        for offered, agreed in (("h2,http/1.1", "ALPN protocol: http/1.1"), ("h2", None)):
            out, errors, _ = await self.run_command(
                "openssl", "s_client", "-connect", f"127.0.0.1:{secure.port}",
                "-alpn", offered, *arguments, standard_input=b"",
            )  # fmt: skip
            if agreed:
                self.assertIn(agreed, out.decode(), errors)
                self.assertIn("Verify return code: 0 (ok)", out.decode())
            else:
                self.assertIn("alert", errors.decode() + out.decode())


class NodeTests(InterceptionTestCase):
    """The choice of the node."""

    async def test_fields_choose_node_and_destination(self) -> None:
        """Host, X-Tunnel-Proxy-Host and X-Tunnel-Proxy-Dest choose the kubelet."""
        tunnel, frontends = await self.start_with_frontends(describe)
        second = tunnel.another_agent(node="edge-2", state="A2", extra=("--node-ip", "127.0.0.2"))
        second.start()
        await second.ready()
        for door in frontends:
            port = door.kubelet.port
            # The kubelet of another node, with the same port.
            here = {"address": "127.0.0.2", "port": port}
            if door.secure:
                identity = serving_identity(authority_of(tunnel.server.state), ["edge-2"])
                other = self.secure_kubelet(tunnel, hello, identity=identity, **here)
            else:
                other = self.plain_kubelet(hello, **here)
            own = f"127.0.0.1:{door.port}"
            for host, fields in (
                (f"edge-1:{port}", {}),
                (f"EDGE-1:{port}", {}),
                (f"127.0.0.1:{port}", {}),
                (f"127.0.0.1:{port}", {"X-Tunnel-Proxy-Host": "edge-1"}),
                (f"127.0.0.1:{port}", {"X-Tunnel-Proxy-Host": "edge-1:10250"}),
                (f"edge-1:{port}", {"X-Tunnel-Proxy-Host": "127.0.0.1"}),
                (own, {"X-Tunnel-Proxy-Dest": f"127.0.0.1:{port}"}),
                (own, {"X-Tunnel-Proxy-Dest": f"edge-1:{port}"}),
                (
                    own,
                    {"X-Tunnel-Proxy-Dest": f"127.0.0.1:{port}", "X-Tunnel-Proxy-Host": "edge-1"},
                ),
            ):
                named = f"{door.name}: {host} {fields}"
                fields = [(name.encode(), value.encode()) for name, value in fields.items()]
                answer = await door.get("/describe", host, fields)
                self.assertEqual(answer.status, 200, f"{named}: {answer.text}")
                got = {name.lower() for name, _ in json.loads(answer.text)["fields"]}
                self.assertEqual([name for name in got if name.startswith("x-tunnel")], [], named)
            seen = len(door.kubelet.requests)
            for host, fields in (
                (f"edge-2:{port}", []),
                (f"127.0.0.2:{port}", []),
                (own, [(b"X-Tunnel-Proxy-Dest", b"edge-2:%d" % port)]),
            ):
                answer = await door.get("/hello", host, fields)
                self.assertEqual(answer.body, HELLO, f"{door.name}: {host} {fields}")
            self.assertEqual((len(door.kubelet.requests), len(other.requests)), (seen, 3))
            # The requested agent decides what it dials.
            to_second = [(b"X-Tunnel-Proxy-Host", b"edge-2")]
            answer = await door.get("/hello", f"127.0.0.1:{port}", to_second)
            self.assertEqual(answer.status, 403, answer.text)

    async def test_pages_of_others(self) -> None:
        """A web page whose own name resolves to the port without TLS is rejected, whatever it
        requests; it cannot change ``Host``."""
        _, (_, plain) = await self.start_with_frontends(hello)
        port = plain.kubelet.port
        for fields in (
            [(b"X-Tunnel-Proxy-Dest", b"edge-1:%d" % port)],
            [(b"X-Tunnel-Proxy-Host", b"edge-1")],
        ):
            answer = await plain.get("/hello", f"evil.example:{plain.port}", fields)
            self.assertEqual(answer.status, 421, answer.text)
            self.assertIn("use an IP address or localhost as Host", answer.text)
        self.assertEqual(plain.kubelet.requests, [])

    async def test_each_failure_has_its_status_and_a_sentence(self) -> None:
        """400, 403, 502, 503: one line of text, or a metav1.Status for clients that accept JSON."""
        tunnel, frontends = await self.start_with_frontends(hello)
        leaver = tunnel.another_agent(node="edge-3", state="A3", extra=("--node-ip", "127.0.0.3"))
        leaver.start()
        await leaver.ready()
        await leaver.stop()
        to_edge = {"X-Tunnel-Proxy-Host": "edge-1"}
        cases = [
            ("edge-1", {}, 400, "edge-1"),
            ("edge-1:", {}, 400, "edge-1"),
            ("edge-1:0", {}, 400, "0"),
            ("edge-1:65536", {}, 400, "65536"),
            ("edge-1:port", {}, 400, "port"),
            ("", {}, 400, "Host"),
            ("edge-1:80", {"X-Tunnel-Proxy-Dest": "edge-1"}, 400, "X-Tunnel-Proxy-Dest"),
            ("edge-1:80", {"X-Tunnel-Proxy-Host": "a b"}, 400, "X-Tunnel-Proxy-Host"),
            ("192.0.2.1:80", to_edge, 403, "192.0.2.1"),
            ("127.0.0.2:80", to_edge, 403, "127.0.0.2"),
            ("edge-9:80", {}, 503, "edge-9"),
            ("10.9.8.7:80", {}, 503, "10.9.8.7"),
            ("127.0.0.1:80", {"X-Tunnel-Proxy-Host": "edge-9"}, 503, "edge-9"),
            ("edge-3:10250", {}, 503, "last seen"),
            ("edge-3:10250", {"X-Tunnel-Proxy-Host": "edge-3"}, 503, "last seen"),
        ]
        for door in frontends:
            # All on one connection: a request without a destination does not close the caller's.
            client = await door.client()
            for host, fields, status, words in cases:
                named = f"{door.name}: {host} {fields}"
                client.host = host
                fields = [(name.encode(), value.encode()) for name, value in fields.items()]
                answer = await client.ask("/hello", fields=fields).whole()
                self.assertEqual(answer.status, status, f"{named}: {answer.text}")
                self.assertIn(words, answer.text, named)
                self.assertEqual(len(answer.text.strip().splitlines()), 1, named)
                fields.append((b"Accept", b"application/json, */*"))
                answer = await client.ask("/hello", fields=fields).whole()
                document = json.loads(answer.text)
                self.assertEqual((document["kind"], document["code"]), ("Status", status), named)
                self.assertEqual(document["status"], "Failure")
                self.assertIn(words, document["message"], named)
            client.host = door.host
            # Tunnels are available at --connect-endpoint only.
            answer = await door.raw(b"CONNECT edge-1:80 HTTP/1.1\r\nHost: edge-1:80\r\n\r\n")
            await self.eventually(lambda a=answer: b"\r\n\r\n" in a.answer, "it is answered", 5)
            self.assertTrue(answer.answer.startswith(b"HTTP/1.1 405 "), answer.answer[:60])
            answer = await client.ask("/hello").whole()
            self.assertEqual(answer.body, HELLO)


class PassingTests(InterceptionTestCase):
    """Forwarding of requests and responses."""

    async def test_requests_arrive_unchanged(self) -> None:
        """Method, target, fields and body are forwarded; hop-by-hop fields are not."""
        tunnel, frontends = await self.start_with_frontends(describe)
        before = self.descriptors_of(tunnel)
        await together(*(self.requests_through(door) for door in frontends))
        await self.assert_no_leftovers(tunnel, frontends, before)
        # One log line each, and metrics whose labels callers cannot choose.
        self.assertEqual(tunnel.server.log.count("(asked-for-1)"), 2)
        answered = "yurttunnel_server_proxied_requests_total"
        self.assertGreater(await tunnel.server.metric(answered, verb="POST", code="200"), 5)
        _, metrics = await tunnel.server.get("/metrics")
        self.assertNotIn("describe", metrics)

    async def requests_through(self, door: Frontend) -> None:
        """Send requests of all kinds, and compare with what the kubelet received."""
        client = await door.client()

        async def answered(*arguments, **options) -> dict:
            named = f"{door.name}: {arguments[:2]} is answered"
            answer = await self.within(5, client.ask(*arguments, **options).whole(), named)
            self.assertEqual(answer.status, 200, f"{door.name}: {answer.text}")
            return json.loads(answer.text)

        got = await answered(
            "/describe?a=b%20c&d=%2F..//;x", "GET",
            [
                (b"Authorization", b"Bearer abc"),
                (b"X-Twice", b"1"), (b"Accept", b"*/*"), (b"x-twice", b"2"),
                (b"Connection", b"keep-alive, X-Private"), (b"X-Private", b"secret"),
                (b"Keep-Alive", b"timeout=5"), (b"Proxy-Connection", b"keep-alive"),
                (b"Proxy-Authorization", b"Basic eDp5"), (b"TE", b"trailers"),
                (b"X-Tunnel-Proxy-Host", b"edge-1"), (b"X-Tunnel-Unknown", b"1"),
                (b"X-Request-Id", b"asked-for-1"),
            ],
        )  # fmt: skip
        fields = [(name.lower(), value) for name, value in got["fields"]]
        names = [name for name, _ in fields]
        self.assertEqual(got["target"], "/describe?a=b%20c&d=%2F..//;x")
        self.assertEqual(names.count("host"), 1)
        self.assertEqual([value for name, value in fields if name == "x-twice"], ["1", "2"])
        self.assertIn(("authorization", "Bearer abc"), fields)
        self.assertIn(("x-request-id", "asked-for-1"), fields)
        for name in (
            "x-private", "keep-alive", "proxy-connection", "proxy-authorization", "te",
            "x-tunnel-proxy-host", "x-tunnel-unknown", "content-length", "transfer-encoding",
        ):  # fmt: skip
            self.assertNotIn(name, names, door.name)
        self.assertNotIn("secret", str(fields))

        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
            got = await answered("/describe", method, body=b"some text")
            self.assertEqual((got["method"], got["body"]), (method, "some text"))
            self.assertIn(["content-length", "9"], [[n.lower(), v] for n, v in got["fields"]])
        got = await answered("/describe", "POST", body=b"")
        self.assertIn(["content-length", "0"], [[n.lower(), v] for n, v in got["fields"]])
        got = await answered(LONG_PATH)
        self.assertEqual(got["target"], LONG_PATH)

        # A request that comes without an id gets one.
        (request_id,) = [value for name, value in got["fields"] if name.lower() == "x-request-id"]
        self.assertRegex(request_id, r"^\S+$")

        # A chunked body, in pieces that divide the chunks; of its trailers one is passed on.
        text = chunk(b"one ") + b"3;extension=1\r\ntwo\r\n" + b"0\r\n" + TRAILERS
        client.send_head("/describe", "POST", [(b"Transfer-Encoding", b"chunked")])
        answer = client.expect(b"POST")
        for octet in text:
            client.transport.write(bytes([octet]))
            await self.pause(0.001)
        got = json.loads((await self.within(5, answer.whole(), "it is answered")).text)
        self.assertEqual(got["body"], "one two")
        self.assertEqual([[n.lower(), v] for n, v in got["trailers"]], [["etag", "7"]])
        self.assertEqual(client.unexpected, b"")
        # All requests used one connection to the kubelet, too.
        targets = [connection.targets for connection in door.kubelet.connections]
        self.assertEqual(len(targets), 1, f"{door.name}: {targets}")
        await self.old_client(door)
        client.drop()

    async def old_client(self, door: Frontend) -> None:
        """An HTTP/1.0 client gets the same, unchunked, and its connection is closed."""
        host = door.host.encode()
        old = await door.raw(b"GET /describe HTTP/1.0\r\nHost: %b\r\n\r\n" % host)
        await self.within(5, old.when_ended(), f"{door.name}: the connection is closed")
        head, _, body = old.answer.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 200"), head)
        self.assertNotIn(b"chunked", head.lower())
        self.assertEqual(json.loads(body)["method"], "GET")
        old.drop()

    async def test_responses_arrive_unchanged(self) -> None:
        """Statuses, fields and every kind of body are forwarded, and the connection stays
        usable.
        """
        tunnel, frontends = await self.start_with_frontends(
            routes(
                fields=_fields, nothing=_no_body, unframed=_unframed, chunks=_chunks,
                early_hints=_early_hints, head=_head_only, hello=hello,
            )
        )  # fmt: skip
        before = self.descriptors_of(tunnel)
        await together(*(self.responses_through(door) for door in frontends))
        await self.assert_no_leftovers(tunnel, frontends, before)

    async def responses_through(self, door: Frontend) -> None:
        """Have the kubelet respond in all ways, and compare with what the client received."""
        client = await door.client()
        got = await client.ask("/fields").whole()
        names = [name.lower() for name, _ in got.fields]
        self.assertEqual(got.status, 418)
        self.assertEqual(got.values(b"set-cookie"), [b"a=1", b"b=2"])
        self.assertEqual(got.body, b"short and stout")
        for name in (b"x-private", b"keep-alive", b"proxy-connection", b"upgrade"):
            self.assertNotIn(name, names)

        for status in (204, 304):
            got = await client.ask(f"/nothing?{status}").whole()
            self.assertEqual((got.status, got.size), (status, 0), door.name)
        got = await client.ask("/head", "HEAD").whole()
        self.assertEqual((got.status, got.size), (200, 0))
        self.assertEqual(got.values(b"content-length"), [b"1234567"])

        got = await client.ask("/unframed").whole()
        self.assertEqual((got.size, got.body[:12]), (300_000, b"until close "))
        self.assertEqual(got.values(b"transfer-encoding"), [b"chunked"])

        got = await client.ask("/chunks", fields=[(b"TE", b"trailers")]).whole()
        self.assertEqual(got.body, b"one two three")
        self.assertEqual([(n.lower(), v) for n, v in got.trailers], [(b"etag", b"7")])

        got = await client.ask("/early-hints").whole()
        self.assertEqual([status for status, _ in got.interim], [102, 103])
        self.assertEqual(dict(got.interim[1][1])[b"Link"], b"</a>")
        self.assertEqual(got.body, HELLO)

        # Requests sent at once are answered in their order.
        answers = [client.ask("/hello"), client.ask("/chunks"), client.ask("/head", "HEAD")]
        answers += [client.ask("/hello"), client.ask("/hello")]
        bodies = [(await answer.whole()).body for answer in answers]
        self.assertEqual(bodies, [HELLO, b"one two three", b"", HELLO, HELLO])
        self.assertEqual(client.unexpected, b"")
        client.drop()
        old = await door.raw(b"GET /unframed HTTP/1.0\r\nHost: %b\r\n\r\n" % door.host.encode())
        await self.within(5, old.when_ended(), "the connection is closed")
        body = old.answer.partition(b"\r\n\r\n")[2]
        self.assertTrue(body.startswith(b"until close until close "), body[:40])
        old.drop()


async def _fields(request: Request) -> None:
    await request.ended()
    fields = [
        (b"Set-Cookie", b"a=1"), (b"Connection", b"X-Private, keep-alive"), (b"X-Private", b"x"),
        (b"Set-Cookie", b"b=2"), (b"Keep-Alive", b"timeout=5"), (b"Proxy-Connection", b"x"),
    ]  # fmt: skip
    request.answer(418, b"short and stout", fields)


async def _no_body(request: Request) -> None:
    await request.ended()
    request.send(response_head(int(request.target.partition(b"?")[2])))


async def _head_only(request: Request) -> None:
    await request.ended()
    request.send(response_head(200, [(b"Content-Length", b"1234567")]))


async def _unframed(request: Request) -> None:
    await request.ended()
    request.send(response_head(200) + b"until close " * 25_000)
    request.finish_and_close()


async def _chunks(request: Request) -> None:
    await request.ended()
    head = response_head(200, [(b"Transfer-Encoding", b"chunked"), (b"Trailer", b"ETag")])
    request.send(head + chunk(b"one ") + chunk(b"two "))
    request.send(chunk(b"three") + b"0\r\n" + TRAILERS)


async def _early_hints(request: Request) -> None:
    await request.ended()
    request.send(response_head(102) + response_head(103, [(b"Link", b"</a>")]))
    request.answer()
